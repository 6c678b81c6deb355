"""What is on a shard: its tenants, and the ids of the jobs of those that will move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from tenure.engines.sharded.shard import Shard
from tenure.errors import TenureError
from tenure.model import queries
from tenure.model.job import Job
from tenure.model.ops import Limit, Schedule
from tenure.model.queries import Query

PAGE = 1_000
T = TypeVar("T")


def ask(shard: Shard, query: Query, kind: type[T]) -> T:
    found = shard.read(query)
    if isinstance(found, TenureError):
        raise found
    assert isinstance(found, kind)
    return found


def limits(shard: Shard) -> list[Limit]:
    return ask(shard, queries.ListLimits(), list)


def schedules(shard: Shard) -> list[Schedule]:
    return ask(shard, queries.ListSchedules(), list)


def tenants(shard: Shard) -> dict[str, int]:
    """The tenants of a shard, and how many jobs each has. Those with only limits or schedules have
    none."""
    found: dict[str, int] = {}
    for name in (one.queue for one in ask(shard, queries.GetStats(), list)):
        for tenant, count in _of_queue(shard, name):
            found[tenant] = found.get(tenant, 0) + count
    for limit in limits(shard):
        if limit.tenant is not None and limit.tenant != "*":
            found.setdefault(limit.tenant, 0)
    for schedule in schedules(shard):
        found.setdefault(schedule.job.tenant, 0)
    return found


def _of_queue(shard: Shard, queue: str) -> Iterator[tuple[str, int]]:
    after: str | None = None
    while True:
        page = ask(shard, queries.ListTenants(queue, PAGE, after), list)
        yield from ((one.tenant, total(one)) for one in page)
        if len(page) < PAGE:
            return
        after = page[-1].tenant


def total(counts: queries.Counts) -> int:
    return counts.unfinished + counts.done + counts.dead + counts.cancelled


class Catalog:
    """The ids of a shard's jobs by tenant, in the order in which they were enqueued."""

    def __init__(self, shard: Shard, wanted: Callable[[Job], bool]) -> None:
        """wanted: whether a job may have to move."""
        self._shard = shard
        self._wanted = wanted
        self._cursor: str | None = None
        self._ids: dict[str, dict[str, None]] = {}

    def update(self, on_page: Callable[[int], object] = lambda jobs: None) -> None:
        """Read what was added since the last time."""
        while True:
            page = ask(self._shard, queries.Export(PAGE, self._cursor), queries.Exported)
            for entry in page.entries:
                if self._wanted(entry.job):
                    self._ids.setdefault(entry.job.tenant, {})[entry.job.id] = None
            self._cursor = page.cursor
            on_page(len(page.entries))
            if len(page.entries) < PAGE:
                return

    def ids(self, of: Collection[str]) -> list[str]:
        """The jobs of these tenants."""
        return [job_id for tenant in of for job_id in self._ids.get(tenant, ())]

    def every_id(self) -> list[str]:
        return self.ids(list(self._ids))

    def forget(self, of: Collection[str]) -> None:
        for tenant in of:
            self._ids.pop(tenant, None)

    def read_again(self) -> None:
        """Read everything: jobs may have appeared before the cursor."""
        self._cursor = None
        self._ids.clear()
        self.update()
