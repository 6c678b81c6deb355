"""The places of jobs that this process has claimed, so that an ack need not look them up.

A place is never reused for another job. If the job is gone, its place is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST = 100_000  # places to remember; when full, all are forgotten


class Places:
    """Thread-safe: each step is a single dict operation."""

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}

    def note(self, places: Iterable[tuple[str, int]]) -> None:
        if len(self._by_id) >= MOST:
            self._by_id.clear()
        self._by_id.update(places)

    def take(self, ids: Sequence[str]) -> list[int] | None:
        """The places of all these jobs, or None if any is unknown. Forgets them."""
        found = [self._by_id.pop(id, None) for id in ids]
        known = [place for place in found if place is not None]
        return known if len(known) == len(found) else None
