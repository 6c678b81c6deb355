"""Every error that Tenure raises, as a tree.

TenureError
├── InvalidInput            an invalid argument: says which one and why (also a ValueError)
│   ├── InvalidPayload      a payload or result that is not JSON
│   ├── PayloadTooLarge     a payload or result over the limit
│   └── DependencyCycle     jobs of one call depend on each other
├── NotFound                (also a LookupError)
│   ├── JobNotFound
│   ├── QueueNotFound
│   ├── ScheduleNotFound
│   └── DependencyNotFound  `after` names a job that does not exist
├── Conflict
│   ├── Duplicate           another job has the id or the unique key
│   └── LeaseLost           the job is no longer leased under this token
├── JobFailed               the job that was waited for is dead or cancelled
│   └── ChildFailed         a step waited for it
├── WaitTimeout             the job did not finish, or no signal came, in time (also a TimeoutError)
├── NoCurrentJob            current_job() was called outside of a running job
├── NotAllowed
│   ├── Unauthorized        the token is missing or unknown
│   └── Forbidden           the token does not allow it
├── Busy                    too much is waiting to be committed, or the store stayed locked
├── Closed                  the handle was closed
└── StoreError              the store failed; the operation was not applied
    ├── StoreRejected       the store does not accept one of the operations
    ├── OutcomeUnknown      the connection was lost during a commit: it may have been applied
    ├── StoreFull
    ├── StoreReadOnly
    ├── NotAStore           the file is not a store
    └── WrongVersion        the store was made by a newer Tenure, or a library is too old

Each has a stable `code` for programs. If one operation of a batch fails, an engine returns the
error as a value, and `Queue` raises it.
"""

from __future__ import annotations


class TenureError(Exception):
    """Base class of all errors that Tenure raises."""

    code = "error"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, TenureError)
            and (self.message, self.details) == (other.message, other.details)
        )

    def __hash__(self) -> int:
        return Exception.__hash__(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Make errors picklable, whatever arguments their constructors take."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[TenureError], args: tuple[object, ...]) -> TenureError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError.__new__ does not set them
    return error


class InvalidInput(TenureError, ValueError):
    """An argument is invalid; `field` names it, `reason` says why."""

    code = "invalid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field)
        self.field = field
        self.reason = reason

    def within(self, what: str) -> InvalidInput:
        """Return the same error for a part of a larger input."""
        return type(self)(f"{what}.{self.field}", self.reason)


class InvalidPayload(InvalidInput):
    """A payload or result cannot be written as JSON."""

    code = "invalid_payload"


class PayloadTooLarge(InvalidInput):
    """A payload or result is larger than the limit."""

    code = "payload_too_large"


class DependencyCycle(InvalidInput):
    """Jobs of one call depend on each other, so that none of them could ever run."""

    code = "dependency_cycle"

    def __init__(self, ids: list[str]) -> None:
        super().__init__("after", f"these jobs wait for each other: {', '.join(ids)}")
        self.ids = ids


class NotFound(TenureError, LookupError):
    """Something that a call refers to does not exist."""

    code = "not_found"


class JobNotFound(NotFound):
    """No job has this id."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}", id=job_id)
        self.job_id = job_id


class QueueNotFound(NotFound):
    """No job was ever enqueued, and no limit set, under this queue's name."""

    code = "queue_not_found"

    def __init__(self, queue: str) -> None:
        super().__init__(f"there is no queue {queue!r}", queue=queue)
        self.queue = queue


class ScheduleNotFound(NotFound):
    """No schedule has this name."""

    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}", name=name)
        self.name = name


class DependencyNotFound(NotFound):
    """`after` names a job that does not exist."""

    code = "dependency_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"after: there is no job {job_id!r} to wait for (finished jobs are removed after "
            "their retention)",
            id=job_id,
        )
        self.job_id = job_id


class Conflict(TenureError):
    """The state of the store does not allow the operation."""

    code = "conflict"


class Duplicate(Conflict):
    """Another job, `job_id`, has the same id or unique key."""

    code = "duplicate"

    def __init__(self, field: str, value: str, job_id: str) -> None:
        super().__init__(
            f"{field} {value!r} is held by job {job_id!r}; nothing was changed",
            field=field,
            value=value,
            id=job_id,
        )
        self.field = field
        self.value = value
        self.job_id = job_id


class LeaseLost(Conflict):
    """The job is no longer leased under this token: it is finished, pending, or leased again."""

    code = "lease_lost"

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(
            f"job {job_id!r} is no longer leased under this token (it is {state}); "
            "discard what was done for it",
            id=job_id,
            state=state,
        )
        self.job_id = job_id
        self.state = state


class JobFailed(TenureError):
    """The job that was waited for is dead or cancelled."""

    code = "job_failed"

    def __init__(self, job_id: str, state: str, error: str | None) -> None:
        super().__init__(
            f"job {job_id!r} is {state}" + (f": {error}" if error else ""), id=job_id, state=state
        )
        self.job_id = job_id
        self.state = state


class ChildFailed(JobFailed):
    """A job that a step waited for is dead, cancelled or deleted."""

    code = "child_failed"

    def __init__(self, step: str, job_id: str, state: str, error: str | None) -> None:
        super().__init__(job_id, state, error)
        self.step = step
        self.message = f"the step {step!r}: {self.message}"
        self.args = (self.message,)


class WaitTimeout(TenureError, TimeoutError):
    """The job that was waited for did not finish in time; it is still unfinished. Or no signal came
    in time."""

    code = "wait_timeout"

    def __init__(self, job_id: str, state: str, seconds: float, hint: str = "") -> None:
        if not hint and state == "pending" and seconds:
            hint = "; is a worker running for its queue?"
        super().__init__(
            f"job {job_id!r} is {state} after {seconds:g} s of waiting; it was not cancelled{hint}",
            id=job_id,
            state=state,
        )
        self.job_id = job_id
        self.state = state

    @classmethod
    def of_signal(cls, job_id: str, name: str) -> WaitTimeout:
        """The error of a job that waited for a signal."""
        error = cls(job_id, "leased", 0)
        error.message = f"no signal {name!r} was sent to job {job_id!r} in time"
        error.args, error.details = (error.message,), {"id": job_id, "signal": name}
        return error


class NoCurrentJob(TenureError):
    """The calling code is not running a job."""

    code = "no_current_job"


class NotAllowed(TenureError):
    """The service does not allow this for the caller."""

    code = "not_allowed"


class Unauthorized(NotAllowed):
    """The token is missing or unknown."""

    code = "unauthorized"


class Forbidden(NotAllowed):
    """The token does not allow the call."""

    code = "forbidden"


class Busy(TenureError):
    """Too much is waiting to be committed, or the store stayed locked; try again later."""

    code = "busy"


class Closed(TenureError):
    """The handle was closed."""

    code = "closed"


class StoreError(TenureError):
    """The store failed."""

    code = "store_error"


class StoreRejected(StoreError):
    """The store does not accept one of the operations, now or later; none of them was applied."""

    code = "store_rejected"


class OutcomeUnknown(StoreError):
    """The connection to the store was lost during a commit, and it is not known whether the commit
    was applied."""

    code = "outcome_unknown"


class StoreFull(StoreError):
    """The disk is full; the operation was not applied."""

    code = "store_full"


class StoreReadOnly(StoreError):
    """The store cannot be written to."""

    code = "store_read_only"


class NotAStore(StoreError):
    """The file is not a database, or it is damaged."""

    code = "not_a_store"


class WrongVersion(StoreError):
    """The store was made by a newer version of Tenure, or a library it needs is too old."""

    code = "wrong_version"
