"""Keys that somebody waits for to change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.fdb_sim.futures import WatchFuture

_LOOK_FROM = 16  # as many watches of a key are looked through, and at each doubling


class Watch(NamedTuple):
    """A future that is answered when the key no longer has the value."""

    value: bytes | None
    future: weakref.ref[WatchFuture]  # who drops it waits no longer
    fired: Callable[[], None]


class Watches:
    """The watches of a cluster, by key."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, list[Watch]] = {}

    def __len__(self) -> int:
        return sum(len(watches) for watches in self._by_key.values())

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def add(self, key: bytes, watch: Watch) -> None:
        watches = self._by_key.setdefault(key, [])
        watches.append(watch)
        if len(watches) >= _LOOK_FROM and len(watches).bit_count() == 1:
            # Whoever waits for a while and gives up, over and over, leaves nothing behind.
            watches[:] = [watch for watch in watches if watch.future() is not None]

    def changed(
        self, keys: Iterable[bytes], value_of: Callable[[bytes], bytes | None]
    ) -> list[Callable[[], None]]:
        """Answer the watches whose keys have another value now; whom to tell."""
        tell: list[Callable[[], None]] = []
        for key in keys:
            watches = self._by_key.get(key)
            if watches is None:
                continue
            value = value_of(key)
            kept = []
            for watch in watches:
                future = watch.future()
                if future is None or future.answered:
                    continue
                if watch.value == value:
                    kept.append(watch)
                else:
                    watch.fired()
                    tell.append(future.settle())
            if kept:
                self._by_key[key] = kept
            else:
                del self._by_key[key]
        return tell
