"""Every error Tenure raises, in one tree.

TenureError
├── InvalidInput            a value that cannot be: says which argument and why (also a ValueError)
│   ├── InvalidPayload      a payload or result that is not JSON
│   ├── PayloadTooLarge     a payload or result over the limit
│   └── DependencyCycle     jobs of one call that wait for each other
├── NotFound                (also a LookupError)
│   ├── JobNotFound
│   ├── QueueNotFound
│   ├── ScheduleNotFound
│   └── DependencyNotFound  `after` names a job that does not exist
├── Conflict
│   ├── Duplicate           the id or the unique key is held by another job
│   └── LeaseLost           the job is no longer leased under this token
├── JobFailed               the job that was waited for is dead or cancelled
├── WaitTimeout             it had not ended in time (also a TimeoutError)
├── NoCurrentJob            current_job() outside of a running job
├── NotAllowed
│   ├── Unauthorized        no token, or one that is not known
│   └── Forbidden           not for this token
├── Busy                    too much is waiting to be committed, or the store stayed locked
├── Closed                  the handle was closed
└── StoreError              the store could not do its work; nothing of the operation happened
    ├── StoreRejected       the store does not take one of the operations
    ├── OutcomeUnknown      the store was lost in the middle of a commit: it may have happened
    ├── StoreFull
    ├── StoreReadOnly
    ├── NotAStore           the file is something else
    └── WrongVersion        made by a newer Tenure, or the library below is too old

Each has a stable `code` for programs. An engine answers with an error as a value where one
operation of a batch cannot be done; `Queue` raises it.
"""

from __future__ import annotations


class TenureError(Exception):
    """The root of every error that Tenure raises on purpose."""

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

    __hash__ = Exception.__hash__

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process boundaries, whatever their constructors take."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[TenureError], args: tuple[object, ...]) -> TenureError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError does not take them from there
    return error


class InvalidInput(TenureError, ValueError):
    """A value that cannot be; `field` says which."""

    code = "invalid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field)
        self.field = field
        self.reason = reason

    def within(self, what: str) -> InvalidInput:
        """The same error, of one part of a larger input."""
        return type(self)(f"{what}.{self.field}", self.reason)


class InvalidPayload(InvalidInput):
    """A payload or result that is not JSON."""

    code = "invalid_payload"


class PayloadTooLarge(InvalidInput):
    """A payload or result over the limit."""

    code = "payload_too_large"


class DependencyCycle(InvalidInput):
    """Jobs of one call that wait for each other, so that none could ever run."""

    code = "dependency_cycle"

    def __init__(self, ids: list[str]) -> None:
        super().__init__("after", f"these jobs wait for each other: {', '.join(ids)}")
        self.ids = ids


class NotFound(TenureError, LookupError):
    """Something that was named does not exist."""

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
    """The store's state does not allow it."""

    code = "conflict"


class Duplicate(Conflict):
    """The id or the unique key is held by another job, named in `job_id`."""

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
    """The job is no longer leased under this token: it ended, was cancelled, or another has it."""

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


class WaitTimeout(TenureError, TimeoutError):
    """The job that was waited for had not ended in time; it goes on."""

    code = "wait_timeout"

    def __init__(self, job_id: str, state: str, seconds: float) -> None:
        super().__init__(
            f"job {job_id!r} is {state} after {seconds:g} s of waiting; it goes on",
            id=job_id,
            state=state,
        )
        self.job_id = job_id
        self.state = state


class NoCurrentJob(TenureError):
    """No job is being worked on here."""

    code = "no_current_job"


class NotAllowed(TenureError):
    """A service does not do this for the caller."""

    code = "not_allowed"


class Unauthorized(NotAllowed):
    """No token, or one that is not known."""

    code = "unauthorized"


class Forbidden(NotAllowed):
    """The token does not allow it."""

    code = "forbidden"


class Busy(TenureError):
    """Too much is waiting to be committed, or the store stayed locked; try again later."""

    code = "busy"


class Closed(TenureError):
    """The handle was closed."""

    code = "closed"


class StoreError(TenureError):
    """The store could not do its work."""

    code = "store_error"


class StoreRejected(StoreError):
    """The store does not take one of the operations, and would not take it later; nothing of them
    happened."""

    code = "store_rejected"


class OutcomeUnknown(StoreError):
    """The store was lost in the middle of a commit, and cannot be asked whether it happened."""

    code = "outcome_unknown"


class StoreFull(StoreError):
    """The disk is full; nothing of the operation happened."""

    code = "store_full"


class StoreReadOnly(StoreError):
    """The store cannot be written to."""

    code = "store_read_only"


class NotAStore(StoreError):
    """The file is not a database, or it is damaged."""

    code = "not_a_store"


class WrongVersion(StoreError):
    """The store was made by a newer Tenure, or a library below is too old."""

    code = "wrong_version"
