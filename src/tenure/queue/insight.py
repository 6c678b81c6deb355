"""Calls that explain what happens in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tenure.model import queries
from tenure.model.fields import validated
from tenure.model.ops import Grant, good
from tenure.model.queries import Related, TenantWait
from tenure.queue.sync_async import Caller, Steps, both


class Insight(Caller):
    """A part of Calls."""

    def _related(self, id: str, *, limit: int = 20) -> Steps[Related]:
        """Return the parents of a job, and the unfinished jobs that wait for it. Raises
        JobNotFound."""
        return good((yield validated(queries.ListRelated(id, limit))), Related)

    def _find_by_key(
        self, unique_key: str, *, queue: str | None = None, tenant: str | None = None
    ) -> Steps[list[str]]:
        """Return the ids of the unfinished jobs that hold a unique key, sorted: at most one for
        each queue and tenant."""
        named = Grant(None if queue is None else (queue,), None if tenant is None else (tenant,))
        found: list[str] = []
        cursor = None
        while True:
            query = queries.FindByKey(unique_key, cursor, grant=named)
            page = good((yield validated(query)), queries.Ids)
            found += page.ids
            cursor = page.cursor
            if cursor is None:
                return sorted(found)

    def _longest_waits(self, queue: str, tenants: Sequence[str]) -> Steps[dict[str, int]]:
        """Return for how many milliseconds the longest-waiting ready job of each of at most 100
        tenants has been ready. Tenants without ready jobs are left out."""
        found = good((yield validated(queries.LongestWaits(queue, tuple(tenants)))), list)
        return {one.tenant: one.wait_ms for one in cast("list[TenantWait]", found)}

    related, arelated = both(_related)
    find_by_key, afind_by_key = both(_find_by_key)
    longest_waits, alongest_waits = both(_longest_waits)
