"""Queries and their results, as data. A query reads one snapshot of a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tenure.errors import Busy, InvalidInput, TenureError
from tenure.model.fields import (
    MAX_GET,
    GrantedNames,
    Label,
    Moment,
    Name,
    PageLimit,
    QueueNames,
)
from tenure.model.history import Past
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Entry, Grant, Limit, Needs, Schedule
from tenure.model.records import Record
from tenure.model.summary import Summary

PAGE_BYTES = 4 * 1_048_576  # a page of jobs ends with the job that reaches this
JOBS_AT_ONCE = 25  # jobs that a list reads at once, whatever their sizes
MOST_SCANNED = 10_000  # jobs that one query looks at to find those that match its filter
MOST_SORTED = 5_000  # jobs that one query reads from an index and sorts
MOST_RELATED = 1_000  # jobs that wait for another, that one query looks at
MOST_WAITS = 100  # tenants whose waits one query looks up
MOST_HEADS = 10_000  # jobs next in line that it looks at for that
READ_SECONDS = 20.0  # after which a query is stopped, because others wait for the same readers


def took_too_long(seconds: float) -> Busy:
    """The error for a query that was stopped."""
    return Busy(
        f"the query took longer than {seconds:g} s and was stopped: name a queue and a state, or "
        "ask for a smaller page"
    )


class Get(NamedTuple):
    """The route of a query. What its path does not name is a parameter of the query string."""

    path: str
    summary: str


class Merge(NamedTuple):
    """How the lists of several shards become one list, sorted by these fields. Rows that have the
    same values in them are combined: the first one is kept, or the numbers are added up, or the
    largest ones are taken."""

    by: tuple[str, ...]
    how: Literal["first", "sum", "max"] = "first"


class Query(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="query", omit_defaults=True):
    """The base of every query. get: its HTTP route, unless it has none or a handler of its own.
    merge: how the results of shards are combined, unless the engine has code for it. partial:
    whether shards that are away may be left out. by_queue: it has a field `queue`, and finds what
    is about all tenants."""

    needs: ClassVar[Needs] = "read"
    get: ClassVar[Get | None] = None
    merge: ClassVar[Merge | None] = None
    partial: ClassVar[bool] = False
    by_queue: ClassVar[bool] = False


class Together(Query, frozen=True):
    """Several queries of one snapshot of a store: of each shard, if there are several. The result
    is a list of theirs, or of errors. A service does not accept it from clients."""

    queries: tuple[Query, ...]


class GrantedQuery(Query, frozen=True, kw_only=True):
    """The base of queries that find only what a grant allows."""

    grant: Grant | None = None


class JobQuery(GrantedQuery, frozen=True):
    """The base of queries about one job. The shard that has it answers."""

    id: Name


class SlotQuery(Query, frozen=True):
    """The base of queries about the slots under (scope, key). The shard that has them answers."""

    scope: Name
    key: Name


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selects jobs. A field that is None or empty matches everything. Times `after` are inclusive,
    times `before` are not. `worker` has, or last had, the job. `error` is the group of the last
    failure; an empty one matches nothing."""

    queue: Name | None = None
    states: tuple[State, ...] = ()
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None
    finished_before: Moment | None = None
    finished_after: Moment | None = None
    created_before: Moment | None = None
    created_after: Moment | None = None
    worker: Label | None = None
    error: Label | None = None

    @property
    def by_end(self) -> bool:
        """Whether a list is in the order in which jobs finished."""
        return len(self.states) == 1 and self.states[0] in FINAL and self.error is None


class GetJob(JobQuery, frozen=True):
    """One job by its id. Of a job that the grant does not allow, nothing large is read: the time
    must not tell that there is one."""

    get: ClassVar[Get | None] = Get("/v1/jobs/{id}", "Get a job.")


class GetJobs(GrantedQuery, frozen=True):
    """Jobs by id, in the order given; unknown ids are left out. The cursor of the Page is the index
    of the first id that did not fit. grant: whose jobs may be found."""

    ids: Annotated[tuple[Name, ...], Meta(max_length=MAX_GET)]


class ListPast(Query, frozen=True):
    """What operators did to a job, oldest first. Empty if there is no such job."""

    id: Name


