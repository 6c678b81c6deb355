"""Tenure: a durable, multi-tenant job queue for Python."""

from tenure.errors import (
    Busy,
    Closed,
    Conflict,
    DependencyCycle,
    DependencyNotFound,
    Duplicate,
    InvalidInput,
    InvalidPayload,
    JobNotFound,
    LeaseLost,
    NotAStore,
    NotFound,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
    StoreFull,
    StoreReadOnly,
    TenureError,
    WrongVersion,
)
from tenure.job import Failure, Job, Lease, NewJob, State
from tenure.ops import (
    GroupStats,
    Limit,
    Maintained,
    Page,
    QueueStats,
    Schedule,
    Slot,
    Slots,
    Stats,
    TenantStats,
)
from tenure.queue import EnqueuedIds, Queue, connect
from tenure.retry import Backoff, exponential, fixed, linear, quadratic
from tenure.settings import Settings

__version__ = "0.1.0"

__all__ = [
    # opening a queue
    "connect",
    "Queue",
    "Settings",
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
    # what is answered
    "EnqueuedIds",
    "Maintained",
    "Page",
    "Stats",
    "QueueStats",
    "TenantStats",
    "GroupStats",
    "Limit",
    "Slot",
    "Slots",
    "Schedule",
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
    "Busy",
    "Closed",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "NotAStore",
    "WrongVersion",
    "__version__",
]
