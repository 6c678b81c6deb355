"""Counting the jobs that match a filter, before something is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenure.errors import TenureError
from tenure.features.bulk.data import Matches
from tenure.model import queries
from tenure.model.job import State
from tenure.model.ops import good
from tenure.model.queries import Counts, Filter
from tenure.queue.listing import Listing, filter_by
from tenure.queue.sync_async import Steps, awaiting, both

_SCANS = 10  # queries for one count, each of which looks at MOST_SCANNED jobs
_SAMPLE = 10


class Matching(Listing):
    """A part of FeatureCalls."""

    def _count_matching(
        self,
        *,
        queue: str | None = None,
        state: str | Sequence[str] | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        finished_after: datetime | None = None,
        finished_before: datetime | None = None,
        error: str | None = None,
    ) -> Steps[Matches]:
        """Count the jobs that match, and return a sample of ten. Counters are enough if the filter
        has only a queue, states and a tenant. Otherwise at most 100,000 jobs are looked at; if
        there are more, `exact` is False, and there may be more matches."""
        where = filter_by(
            queue, state, tenant, group, kind, worker, created_after, created_before,
            finished_after, finished_before, error,
        )  # fmt: skip
        return (yield from self._matches_of(where))

    def _matches_of(self, where: Filter) -> Steps[Matches]:
        """Count the jobs that match a filter."""
        sample = (yield from self._summaries_of(where, _SAMPLE)).jobs
        counted = yield from self._counted(where)
        if counted is not None:
            return Matches(counted, True, sample)
        count, cursor = 0, None
        for _ in range(_SCANS):
            found = good((yield queries.FindIds(where, 10_000, cursor)), queries.Ids)
            count, cursor = count + len(found.ids), found.cursor
            if cursor is None:
                break
        return Matches(count, cursor is None, sample)

    def _counted(self, where: Filter) -> Steps[int | None]:
        """The number by the counters; None if they cannot tell."""
        if where != Filter(where.queue, where.states, where.tenant):
            return None
        if where.tenant is None:
            found = yield queries.GetStats(where.queue)
        elif where.queue is None:
            return None
        else:
            found = yield queries.ListTenants(where.queue, 1, None, where.tenant)
        if isinstance(found, TenureError):
            raise found
        return sum(_in_states(counts, where.states) for counts in found)

    count_matching, acount_matching = both(_count_matching)
    _amatches_of: Final = awaiting(_matches_of)


def _in_states(counts: Counts, states: tuple[State, ...]) -> int:
    return sum(getattr(counts, state.value) for state in states or State)


CALLS = Matching