class ListJobs(Query, frozen=True):
    """Jobs, newest first. With a single final state, and no error, the most recently finished
    first."""

    filter: Filter = Filter()
    limit: PageLimit = 50
    cursor: Label | None = None


class ListSummaries(Query, frozen=True):
    """Like ListJobs, but without payloads, results and tracebacks."""

    filter: Filter = Filter()
    limit: PageLimit = 50
    cursor: Label | None = None


class FindIds(Query, frozen=True):
    """Like ListJobs, but only the ids."""

    filter: Filter = Filter()
    limit: PageLimit = 1000
    cursor: Label | None = None


class FindByPrefix(Query, frozen=True):
    """The ids that start with a prefix, sorted, whatever their queues and states."""

    prefix: Name
    limit: PageLimit = 10


class FindByKey(GrantedQuery, frozen=True):
    """The unfinished jobs that hold a unique key, sorted by id, whatever their queues and tenants.
    One query looks at a bounded number of tenants: continue until there is no cursor. grant:
    whose jobs may be found."""

    unique_key: Name
    cursor: Label | None = None


class ListRelated(JobQuery, frozen=True):
    """The parents of a job, and the jobs that wait for it. grant: whose jobs may be found."""

    limit: PageLimit = 20

    @property
    def most(self) -> int:
        """How many of the jobs that wait for it to read: one more than are listed, or more, if
        some may be hidden."""
        return self.limit + 1 if self.grant is None else max(self.limit + 1, MOST_RELATED)


class NextDue(Query, frozen=True):
    """When the next delayed job of these queues becomes due, the next lease expires, or a rate that
    ready jobs wait for allows the next claim."""

    needs: ClassVar[Needs] = "work"
    queues: QueueNames


class OldestReady(Query, frozen=True):
    """When the longest-waiting ready job of these queues became ready. Only the next job in line of
    each tenant, group and priority is considered."""

    queues: QueueNames


class LongestWaits(Query, frozen=True):
    """How long the longest-waiting ready job of each of these tenants has been ready. As with
    OldestReady, only the next jobs in line are considered, and not more than MOST_HEADS of them."""

    merge: ClassVar[Merge | None] = Merge(("tenant",), "max")
    partial = True
    queue: Name
    tenants: Annotated[tuple[Label, ...], Meta(max_length=MOST_WAITS)]


class GetStats(Query, frozen=True):
    """Counts of one queue, or of all queues; if tenants are given, only of their jobs."""

    merge: ClassVar[Merge | None] = Merge(("queue",), "sum")
    partial = True
    queue: Name | None = None
    tenants: GrantedNames | None = None


class ListTenants(Query, frozen=True):
    """Counts of a queue's tenants, sorted by name, or of a single tenant."""

    merge: ClassVar[Merge | None] = Merge(("tenant",), "sum")
    queue: Name
    limit: PageLimit = 100
    after: Label | None = None
    tenant: Label | None = None


class ListGroups(Query, frozen=True):
    """Counts of the groups of a tenant in a queue, sorted by name."""

    merge: ClassVar[Merge | None] = Merge(("group",), "sum")
    get: ClassVar[Get | None] = Get(
        "/v1/queues/{queue}/tenants/{tenant}/groups",
        "List the groups of a tenant with their job counts, by name.",
    )
    queue: Name
    tenant: Label = ""
    limit: PageLimit = 100
    after: Label | None = None


class ListGroupTotals(Query, frozen=True):
    """How many jobs the groups of a queue have, all tenants together, sorted by name, or how many
    a single group has. Groups without jobs are left out."""

    merge: ClassVar[Merge | None] = Merge(("group",), "sum")
    get: ClassVar[Get | None] = Get(
        "/v1/queues/{queue}/group-totals",
        "List the groups of a queue with their jobs of all tenants, by name.",
    )
    queue: Name
    limit: PageLimit = 100
    after: Label | None = None
    group: Name | None = None


class ListLimits(Query, frozen=True):
    """Limits and pauses of one queue, or of all queues."""

    merge: ClassVar[Merge | None] = Merge(("queue", "tenant", "group"))
    get: ClassVar[Get | None] = Get(
        "/v1/queues/{queue}/limits", "List the limits and pauses of a queue."
    )
    queue: Name | None = None


