"""Copying a whole store into another, of whatever engine: jobs, limits and schedules.

Only operations and queries are used. That a copy is under way, and how far it is, is marked in both
stores by slots, so that one that was ended at any point can be taken up again. Jobs go over page by
page in the order in which they were enqueued, and one that is there already is passed over: no job
is there twice.

While the copy is under way both stores are paused. The source stays so, since the jobs in it are
worked on elsewhere from then on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from tenure.clock import Clock
from tenure.engines import Engine
from tenure.errors import Conflict, DependencyNotFound, InvalidInput, TenureError
from tenure.model import ops, queries
from tenure.model.fields import MAX_SPAN_MS
from tenure.model.job import State
from tenure.model.ops import Entry, Limit, Op
from tenure.model.queries import Counts, Query

Leased = Literal["refuse", "requeue"]
T = TypeVar("T")

SCOPE = "tenure.copy"  # of the slots that mark a copy
TO, FROM = "to", "from"  # their keys in the source and in the target
DONE = "done"
LOOK_SECONDS = 0.1  # between two looks at what still runs
FIRST_PAGE, LARGEST_PAGE = 200, 2_000  # jobs
PAGE_BYTES = 2 * 2**20
JOB_BYTES = 500  # about, of a job beside its payload and result


class Copy:
    """A copy from one store to another; `run` it."""

    def __init__(self, source: Engine, target: Engine, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._id = ""
        self._run = uuid.uuid4().hex  # the last to begin is the one that goes on
        self._pages = 0  # that were brought, by earlier runs as well
        self.resumed = False  # an earlier run had begun
        self.over = False  # an earlier run had ended: only what came since is brought
        self.total = 0  # jobs in the source
        self.before = 0  # jobs that earlier runs have brought, if this one goes on after them
        self.copied = 0  # jobs that were brought by this run
        self.passed_over = 0  # jobs that were there
        self.paused: list[str] = []  # queues of the source that this run has paused
        self.limits = self.schedules = 0

    def run(
        self,
        leased: Leased = "refuse",
        wait_seconds: float = 0.0,
        on_wait: Callable[[int], object] = lambda running: None,
        on_page: Callable[[], object] = lambda: None,
    ) -> None:
        """Copy all that there is. Raises Conflict if the target is not empty, or if jobs of the
        source still run after the time given and are not to be taken from their workers."""
        self._begin()
        self._pause()
        try:
            self._let_end(leased, wait_seconds, on_wait)
        except Conflict:
            if not self.resumed:
                self._call_off()
            raise
        stats = self._stats(self._source)
        self.total = sum(map(_sum, stats.values()))
        if not self.over:
            _apply(self._target, [ops.Pause(name) for name in stats])
            self._copy_limits()
        arrived = self._arrived()
        if arrived is not None:
            self.before = sum(map(_sum, self._stats(self._target).values()))
        self._copy_jobs(arrived, on_page)
        if not self.over:
            self._compare_and_finish(on_page)

    # Which copy it is ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Find the copy that was begun before, or begin one."""
        begun = set(_marks(self._source, TO)) & set(_marks(self._target, FROM))
        if begun:
            self._id = min(begun)
            self.resumed = True
            self._take_over()
            self.over = DONE in _marks(self._target, self._id)
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._refuse_a_used_target()
        self._id = uuid.uuid4().hex
        _apply(self._source, [_mark(TO, self._id)])
        if self._id in _marks(self._target, TO):
            _apply(self._source, [_unmark(TO, self._id)])
            raise InvalidInput("target", "is the store that is to be copied")
        before = [name for name, one in self._stats(self._source).items() if one.paused]
        marks = [_mark(self._paused_before, name) for name in before]
        _apply(self._target, [*marks, _mark(FROM, self._id)])
        self._take_over()

    def _take_over(self) -> None:
        """From another run of the same copy, which may be under way still."""
        others = [_unmark(self._runs, one) for one in _marks(self._target, self._runs)]
        _apply(self._target, [_mark(self._runs, self._run), *others])

    def _refuse_to_go_on_beside_another(self) -> None:
        if _marks(self._target, self._runs) != [self._run]:
            raise Conflict("another run of this copy has taken over: let that one end")

    @property
    def _runs(self) -> str:
        """The key of the mark that names the run that goes on."""
        return f"{self._id} runs"

    @property
    def _paused_before(self) -> str:
        """The key of the marks that name queues which were paused before the copy."""
        return f"{self._id} paused"

    def _refuse_a_used_target(self) -> None:
        jobs = sum(map(_sum, self._stats(self._target).values()))
        limits = len(_read(self._target, queries.ListLimits(), list))
        schedules = len(_read(self._target, queries.ListSchedules(), list))
        if jobs or limits or schedules:
            raise Conflict(
                f"the target is in use: it has {jobs:,} jobs, {limits:,} limits and "
                f"{schedules:,} schedules that are not of this copy; nothing was changed: "
                "give a new file, database or schema"
            )

    # Making sure that nobody works on it --------------------------------------------------------

    def _pause(self) -> None:
        stats = self._stats(self._source)
        self.paused = [name for name, one in stats.items() if not one.paused]
        _apply(self._source, [ops.Pause(name) for name in self.paused])

    def _let_end(
        self, leased: Leased, wait_seconds: float, on_wait: Callable[[int], object]
    ) -> None:
        """Wait for what runs; then take it from its workers, or refuse."""
        deadline = self._clock.monotonic() + wait_seconds
        while running := self._running():
            on_wait(running)
            if self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(LOOK_SECONDS)
        if not running:
            return
        if leased == "refuse":
            raise Conflict(
                f"{running:,} jobs of the source are still leased; nothing was copied: stop the "
                "workers, wait longer, or have the jobs given back and run again in the target"
            )
        while some := self._leased():
            self._source.apply(some)  # one that has ended meanwhile is none of the next

    def _running(self) -> int:
        """How many jobs are leased, once leases that ran out are ended."""
        _apply(self._source, [ops.Maintain()])
        return sum(one.leased for one in self._stats(self._source).values())

    def _leased(self) -> list[Op]:
        """What gives leased jobs back, with their attempt, as a worker does that is stopped."""
        where = queries.Filter(states=(State.LEASED,))
        page = _read(self._source, queries.ListJobs(where, FIRST_PAGE), queries.Page)
        return [ops.Release(job.id, job.token) for job in page.jobs]

    def _call_off(self) -> None:
        """Leave both stores as they were."""
        _apply(self._source, [ops.Resume(name) for name in self.paused])
        _apply(self._source, [_unmark(TO, self._id)])
        before = _marks(self._target, self._paused_before)
        marks = [_unmark(self._paused_before, name) for name in before]
        _apply(self._target, [*marks, _unmark(self._runs, self._run), _unmark(FROM, self._id)])

    # What there is to copy ----------------------------------------------------------------------

    def _copy_limits(self) -> None:
        limits = [_limit_ops(limit) for limit in _read(self._source, queries.ListLimits(), list)]
        _apply(self._target, [op for of_one in limits for op in of_one])
        self.limits = sum(map(bool, limits))

    def _arrived(self) -> str | None:
        """The cursor at which an earlier run had arrived, if it had."""
        marks = [mark for mark in _marks(self._target, self._id) if mark != DONE]
        number, _, cursor = max(marks, default="0").partition(" ")
        self._pages = int(number)
        return cursor or None

    def _copy_jobs(self, cursor: str | None, on_page: Callable[[], object]) -> None:
        size, entries, marks = FIRST_PAGE, list[Entry](), list[Op]()
        while True:
            page = _read(self._source, queries.Export(size, cursor), queries.Exported)
            entries += page.entries
            self._refuse_to_go_on_beside_another()
            refused = self._import(entries, marks)
            cursor = page.cursor
            if isinstance(refused, DependencyNotFound) and page.entries:
                continue  # a job may wait for one that was named after it
            if refused is not None:
                raise refused
            on_page()
            if len(page.entries) < size:
                return
            # It is marked with the next page: what is repeated is passed over.
            marks = [] if self.over else self._mark_arrival(str(cursor))
            size, entries = _next_size(size, entries), []

    def _mark_arrival(self, cursor: str) -> list[Op]:
        before = [_unmark(self._id, mark) for mark in _marks(self._target, self._id)]
        self._pages += 1
        return [_mark(self._id, f"{self._pages:09} {cursor}"), *before]

    def _import(self, entries: list[Entry], marks: list[Op]) -> TenureError | None:
        answer = self._target.apply([*marks, ops.Import(tuple(entries))])[-1]
        if isinstance(answer, TenureError):
            return answer
        assert isinstance(answer, ops.Enqueued)
        self.copied += sum(answer.created)
        self.passed_over += len(answer.created) - sum(answer.created)
        return None

    # The end ------------------------------------------------------------------------------------

    def _compare_and_finish(self, on_page: Callable[[], object]) -> None:
        if self._differences():
            self._copy_jobs(None, on_page)  # a job may have been enqueued before the cursor
        if different := self._differences():
            raise Conflict(
                f"the source has changed during the copy: {'; '.join(different)}. Stop whoever "
                "uses the two stores, and run this again"
            )
        schedules = _read(self._source, queries.ListSchedules(), list)
        self.schedules = len(schedules)
        paused = _marks(self._target, self._paused_before)
        names = self._stats(self._source).keys() - set(paused)
        batch: list[Op] = [ops.PutSchedule(one) for one in schedules]
        batch += [ops.Resume(name) for name in sorted(names)]
        batch += [_unmark(self._id, one) for one in _marks(self._target, self._id)]
        batch += [_unmark(self._paused_before, name) for name in paused]
        self._refuse_to_go_on_beside_another()
        _apply(self._target, [*batch, _mark(self._id, DONE)])

    def _differences(self) -> list[str]:
        """Where the target has not what the source has; finished jobs may have been removed."""
        ours, theirs = self._stats(self._source), self._stats(self._target)
        found = []
        for name, one in ours.items():
            a, b = _told(one), _told(theirs.get(name, Counts()))
            missing = any(a[state] > b[state] for state in a)
            if missing or a["unfinished"] != b["unfinished"]:
                found.append(f"queue {name!r} has {a} in the source and {b} in the target")
        return found

    def _stats(self, engine: Engine) -> dict[str, queries.QueueStats]:
        return {one.queue: one for one in _read(engine, queries.GetStats(), list)}


