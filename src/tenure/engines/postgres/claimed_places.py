"""Where the jobs stand that this process has claimed: an acknowledgement need not look for them.

A place belongs to one job for good. Where it is wrong, because the job is gone, it is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST = 100_000  # places that are remembered; then it begins anew


class Places:
    """For any thread: each step is one of a dict."""

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}

    def note(self, places: Iterable[tuple[str, int]]) -> None:
        if len(self._by_id) >= MOST:
            self._by_id.clear()
        self._by_id.update(places)

    def take(self, ids: Sequence[str]) -> list[int] | None:
        """The places of all of these, or None; they are forgotten."""
        found = [self._by_id.pop(id, None) for id in ids]
        known = [place for place in found if place is not None]
        return known if len(known) == len(found) else None
