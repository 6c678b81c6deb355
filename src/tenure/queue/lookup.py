"""Looking up many jobs by their ids."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.model import queries
from tenure.model.fields import MAX_GET, validated
from tenure.model.job import Job
from tenure.model.ops import good
from tenure.queue.arguments import ids_of
from tenure.queue.sync_async import Caller, Steps, both


class Lookup(Caller):
    """A part of Calls."""

    def _get_many(self, ids: Iterable[str | Job]) -> Steps[list[Job | None]]:
        """Return jobs by their ids, in the order given, with None for unknown ids. They are read
        in pages, so the result is not one snapshot."""
        wanted = ids_of(ids, "ids")
        found: dict[str, Job] = {}
        at = 0
        each = tuple(dict.fromkeys(wanted))
        while at < len(each):
            some = each[at : at + MAX_GET]
            page = good((yield validated(queries.GetJobs(some))), queries.Page)
            found |= {job.id: job for job in page.jobs}
            at += len(some) if page.cursor is None else int(page.cursor)
        return [found.get(id) for id in wanted]

    get_many, aget_many = both(_get_many)