class ListSlots(SlotQuery, frozen=True):
    """The holders of slots under (scope, key), sorted by name."""

    get: ClassVar[Get | None] = Get(
        "/v1/slots/{scope}/{key}", "List the slots that are held under a scope and key."
    )


class ListSchedules(Query, frozen=True):
    """All schedules, sorted by name."""

    get: ClassVar[Get | None] = Get("/v1/schedules", "List all schedules, by name.")


class GetTimetable(Query, frozen=True):
    """All schedules, sorted by name, and the store's current time."""


class Export(Query, frozen=True):
    """Jobs with everything Import needs, in enqueue order, starting after the cursor. With ids,
    only these, in this order and without a cursor; ids that no job has are left out."""

    needs: ClassVar[Needs] = "admin"
    limit: PageLimit = 1000
    cursor: Label | None = None
    ids: Annotated[tuple[Name, ...], Meta(max_length=MAX_GET)] | None = None


class Page(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of jobs, and the cursor of the next page. It has fewer jobs than requested if they are
    large (PAGE_BYTES), and may have none if few of those looked at match (MOST_SCANNED): continue
    until there is no cursor.

    scanned: how many jobs were looked at. scanned_to: if there is a cursor, when the last of them
    was created, or finished if the list is sorted by that."""

    jobs: list[Job]
    cursor: str | None = None
    scanned: int = 0
    scanned_to: int | None = None


class Summaries(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of summaries. The other fields are those of a Page."""

    jobs: list[Summary]
    cursor: str | None = None
    scanned: int = 0
    scanned_to: int | None = None


def fitting(jobs: Iterable[Job]) -> list[Job]:
    """The first of these jobs, as many as fit into a page, and at least one if there is any."""
    page: list[Job] = []
    size = 0
    for job in jobs:
        page.append(job)
        size += bytes_of(job)
        if size >= PAGE_BYTES:
            break
    return page


def page_of(query: GetJobs, jobs: Iterable[Job]) -> Page:
    """The result of GetJobs. jobs: all that exist, in order."""
    page: list[Job] = []
    size = 0
    for job in jobs:
        if query.grant is not None and not query.grant.allows(job.queue, job.tenant):
            continue
        if size >= PAGE_BYTES:
            return Page(page, str(query.ids.index(job.id)))
        page.append(job)
        size += bytes_of(job)
    return Page(page)


def bytes_of(job: Job) -> int:
    """The size of the parts of a job that can be large."""
    errors = sum([len(one.message) + len(one.traceback) for one in job.errors])
    return len(job.raw_payload) + len(job.raw_result) + errors


class Ids(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of ids, and the cursor of the next page. scanned: how many jobs were looked at."""

    ids: list[str]
    cursor: str | None = None
    scanned: int = 0


class RelatedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that another one waits for, or that waits for it."""

    id: str
    queue: str
    state: State
    run_at: int
    tenant: str = ""
    group: str = ""
    kind: str = ""


class Related(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """after: the first of its parents, in the order given, without deleted ones. before: the first
    of the jobs that wait for it, sorted by id, or some of them if there are more than 1,000; none
    once it is done. more: whether more jobs wait for it."""

    after: list[RelatedJob]
    before: list[RelatedJob]
    more: bool = False


def related_of(
    query: ListRelated, after: Iterable[Job | Summary], before: Iterable[Job | Summary]
) -> Related:
    """The result of ListRelated. before: the first `query.most`."""
    first, waiting = (
        [_related(job) for job in jobs if _seen(query, job)] for jobs in (after, before)
    )
    waiting.sort(key=lambda one: one.id)
    return Related(first, waiting[: query.limit], len(waiting) > query.limit)


def _seen(query: ListRelated, job: Job | Summary) -> bool:
    return query.grant is None or query.grant.allows(job.queue, job.tenant)


def _related(job: Job | Summary) -> RelatedJob:
    return RelatedJob(job.id, job.queue, job.state, job.run_at, job.tenant, job.group, job.kind)


class Exported(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of jobs, and the cursor of the next page. The last page has fewer than requested."""

    entries: list[Entry]
    cursor: str | None


class Due(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A time, which may be in the past; None if there is none."""

    at: int | None


class Counts(msgspec.Struct, frozen=True):
    """Jobs by state. A pending job is `delayed` until it is due, then `ready`."""

    waiting: int = 0
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def pending(self) -> int:
        """Delayed plus ready."""
        return self.delayed + self.ready

    @property
    def unfinished(self) -> int:
        """All jobs that have not finished."""
        return self.waiting + self.delayed + self.ready + self.leased


class QueueStats(Counts, frozen=True, kw_only=True):
    """The counts of one queue."""

    queue: str
    paused: bool = False


class Stats(Counts, frozen=True, kw_only=True):
    """The counts of all queues together, and of each queue. log_bytes: the size of the write-ahead
    log of a SQLite file, which grows while a program keeps a transaction open. away: the shards
    that do not respond, whose jobs are not counted."""

    queues: dict[str, QueueStats]
    log_bytes: int | None = None
    away: tuple[str, ...] = ()


def as_counts(counts: Counts) -> dict[str, int]:
    """The counts as a dict."""
    return {field.name: getattr(counts, field.name) for field in msgspec.structs.fields(Counts)}


def add(one: Counts, other: Counts) -> Counts:
    """The sum of two counts."""
    theirs = as_counts(other)
    return Counts(**{name: count + theirs[name] for name, count in as_counts(one).items()})


def overall(queues: list[QueueStats]) -> Stats:
    """The sum over all queues."""
    names = [field.name for field in msgspec.structs.fields(Counts)]
    sums = {name: sum(getattr(one, name) for one in queues) for name in names}
    return Stats(**sums, queues={one.queue: one for one in queues})


class TenantStats(Counts, frozen=True, kw_only=True):
    """The counts of one tenant in a queue."""

    queue: str
    tenant: str


class TenantWait(msgspec.Struct, frozen=True):
    """How long the longest-waiting ready job of a tenant has been ready."""

    tenant: str
    wait_ms: int


class GroupStats(Counts, frozen=True, kw_only=True):
    """The counts of one group of a tenant in a queue."""

    queue: str
    tenant: str
    group: str


class GroupTotal(msgspec.Struct, frozen=True):
    """How many jobs a group of a queue has, all tenants together."""

    queue: str
    group: str
    unfinished: int = 0
    finished: int = 0


class Slot(msgspec.Struct, frozen=True):
    """A slot that is held."""

    holder: str
    expires_at: int


class Timetable(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Schedules, and the store's current time, which decides when they are due."""

    now: int
    schedules: list[Schedule]


Found = (
    Job
    | Page
    | Summaries
    | Ids
    | Exported
    | Due
    | list[QueueStats]
    | list[TenantStats]
    | list[TenantWait]
    | list[GroupStats]
    | list[GroupTotal]
    | list[Limit]
    | list[Slot]
    | list[Past]
    | Related
    | list[Schedule]
    | list[Record]
    | Timetable
    | list[Any]
    | TenureError
)


def parse_cursor(cursor: str, parts: int) -> list[int] | InvalidInput:
    """The position that a cursor encodes."""
    try:
        start = [int(part) for part in cursor.split(".")] if cursor.isascii() else []
    except ValueError:
        start = []
    if len(start) == parts and all(0 <= part < 2**63 for part in start):
        return start
    return InvalidInput("cursor", f"{cursor!r} is not a cursor returned by a list")


# Queries that the server accepts from clients.
AnyQuery = (
    GetJob | GetJobs | ListJobs | ListSummaries | FindIds | FindByPrefix | FindByKey | NextDue
    | OldestReady | LongestWaits | ListRelated | GetStats | ListTenants | ListGroups
    | ListGroupTotals | ListLimits | ListSlots | ListSchedules | GetTimetable | ListPast
)  # fmt: skip

# The type of each result.
RESULTS: dict[type[Query], Any] = {
    GetJob: Job,
    GetJobs: Page,
    ListJobs: Page,
    ListSummaries: Summaries,
    FindIds: Ids,
    FindByPrefix: Ids,
    FindByKey: Ids,
    NextDue: Due,
    OldestReady: Due,
    GetStats: list[QueueStats],
    ListTenants: list[TenantStats],
    ListGroups: list[GroupStats],
    ListGroupTotals: list[GroupTotal],
    ListLimits: list[Limit],
    ListSlots: list[Slot],
    ListSchedules: list[Schedule],
    GetTimetable: Timetable,
    ListPast: list[Past],
    ListRelated: Related,
    LongestWaits: list[TenantWait],
}
