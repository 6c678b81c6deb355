"""Calls on live workers."""

from __future__ import annotations

from typing import cast

from tenure.features.live_workers.data import ListWorkers, LiveWorker
from tenure.model.fields import validated
from tenure.model.ops import good
from tenure.queue.sync_async import Caller, Steps, both


class HasWorkers(Caller):
    """A part of FeatureCalls."""

    def _workers(self, queue: str | None = None) -> Steps[list[LiveWorker]]:
        """Return the live workers, or those of one queue, sorted by name. A worker that dies
        disappears from the list after some seconds."""
        found = yield validated(ListWorkers(queue))
        return cast("list[LiveWorker]", good(found, list))

    workers, aworkers = both(_workers)


CALLS = HasWorkers
