"""Finding the shard of a job by its id.

Ids do not say which shard a job is on. This process remembers where it claimed a job, and asks all
shards for others. An id that is found on two shards is an error: two tenants chose it at the same
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from tenure.engines.sharded.shard import Shard
from tenure.errors import Conflict, StoreError, TenureError
from tenure.model import queries
from tenure.model.fields import MAX_GET
from tenure.model.job import Job
from tenure.model.ops import Grant

_MOST_KNOWN = 50_000  # ids in each of the two parts of what is remembered
_AMBIGUOUS = -1

Place = int | TenureError | None  # of a job: None if there is no such job


class Each(Protocol):
    """Returns the results, or errors, of all shards. enough: whether to wait only for a moment for
    a silent one, by the results of the others."""

    def __call__(
        self,
        call: Callable[[Shard], object],
        *,
        enough: Callable[[int, Collection[object]], bool] | None = None,
    ) -> list[object]: ...


class Hints:
    """Where jobs were seen last, as far as this process remembers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: dict[str, int] = {}
        self._old: dict[str, int] = {}
        self.generation = 0  # grows when tenants are moved

    def get(self, job_id: str) -> int | None:
        place = self._new.get(job_id)
        if place is None:
            place = self._old.get(job_id)
        return None if place == _AMBIGUOUS else place

    def note(self, ids: Iterable[str], shard: int, generation: int) -> None:
        """generation: the one when the shard was asked. If tenants were moved since, the place is
        outdated."""
        with self._lock:
            if generation != self.generation:
                return
            if len(self._new) >= _MOST_KNOWN:
                self._old, self._new = self._new, {}
            for job_id in ids:
                known = self._new.get(job_id, self._old.get(job_id, shard))
                self._new[job_id] = shard if known == shard else _AMBIGUOUS

    def drop(self, job_id: str) -> None:
        with self._lock:
            self._new.pop(job_id, None)
            self._old.pop(job_id, None)

    def clear(self) -> None:
        with self._lock:
            self._new, self._old = {}, {}
            self.generation += 1


class Locator:
    """Finds jobs."""

    def __init__(self, shards: Sequence[Shard], each: Each, is_moving: Callable[[], bool]) -> None:
        """is_moving: whether tenants are being moved, so that two shards may have a job for a
        moment."""
        self._shards = shards
        self._each = each
        self._is_moving = is_moving
        self.hints = Hints()

    def search(
        self, ids: Sequence[str], grant: Grant | None = None, *, brief: bool = False
    ) -> dict[str, Place]:
        """Ask all shards for jobs. grant: whose jobs count, if an id is found more than once.
        brief: do not wait for a silent shard that may have one of them."""
        found: dict[str, list[int]] = {job_id: [] for job_id in ids}
        trouble: TenureError | None = None

        def enough(number: int, on: Collection[object]) -> bool:
            has = {job_id for some in on if isinstance(some, list) for job_id in some}
            return has.issuperset(found) or (brief and any(isinstance(one, list) for one in on))

        those_on = self._each(lambda shard: _those_on(shard, list(found)), enough=enough)
        for number, has in enumerate(those_on):
            if isinstance(has, TenureError):
                trouble = has
                continue
            assert isinstance(has, list)
            for job_id in has:
                found[job_id].append(number)
        return {job_id: self._decided(job_id, on, trouble, grant) for job_id, on in found.items()}

    def _decided(
        self, job_id: str, on: list[int], trouble: TenureError | None, grant: Grant | None
    ) -> Place:
        if len(on) > 1 and grant is not None:
            on = [number for number in on if jobs_on(self._shards[number], [job_id], grant)]
        if len(on) > 1 and not self._is_moving():
            names = " and ".join(self._shards[number].name for number in on)
            return Conflict(
                f"jobs of different tenants have the id {job_id!r}, on shards {names}: open one of "
                "these stores by its own URL, and delete the job there"
            )
        if on:
            return on[0]
        if trouble is not None:
            return StoreError(f"job {job_id!r} is not on the other shards, but {trouble.message}")
        return None

    def elsewhere(
        self, ids: Sequence[str], but: int | None, grant: Grant | None = None
    ) -> dict[str, Job]:
        """Jobs of these ids that shards other than `but` have. Shards that are away are skipped."""
        mine = None if but is None else self._shards[but]
        found: dict[str, Job] = {}
        for jobs in self._each(lambda shard: [] if shard is mine else jobs_on(shard, ids, grant)):
            if isinstance(jobs, list):
                found |= {job.id: job for job in jobs}
        return found


def _those_on(shard: Shard, ids: Sequence[str]) -> list[str]:
    """Which of these ids a shard has, without reading the jobs."""
    has = []
    for job_id in ids:
        first = shard.read(queries.FindByPrefix(job_id, 1))
        if isinstance(first, TenureError):
            raise first
        assert isinstance(first, queries.Ids)
        if first.ids == [job_id]:
            has.append(job_id)
    return has


def jobs_on(shard: Shard, ids: Sequence[str], grant: Grant | None) -> list[Job]:
    """The jobs of these ids that a shard has, and that the grant allows."""
    jobs: list[Job] = []
    start = 0
    while start < len(ids):
        some = tuple(ids[start : start + MAX_GET])
        page = shard.read(queries.GetJobs(some, grant=grant))
        if isinstance(page, TenureError):
            raise page
        assert isinstance(page, queries.Page)
        jobs += page.jobs
        start += len(some) if page.cursor is None else int(page.cursor)
    return jobs