def _told(counts: Counts) -> dict[str, int]:
    return {
        "unfinished": counts.unfinished,
        "done": counts.done,
        "dead": counts.dead,
        "cancelled": counts.cancelled,
    }


def _sum(counts: Counts) -> int:
    return sum(_told(counts).values())


def _limit_ops(limit: Limit) -> list[Op]:
    """What makes a limit as it is; the pause of a queue is for the end."""
    names = (limit.queue, limit.tenant, limit.group)
    bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight)
    batch: list[Op] = [ops.SetLimit(*names, *bounds)] if any(bounds) else []
    if limit.paused and limit.tenant is not None:
        batch.append(ops.Pause(*names))
    return batch


def _next_size(size: int, entries: list[Entry]) -> int:
    """How many jobs the next page may have, so that it has neither too few bytes nor too many."""
    found = sum(
        len(entry.job.raw_payload) + len(entry.job.raw_result) + JOB_BYTES for entry in entries
    )
    fitting = PAGE_BYTES * len(entries) // found
    return max(1, min(fitting, 4 * size, LARGEST_PAGE))


def _mark(key: str, holder: str) -> Op:
    return ops.TakeSlot(SCOPE, key, holder, MAX_SPAN_MS)


def _unmark(key: str, holder: str) -> Op:
    return ops.DropSlot(SCOPE, key, holder)


def _marks(engine: Engine, key: str) -> list[str]:
    return [slot.holder for slot in _read(engine, queries.ListSlots(SCOPE, key), list)]


def _read(engine: Engine, query: Query, kind: type[T]) -> T:
    found = engine.read(query)
    if isinstance(found, TenureError):
        raise found
    assert isinstance(found, kind)
    return found


def _apply(engine: Engine, batch: Sequence[Op]) -> None:
    """Have all of it done; raises what one of them is answered that cannot be."""
    for answer in engine.apply(batch) if batch else []:
        if isinstance(answer, TenureError):
            raise answer
