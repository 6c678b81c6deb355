"""Calls that say what happens in a queue, and why."""

from __future__ import annotations

from typing import Final

from tenure.model import queries
from tenure.model.fields import validated
from tenure.model.why import Explained
from tenure.queue.arguments import good
from tenure.queue.sync_async import Doer, Steps, awaiting, blocking


class Insight(Doer):
    """A part of Calls."""

    def _explain(self, id: str) -> Steps[Explained]:
        """Return what holds a job back, in the order in which to solve it, or that it is next.
        Raises JobNotFound."""
        return good((yield validated(queries.Explain(id))), Explained)

    explain: Final = blocking(_explain)
    aexplain: Final = awaiting(_explain)
