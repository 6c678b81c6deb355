"""Copying what belongs to tenants from one frozen shard to another, and removing it there.

Both shards accept no other changes meanwhile. So it can be repeated after it was interrupted: what
has been copied is skipped, and nothing is removed before everything has been copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tenure.core.fencing import Fence
from tenure.engines.sharded import catalog
from tenure.engines.sharded.catalog import ask
from tenure.engines.sharded.shard import Shard
from tenure.errors import Conflict, DependencyNotFound, NotFound, TenureError
from tenure.features import is_count
from tenure.features.steps.data import with_steps
from tenure.model import ops, queries
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Answer, Entry, Limit, Op
from tenure.model.pause_records import pause_key
from tenure.model.record_queries import ListRecords, every
from tenure.model.records import NewRecord, PutRecords, Record, Space

_IDS = 500  # jobs that are read together
_TOGETHER = 2_000  # jobs that are added or removed in one transaction
_RECORDS = 100  # records that are added or removed in one transaction
_BYTES = 2 * 2**20  # of payloads that are added together
_WITH_JOBS: tuple[Space, ...] = ("error", "audit", "past")  # written where the jobs are
BY_KEY: tuple[Space, ...] = ("rate", "bulk", "reply")  # written where their keys belong


class Carrier:
    """Carries things from one shard to another."""

    def __init__(self, source: Shard, target: Shard, mark: str) -> None:
        self.source = source
        self.target = target
        self._fence = Fence(mark)

    def put(self, batch: Sequence[Op]) -> list[Answer]:
        return _applied(self.target, batch, self._fence)

    def remove(self, batch: Sequence[Op]) -> list[Answer]:
        return _applied(self.source, batch, self._fence)

    # Jobs ---------------------------------------------------------------------------------------

    def entries(self, ids: Sequence[str]) -> list[Entry]:
        """The jobs that are still on the source."""
        found: list[Entry] = []
        for at in range(0, len(ids), _IDS):
            query = queries.Export(_IDS, ids=tuple(ids[at : at + _IDS]))
            found += ask(self.source, query, queries.Exported).entries
        return found

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise Conflict if a job of these waits for another one, or another one for one of these:
        they would be on different shards. Also if the target has another job of the same id."""
        self._check_ids(entries)
        mine = {entry.job.id for entry in entries}
        parents = [(e.job.id, p) for e in entries for p in e.waits_for if p not in mine]
        there = self._on_target([parent for _, parent in parents])
        for child, parent in parents:
            if parent not in there:
                raise _apart(child, parent)
        unfinished = {e.job.id for e in entries if e.job.state not in FINAL}
        waiting = sum(entry.job.state is State.WAITING for entry in entries)
        stats = ask(self.source, queries.GetStats(), list)
        if unfinished and sum(one.waiting for one in stats) > waiting:
            self._check_others(mine, unfinished)

    def _check_ids(self, entries: Sequence[Entry]) -> None:
        there = self._on_target([entry.job.id for entry in entries])
        for job in (entry.job for entry in entries):
            other = there.get(job.id, job)
            if _origin(other) != _origin(job):
                raise Conflict(
                    f"shards {self.source.name!r} and {self.target.name!r} have different jobs of "
                    f"the id {job.id!r}: open one of these stores by its own URL, and delete it"
                )

    def _on_target(self, ids: Sequence[str]) -> dict[str, Job]:
        found: dict[str, Job] = {}
        for at in range(0, len(ids), _IDS):
            query = queries.Export(_IDS, ids=tuple(ids[at : at + _IDS]))
            page = ask(self.target, query, queries.Exported)
            found |= {entry.job.id: entry.job for entry in page.entries}
        return found

    def _check_others(self, mine: set[str], unfinished: set[str]) -> None:
        where = queries.Filter(states=(State.WAITING,))
        cursor: str | None = None
        while True:
            query = queries.ListJobs(where, _IDS, cursor)
            page = ask(self.source, query, queries.Page)
            for job in page.jobs:
                parent = next((one for one in job.after if one in unfinished), None)
                if job.id not in mine and parent is not None:
                    raise _apart(job.id, parent)
            cursor = page.cursor
            if cursor is None:
                return

    def copy_jobs(self, entries: Sequence[Entry]) -> None:
        """Add the jobs to the target, in this order; those that it has are skipped."""
        part: list[Entry] = []
        size = 0
        for n, entry in enumerate(with_steps(self.source.read, entries), 1):
            part.append(entry)
            size += ops.bytes_of_entry(entry)
            if (len(part) >= _TOGETHER or size >= _BYTES or n == len(entries)) and self._import(
                part
            ):
                part, size = [], 0
        if part and not self._import(part):
            raise Conflict(f"job {part[0].job.id!r} waits for a job that is not on its shard")

    def _import(self, part: Sequence[Entry]) -> bool:
        """Returns False if a job depends on one that was enqueued after it."""
        (answer,) = self.target.apply([ops.Import(tuple(part))], self._fence)
        if isinstance(answer, TenureError) and not isinstance(answer, DependencyNotFound):
            raise answer
        return not isinstance(answer, TenureError)

    def remove_jobs(self, entries: Sequence[Entry]) -> None:
        """The last ones first, so that no job learns that one it waits for was removed."""
        ids = [entry.job.id for entry in reversed(entries)]
        for at in range(0, len(ids), _TOGETHER):
            self.remove([ops.Delete(tuple(ids[at : at + _TOGETHER]))])

    # What is beside the jobs --------------------------------------------------------------------

    def carry_limits(self, moves: Callable[[Limit], bool]) -> None:
        for limit in catalog.limits(self.source):
            if not moves(limit):
                continue
            self.put(_with_pause(limit, self.source))
            self.remove(_forget(limit))

    def carry_schedules(self, moves: Callable[[ops.Schedule], bool]) -> None:
        for schedule in catalog.schedules(self.source):
            if moves(schedule):
                self.put([ops.PutSchedule(schedule)])
                self.remove([ops.DropSchedule(schedule.name)])

    def carry_records(self, moves: Callable[[Space, str], bool], now: int) -> None:
        """Records of the source. Counts of errors get keys of their own, because the target may
        have counts under the same keys; readers add them up."""
        for space in (*_WITH_JOBS, *BY_KEY):
            all_ = every(lambda query: ask(self.source, query, list), space)
            found = [one for one in all_ if moves(space, one.key)]
            there = {
                one.key: one.value
                for one in every(lambda query: ask(self.target, query, list), space)
            }
            for at in range(0, len(found), _RECORDS):
                part = found[at : at + _RECORDS]
                self.put([PutRecords(tuple(self._renamed(one, space, there, now) for one in part))])
                self.remove([PutRecords(tuple(NewRecord(space, one.key, None) for one in part))])

    def _renamed(
        self, record: Record, space: Space, there: Mapping[str, bytes], now: int
    ) -> NewRecord:
        """The record under a key that the target does not have for another value. If it has this
        one, that was copied before the move was interrupted."""
        key = record.key
        if is_count(space, key):
            key += f"@{self.source.name}"
            while there.get(key, record.value) != record.value:
                key += "+"
        keep = None if record.expires_at is None else max(0, record.expires_at - now)
        return NewRecord(space, key, record.value, keep)


