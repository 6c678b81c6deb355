"""The requests and responses of the native API."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from tenure.features import RESULTS, AnyOp, AnyQuery
from tenure.model import wire
from tenure.model.fields import (
    MAX_GROUPS_PER_CALL,
    MAX_OPS,
    Attempts,
    ClaimLimit,
    Concurrency,
    Cron,
    Label,
    MaintainLimit,
    Moment,
    Name,
    PageLimit,
    Percent,
    PositiveSeconds,
    Priority,
    Rate,
    Seconds,
    Weight,
    Zone,
)
from tenure.model.job import IfParentFails, Job, NewJob, State, null
from tenure.model.queries import (
    TenantStats,
)
from tenure.model.retry import Backoff

Wait = Annotated[float, Meta(ge=0, le=60)]
MAX_MANY = 1_000


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of request bodies and query strings. Unknown fields are rejected."""


# Requests ---------------------------------------------------------------------------------------


class JobBody(NewJob, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job to enqueue. Durations are in seconds, `run_at` is in milliseconds since 1970. `trace`
    is a traceparent, and overrides the header of that name."""

    # The fields of a NewJob in the same order, so that most bodies need not be converted.
    payload: Raw = msgspec.field(default_factory=null)
    queue: Name
    kind: Label = ""
    tenant: Label = ""
    group: Label = ""
    priority: Priority = 0
    max_attempts: Attempts = 3
    delay: Seconds = 0
    run_at: Moment | None = None  # type: ignore[assignment]
    id: Name | None = None
    unique_key: Name | None = None
    after: tuple[Name, ...] = ()
    if_parent_fails: IfParentFails = "wait"
    backoff: Backoff | None = None
    expires_in: PositiveSeconds | None = None
    timeout: PositiveSeconds | None = None
    trace: Annotated[str, Meta(max_length=55)] | None = None

    def new(self) -> NewJob:
        """The job, with `run_at` as a NewJob has it."""
        if self.run_at is None:
            return self
        values = msgspec.structs.asdict(self)
        values["run_at"] = datetime.fromtimestamp(self.run_at / 1000, UTC)
        return NewJob(**values)


class EnqueueQuery(Body):
    if_exists: Literal["error", "skip"] = "error"


class JobsQuery(Body):
    queue: Name | None = None
    state: State | None = None
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: str | None = None


class LiveBody(Body):
    """Selects jobs by id or by filter."""

    ids: Annotated[list[Name], Meta(max_length=MAX_MANY)] | None = None
    queue: Name | None = None
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None

    def of(self) -> dict[str, Any]:
        values = msgspec.structs.asdict(self)
        return {"jobs": values.pop("ids"), **values}


class WhichBody(LiveBody):
    """Selects jobs by id or by filter, optionally only those in one state."""

    state: State | None = None


class ClaimBody(Body):
    """`wait` is how many seconds to wait for a job if none is ready."""

    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    limit: ClaimLimit = 1
    lease: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    worker: Name = "http"
    tenant: Label | None = None
    not_groups: Annotated[list[Label], Meta(max_length=MAX_GROUPS_PER_CALL)] = []
    wait: Wait = 0


class LeaseBody(Body):
    """The id and token of a claimed job."""

    id: Name
    token: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class AckOne(LeaseBody):
    result: Raw = msgspec.field(default_factory=null)
    keep: bool = True
    then: Annotated[list[JobBody], Meta(max_length=MAX_MANY)] = []


class FailOne(LeaseBody):
    """`retry_in` is in seconds, and overrides the backoff. `fatal` makes the job dead without
    another attempt, `cancel` makes it cancelled."""

    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in: Seconds | None = None
    fatal: bool = False
    cancel: bool = False


class ReleaseOne(LeaseBody):
    delay: Seconds = 0


class AckBody(Body):
    jobs: Annotated[list[AckOne], Meta(max_length=MAX_MANY)]


class FailBody(Body):
    jobs: Annotated[list[FailOne], Meta(max_length=MAX_MANY)]


class ReleaseBody(Body):
    jobs: Annotated[list[ReleaseOne], Meta(max_length=MAX_MANY)]


class ExtendBody(Body):
    jobs: Annotated[list[LeaseBody], Meta(max_length=MAX_MANY)]
    lease: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class ProgressBody(Body):
    token: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    percent: Percent
    note: Label | None = None


class WaitQuery(Body):
    timeout: Wait = 30


class ScopeBody(Body):
    tenant: Label | None = None
    group: Name | None = None


class LimitBody(ScopeBody):
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    per: PositiveSeconds | None = None
    weight: Weight | None = None


class NamesQuery(Body):
    limit: PageLimit = 100
    after: Label | None = None


class TenantsQuery(NamesQuery):
    """With `waits`, the 100 tenants of the page that have the most ready jobs have a `wait_ms`."""

    waits: bool = False


class GroupsQuery(NamesQuery):
    tenant: Label = ""


class PurgeBody(Body):
    older_than: Seconds
    queue: Name | None = None
    state: list[State] | None = None


class SlotBody(Body):
    ttl: PositiveSeconds
    limit: Concurrency | None = None


class ScheduleBody(Body):
    cron: Cron
    job: JobBody
    tz: Zone = "UTC"
    catch_up: Literal["last", "all", "none"] = "last"


class MaintainBody(Body):
    limit: MaintainLimit = 1000


class OpsBody(Body):
    """A batch of operations. With a `key` it is applied once, however often it is sent. Sending
    different operations under the same key is a conflict. Batches are compared by `fingerprint` if
    it is given, otherwise by their operations."""

    ops: Annotated[list[AnyOp], Meta(max_length=MAX_OPS)]
    key: Name | None = None
    fingerprint: Name | None = None


class QueryBody(Body):
    query: AnyQuery


# Responses --------------------------------------------------------------------------------------


class TenantRow(TenantStats, frozen=True, kw_only=True):
    """A tenant of a queue. `wait_ms`: how long its longest-waiting ready job has been ready, if
    that was asked for and there is one."""

    wait_ms: int | None = None


class EnqueuedOne(msgspec.Struct):
    """One of several enqueued jobs. `created` is false if the job already existed."""

    id: str
    created: bool


class Jobs(msgspec.Struct):
    jobs: list[Job]


class ResultError(msgspec.Struct):
    code: str
    message: str


class Result(msgspec.Struct, omit_defaults=True):
    """The outcome for one of several jobs: its state, or the error."""

    id: str
    ok: bool
    state: State | None = None
    error: ResultError | None = None


class Results(msgspec.Struct):
    results: list[Result]


class Count(msgspec.Struct):
    count: int


class Corrections(msgspec.Struct):
    corrected: dict[str, int]


class Done(msgspec.Struct):
    ok: bool = True


class Applied(msgspec.Struct):
    """The result of each operation, in order."""

    answers: list[wire.Written]


T = TypeVar("T")


class Found(msgspec.Struct, Generic[T]):
    """The result of a query."""

    found: T


if TYPE_CHECKING:
    AnyFound = Found[Any]
else:  # the result of any query, for the description
    AnyFound = reduce(or_, [Found[kind] for kind in dict.fromkeys(RESULTS.values())])
