"""Copying a whole store into another, of any engine: jobs, limits and schedules.

The copy uses only operations and queries. Slots in both stores record that a copy is in progress
and how far it is, so it can be interrupted at any point and resumed. Jobs are copied page by page
in the order in which they were enqueued; a job that the target already has is skipped, so no job
is copied twice.

Both stores are paused during the copy. The source stays paused afterwards, because its jobs now
run from the target.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from tenure.clock import Clock
from tenure.engines import Engine, HasShards
from tenure.errors import Conflict, DependencyNotFound, InvalidInput, TenureError
from tenure.features.steps.data import with_steps
from tenure.model import ops, queries
from tenure.model.fields import MAX_SPAN_MS
from tenure.model.job import State
from tenure.model.ops import Entry, Limit, Op
from tenure.model.queries import Counts, Query
from tenure.observe.logs import counted

Leased = Literal["refuse", "requeue"]
T = TypeVar("T")

SCOPE = "tenure.copy"  # scope of the slots that mark a copy
TO, FROM = "to", "from"  # their keys in the source and in the target
DONE = "done"
LOOK_SECONDS = 0.1  # between two checks for running jobs
FIRST_PAGE, LARGEST_PAGE = 200, 2_000  # jobs
PAGE_BYTES = 2 * 2**20
JOB_BYTES = 500  # rough size of a job without its payload and result


class Copy:
    """A copy from one store to another; `run` it."""

    def __init__(self, source: Engine, target: Engine, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._id = ""
        self._run = uuid.uuid4().hex  # the run that started last is the one that continues
        self._pages = 0  # pages copied, including earlier runs
        self.resumed: bool = False  # an earlier run was interrupted
        self.over: bool = False  # an earlier run finished: only copy what was added since
        self.total: int = 0  # jobs in the source
        self.before: int = 0  # jobs copied by earlier runs, if this run continues them
        self.copied: int = 0  # jobs copied by this run
        self.passed_over: int = 0  # jobs skipped, because the target already had them
        self.paused: list[str] = []  # queues of the source that this run paused
        self.limits: int = 0
        self.schedules: int = 0

    def run(
        self,
        leased: Leased = "refuse",
        wait_seconds: float = 0.0,
        on_wait: Callable[[int], object] = lambda running: None,
        on_page: Callable[[], object] = lambda: None,
    ) -> None:
        """Copy everything. Raises Conflict if the target is not empty, or if jobs of the source
        are still leased after `wait_seconds` and leased="refuse"."""
        self._begin()
        self._pause()
        try:
            self._wait_for_running(leased, wait_seconds, on_wait)
        except Conflict:
            if not self.resumed:
                self._undo()
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
        """Resume the copy that was started before, if any; otherwise start one."""
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
        self._refuse_shared_limits()
        self._id = uuid.uuid4().hex
        _apply(self._source, [_mark(TO, self._id)])
        if self._id in _marks(self._target, TO):
            _apply(self._source, [_unmark(TO, self._id)])
            raise InvalidInput("target", "is the same store as the source")
        before = [name for name, one in self._stats(self._source).items() if one.paused]
        marks = [_mark(self._paused_before, name) for name in before]
        _apply(self._target, [*marks, _mark(FROM, self._id)])
        self._take_over()

    def _take_over(self) -> None:
        """Take over from another run of the same copy, which may still be running."""
        others = [_unmark(self._runs, one) for one in _marks(self._target, self._runs)]
        _apply(self._target, [_mark(self._runs, self._run), *others])

    def _check_is_only_run(self) -> None:
        if _marks(self._target, self._runs) != [self._run]:
            raise Conflict("another run of this copy has taken over: let that one finish")

    @property
    def _runs(self) -> str:
        """The key of the mark that names the current run."""
        return f"{self._id} runs"

    @property
    def _paused_before(self) -> str:
        """The key of the marks that name the queues that were paused before the copy."""
        return f"{self._id} paused"

    def _refuse_a_used_target(self) -> None:
        jobs = sum(map(_sum, self._stats(self._target).values()))
        limits = len(_read(self._target, queries.ListLimits(), list))
        schedules = len(_read(self._target, queries.ListSchedules(), list))
        if jobs or limits or schedules:
            raise Conflict(
                f"the target is in use: it has {counted(jobs, 'job')}, "
                f"{counted(limits, 'limit')} and {counted(schedules, 'schedule')} that do not come "
                "from this copy; nothing was changed: use a new file, database or schema"
            )

    def _refuse_shared_limits(self) -> None:
        """Reject limits of whole queues, which shards cannot enforce, before changing anything."""
        if not isinstance(self._target, HasShards):
            return
        for limit in _read(self._source, queries.ListLimits(), list):
            if limit.tenant is None and (limit.concurrency or limit.rate):
                raise Conflict(
                    f"queue {limit.queue!r} has a limit as a whole, which shards cannot enforce; "
                    "nothing was changed: clear it, or limit each tenant (tenant='*')"
                )

    # Making sure that no worker is active -------------------------------------------------------

    def _pause(self) -> None:
        stats = self._stats(self._source)
        self.paused = [name for name, one in stats.items() if not one.paused]
        _apply(self._source, [ops.Pause(name) for name in self.paused])

    def _wait_for_running(
        self, leased: Leased, wait_seconds: float, on_wait: Callable[[int], object]
    ) -> None:
        """Wait for running jobs to finish; then release those that remain, or raise Conflict."""
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
                "workers, wait longer, or requeue the jobs so that they run again in the target"
            )
        while some := self._leased():
            self._source.apply(some)  # errors do not matter: a job that finished is not found again

    def _running(self) -> int:
        """How many jobs are leased, not counting expired leases."""
        after: str | None = ""
        while after is not None:
            (done,) = self._source.apply([ops.Maintain(after=after)])
            if isinstance(done, TenureError):
                raise done
            assert isinstance(done, ops.Maintained)
            after = done.after
        return sum(one.leased for one in self._stats(self._source).values())

    def _leased(self) -> list[Op]:
        """Operations that release leased jobs without counting the attempt, as a stopping worker
        does."""
        where = queries.Filter(states=(State.LEASED,))
        page = queries.Page([], None)
        while True:  # a page may be empty before the last one
            page = _read(
                self._source, queries.ListJobs(where, FIRST_PAGE, page.cursor), queries.Page
            )
            if page.jobs or page.cursor is None:
                return [ops.Release(job.id, job.token) for job in page.jobs]

    def _undo(self) -> None:
        """Undo what this run changed in both stores."""
        _apply(self._source, [ops.Resume(name) for name in self.paused])
        _apply(self._source, [_unmark(TO, self._id)])
        before = _marks(self._target, self._paused_before)
        marks = [_unmark(self._paused_before, name) for name in before]
        _apply(self._target, [*marks, _unmark(self._runs, self._run), _unmark(FROM, self._id)])

    # Copying ------------------------------------------------------------------------------------

    def _copy_limits(self) -> None:
        limits = [_limit_ops(limit) for limit in _read(self._source, queries.ListLimits(), list)]
        _apply(self._target, [op for of_one in limits for op in of_one])
        self.limits = sum(map(bool, limits))

    def _arrived(self) -> str | None:
        """The cursor that an earlier run reached, if any."""
        marks = [mark for mark in _marks(self._target, self._id) if mark != DONE]
        number, _, cursor = max(marks, default="0").partition(" ")
        self._pages = int(number)
        return cursor or None

    def _copy_jobs(self, cursor: str | None, on_page: Callable[[], object]) -> None:
        size, entries, marks = FIRST_PAGE, list[Entry](), list[Op]()
        while True:
            page = _read(self._source, queries.Export(size, cursor), queries.Exported)
            entries += with_steps(self._source.read, page.entries)
            self._check_is_only_run()
            refused = self._import(entries, marks)
            cursor = page.cursor
            if isinstance(refused, DependencyNotFound) and page.entries:
                continue  # a job may depend on one that was enqueued after it
            if refused is not None:
                raise refused
            on_page()
            if len(page.entries) < size:
                return
            # Recorded together with the next page; if a page is repeated, its jobs are skipped.
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

    # Finishing ----------------------------------------------------------------------------------

    def _compare_and_finish(self, on_page: Callable[[], object]) -> None:
        if self._differences():
            self._copy_jobs(None, on_page)  # a job may have appeared before the cursor
        if different := self._differences():
            raise Conflict(
                f"the source changed during the copy: {'; '.join(different)}. Stop everything "
                "that uses the two stores, and run the copy again"
            )
        schedules = _read(self._source, queries.ListSchedules(), list)
        self.schedules = len(schedules)
        paused = _marks(self._target, self._paused_before)
        names = self._stats(self._source).keys() - set(paused)
        batch: list[Op] = [ops.PutSchedule(one) for one in schedules]
        batch += [ops.Resume(name) for name in sorted(names)]
        batch += [_unmark(self._id, one) for one in _marks(self._target, self._id)]
        batch += [_unmark(self._paused_before, name) for name in paused]
        self._check_is_only_run()
        _apply(self._target, [*batch, _mark(self._id, DONE)])

    def _differences(self) -> list[str]:
        """Queues where the target lacks jobs of the source. Finished jobs of the source may have
        been removed since they were copied."""
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
    """Operations that recreate a limit. The pause of a whole queue is set at the end."""
    names = (limit.queue, limit.tenant, limit.group)
    bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight)
    batch: list[Op] = [ops.SetLimit(*names, *bounds)] if any(bounds) else []
    if limit.paused and limit.tenant is not None:
        batch.append(ops.Pause(*names))
    return batch


def _next_size(size: int, entries: list[Entry]) -> int:
    """How many jobs the next page should have, so that it is about PAGE_BYTES long."""
    found = sum(ops.bytes_of_entry(entry) + JOB_BYTES for entry in entries)
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
    """Apply the operations; raises the first error among the answers."""
    for answer in engine.apply(batch) if batch else []:
        if isinstance(answer, TenureError):
            raise answer