def _applied(shard: Shard, batch: Sequence[Op], fence: Fence) -> list[Answer]:
    answers = shard.apply(batch, fence)
    for answer in answers:
        if isinstance(answer, TenureError) and not isinstance(answer, NotFound):
            raise answer  # what is not found was removed before
    return answers


def _origin(job: Job) -> tuple[str, str, str, int]:
    """What tells two jobs of the same id apart."""
    return job.queue, job.tenant, job.group, job.created_at


def _apart(child: str, parent: str) -> Conflict:
    return Conflict(
        f"job {child!r} waits for job {parent!r}, and the two would be on different shards: run "
        "the command again when it has finished, or cancel one of them"
    )


def limit_ops(limit: Limit) -> list[Op]:
    """Operations that make the same limit on another shard."""
    names = (limit.queue, limit.tenant, limit.group)
    bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight)
    batch: list[Op] = [ops.SetLimit(*names, *bounds)] if any(bounds) else []
    return [*batch, ops.Pause(*names)] if limit.paused else batch


def _with_pause(limit: Limit, source: Shard) -> list[Op]:
    """The same limit, and who paused it."""
    key = pause_key(limit.queue, limit.tenant, limit.group)
    records = ask(source, ListRecords("pause", key, key, 1), list)
    kept = tuple(NewRecord("pause", key, one.value) for one in records)
    return [*limit_ops(limit), *([PutRecords(kept)] if kept else [])]


def _forget(limit: Limit) -> list[Op]:
    names = (limit.queue, limit.tenant, limit.group)
    gone = PutRecords((NewRecord("pause", pause_key(*names), None),))
    return [ops.ClearLimit(*names), ops.Resume(*names), gone]


def copy_common(
    source: Shard,
    target: Shard,
    mark: str,
    is_common: Callable[[Limit], bool],
    stays: Callable[[Limit], bool] = lambda limit: False,
) -> None:
    """Give a shard the limits and pauses that all shards have. It may have others of an earlier
    time, of which only some stay."""
    batch: list[Op] = []
    for old in catalog.limits(target):
        if not stays(old):
            batch += _forget(old)
    for limit in catalog.limits(source):
        if is_common(limit):
            batch += _with_pause(limit, source)
    if batch:
        _applied(target, batch, Fence(mark))


def counted(shard: Shard, of: Collection[str]) -> int:
    """How many jobs these tenants have on a shard."""
    if not of:
        return 0
    found = ask(shard, queries.GetStats(tenants=tuple(of)), list)
    return sum(catalog.total(one) for one in found)
