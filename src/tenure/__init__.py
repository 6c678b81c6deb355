"""Tenure: a durable, multi-tenant job queue for Python."""

import importlib
import typing

from tenure.errors import (
    Busy,
    ChildFailed,
    Closed,
    Conflict,
    DependencyCycle,
    DependencyNotFound,
    Duplicate,
    Forbidden,
    InvalidInput,
    InvalidPayload,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NoCurrentJob,
    NotAllowed,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    TenureError,
    Unauthorized,
    WaitTimeout,
    WrongVersion,
)
from tenure.features.audit.data import AuditEntry, AuditLog
from tenure.features.bulk.data import Matches
from tenure.features.errors.data import ErrorGroup, ErrorGroups
from tenure.features.live_workers.data import LiveWorker
from tenure.features.rates.data import QueueRates, RatePoint, Rates
from tenure.features.steps.data import JobSteps, SentSignal, Step
from tenure.features.why.data import Explained
from tenure.model.history import JobMove
from tenure.model.job import Failure, Job, Lease, NewJob, State
from tenure.model.ops import Limit, Maintained, Schedule, Slots
from tenure.model.queries import (
    GroupStats,
    GroupTotal,
    Page,
    QueueStats,
    Related,
    Slot,
    Stats,
    Summaries,
    TenantStats,
    Timetable,
)
from tenure.model.retry import Backoff, exponential, fixed, linear, quadratic
from tenure.queue import EnqueuedIds, Queue, connect
from tenure.settings import Settings

# Imported when they are first used: a program that only enqueues does not need a worker.
_LATER = {
    "Tenure": "tenure.tasks.app",
    "Task": "tenure.tasks.task",
    "Handle": "tenure.tasks.task",
    "Handler": "tenure.worker.handler",
    "Worker": "tenure.worker.worker",
    "current_job": "tenure.worker.current_job",
    "CurrentJob": "tenure.worker.current_job",
    "Outcome": "tenure.worker.outcome",
    "Snooze": "tenure.worker.outcome",
    "Retry": "tenure.worker.outcome",
    "Cancel": "tenure.worker.outcome",
    "Dead": "tenure.worker.outcome",
    "Suspended": "tenure.worker.outcome",
}

if typing.TYPE_CHECKING:
    from tenure.tasks.app import Tenure
    from tenure.tasks.task import Handle, Task
    from tenure.worker.current_job import CurrentJob, current_job
    from tenure.worker.handler import Handler
    from tenure.worker.outcome import Cancel, Dead, Outcome, Retry, Snooze, Suspended
    from tenure.worker.worker import Worker
else:

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'tenure' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})


__version__ = "0.1.0"

__all__ = [
    # opening a queue
    "connect",
    "Queue",
    "Settings",
    # tasks and workers
    "Tenure",
    "Task",
    "Handle",
    "Handler",
    "Worker",
    "current_job",
    "CurrentJob",
    # what a task can return or raise
    "Outcome",
    "Snooze",
    "Retry",
    "Cancel",
    "Dead",
    "Suspended",
    # jobs
    "NewJob",
    "Job",
    "Lease",
    "State",
    "Failure",
    # retries
    "Backoff",
    "fixed",
    "linear",
    "quadratic",
    "exponential",
    # what calls return
    "EnqueuedIds",
    "Maintained",
    "Explained",
    "JobMove",
    "Related",
    "Matches",
    "Page",
    "Summaries",
    "Stats",
    "QueueStats",
    "TenantStats",
    "GroupStats",
    "GroupTotal",
    "Limit",
    "Slot",
    "Slots",
    "Schedule",
    "Timetable",
    "LiveWorker",
    "ErrorGroup",
    "ErrorGroups",
    "AuditEntry",
    "AuditLog",
    "Rates",
    "QueueRates",
    "RatePoint",
    "JobSteps",
    "Step",
    "SentSignal",
    # errors
    "TenureError",
    "InvalidInput",
    "InvalidPayload",
    "PayloadTooLarge",
    "DependencyCycle",
    "NotFound",
    "JobNotFound",
    "QueueNotFound",
    "ScheduleNotFound",
    "DependencyNotFound",
    "Conflict",
    "Duplicate",
    "LeaseLost",
    "JobFailed",
    "ChildFailed",
    "WaitTimeout",
    "NoCurrentJob",
    "NotAllowed",
    "Unauthorized",
    "Forbidden",
    "Busy",
    "Closed",
    "StoreError",
    "StoreRejected",
    "OutcomeUnknown",
    "StoreFull",
    "StoreReadOnly",
    "NotAStore",
    "WrongVersion",
    "__version__",
]
