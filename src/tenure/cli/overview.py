"""All queues at a glance: their counts, what is held back, and how long jobs wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tenure.cli.held_back import HeldBack, held_back
from tenure.cli.tables import QueueNow
from tenure.cli.text import document
from tenure.model.queries import QueueStats, Stats
from tenure.queue import Queue


class Overview(NamedTuple):
    """The counts of queues, and what else is known about each."""

    stats: Stats
    more: Mapping[str, QueueNow]

    def as_document(self) -> dict[str, Any]:
        value: dict[str, Any] = document(self.stats)
        for name, one in self.more.items():
            value["queues"][name] |= one.as_document()
        return value


def overview(store: Queue, queue: str | None = None) -> Overview:
    """Read the counts of one queue or of all. Raises QueueNotFound."""
    stats = store.stats(queue)
    return Overview(stats, {name: _more(store, one) for name, one in stats.queues.items()})


def _more(store: Queue, queue: QueueStats) -> QueueNow:
    """What else there is to know about a queue. Only queues with ready jobs are looked into."""
    if not queue.ready:
        return QueueNow(HeldBack(), None)
    return QueueNow(
        held_back(store, queue, store.limits.list(queue.queue)), store.oldest_ready(queue.queue)
    )
