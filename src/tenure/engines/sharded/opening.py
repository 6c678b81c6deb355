"""Finds the ring that the opened shards belong to, and marks new shards."""

from __future__ import annotations

import logging

from tenure.core.fencing import Fenced
from tenure.engines.sharded import ring
from tenure.engines.sharded.members import Members
from tenure.engines.sharded.ring import Mark, Ring
from tenure.engines.sharded.shard import Store
from tenure.errors import InvalidInput, StoreError, TenureError

log = logging.getLogger("tenure.shards")


class Opening:
    """The shards that have been opened, and what they say about the ring."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._marks: dict[str, Mark] = {}
        self._stores: dict[str, Store] = {}
        self._ring: Ring | None = None

    def opened(self, name: str, store: Store) -> None:
        """Add a shard that has been opened. Raises InvalidInput if it is not what the URL says."""
        mark = ring.read(store)
        ring.check(mark, store, name)
        self._marks[name] = mark
        self._stores[name] = store
        if self._ring is not None:
            names = list(self._members.urls)
            ring.agreed({"": Mark(None, self._ring), name: mark}, names, spread=self._ring.spread)
            if ring.is_outdated(mark.ring, self._ring, name):
                raise ring.outdated(name)
            self._join(name, self._ring)

    def decide(self) -> Ring:
        """The ring of the shards that are there; a new one, if all are there and all are new."""
        members = self._members
        names = list(members.urls)
        found = ring.agreed(self._marks, names, spread=members.spread)
        if found is None:
            absent = [name for name in names if name not in self._marks]
            if absent:
                raise StoreError(
                    f"shard {absent[0]!r} is away, and none of the others was used before: the "
                    "first time, all shards must be there"
                )
            found = ring.first_ring(names, spread=members.spread)
        self._ring = found
        for name in found.used:
            if name in self._marks:
                self._join(name, found)
        idle = [name for name in names if name not in found.used]
        if idle:
            log.info("shards %s are not used before `tenure reshard`", " ".join(idle))
        return found

    def outdated(self) -> list[str]:
        """The shards that were restored from a backup which is older than a move of tenants."""
        return [
            name
            for name, mark in self._marks.items()
            if self._is_outdated(name, mark.ring) and self._is_still_outdated(name)
        ]

    def _is_outdated(self, name: str, mine: Ring | None) -> bool:
        assert self._ring is not None
        return ring.is_outdated(mine, self._ring, name)

    def _is_still_outdated(self, name: str) -> bool:
        """Marks may have been made while the shards were opened."""
        try:
            return self._is_outdated(name, ring.ring_of(self._stores[name]))
        except TenureError:
            return True  # it is away, and is looked at again

    def _join(self, name: str, found: Ring) -> None:
        """Mark a shard that has no mark: one of the first ring, or one that tenants move to."""
        if self._marks[name].ring is not None or name not in found.used:
            return
        if found.epoch > 0 and name in found.names:
            raise InvalidInput(
                "shards", f"the store of shard {name!r} is empty, but it was used before"
            )
        try:
            ring.join(self._stores[name], name, found)
        except Fenced:  # somebody else was first
            theirs = ring.ring_of(self._stores[name])
            if theirs is None or theirs.origin != found.origin:
                raise InvalidInput(
                    "shards", f"shard {name!r} was opened with other shards at the same time"
                ) from None
