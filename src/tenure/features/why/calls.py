"""The call that explains what holds a job back."""

from __future__ import annotations

from tenure.features.why.data import Explain, Explained
from tenure.model.fields import validated
from tenure.model.ops import good
from tenure.queue.sync_async import Caller, Steps, both


class Explaining(Caller):
    """A part of FeatureCalls."""

    def _explain(self, id: str) -> Steps[Explained]:
        """Return what holds a job back, in the order in which to solve it, or that it is next.
        Raises JobNotFound."""
        return good((yield validated(Explain(id))), Explained)

    explain, aexplain = both(_explain)


CALLS = Explaining
