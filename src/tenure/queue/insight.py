"""Calls that say what happens in a queue, and why."""

from __future__ import annotations

from typing import Final, cast

from tenure.model import queries
from tenure.model.fields import validated
from tenure.model.why import Explained
from tenure.model.workers import LiveWorker
from tenure.queue.arguments import good
from tenure.queue.sync_async import Doer, Steps, awaiting, blocking


class Insight(Doer):
    """A part of Calls."""

    def _explain(self, id: str) -> Steps[Explained]:
        """Return what holds a job back, in the order in which to solve it, or that it is next.
        Raises JobNotFound."""
        return good((yield validated(queries.Explain(id))), Explained)

    def _workers(self, queue: str | None = None) -> Steps[list[LiveWorker]]:
        """Return the live workers, or those of one queue, sorted by name. A worker that dies is
        left out after some seconds."""
        found = yield validated(queries.ListWorkers(queue))
        return cast("list[LiveWorker]", good(found, list))

    explain: Final = blocking(_explain)
    aexplain: Final = awaiting(_explain)
    workers: Final = blocking(_workers)
    aworkers: Final = awaiting(_workers)
