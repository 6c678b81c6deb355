"""One shard: its engine, and whether it is away.

A call that finds the shard away fails, and those after it fail at once, so that the tenants of
other shards do not wait. A thread tries the shard until it is back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from tenure.core.fencing import Fence
from tenure.errors import Busy, StoreError, StoreFull, StoreReadOnly, StoreRejected
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query

log = logging.getLogger("tenure.shards")

SCOPE = "tenure.shards"  # of slots that each shard has for itself
TRY_SECONDS = 1.0  # between two tries to reach a shard that is away
QUICK_SECONDS = 2.0  # within which a shard must respond to be used again
T = TypeVar("T")


class Store(Protocol):
    """What a shard needs of an engine."""

    @property
    def in_flight(self) -> int: ...

    def apply(self, batch: Sequence[Op], fence: Fence | None = None) -> list[Answer]: ...

    def apply_within(
        self, connection: Any, batch: Sequence[Op], fence: Fence | None = None
    ) -> list[Answer]: ...

    def read(self, query: Query) -> Found: ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]: ...

    def close(self) -> None: ...


class Shard:
    """A store that may be away."""

    def __init__(self, name: str, open_store: Callable[[], Store]) -> None:
        self.name = name
        self._open = open_store
        self._store: Store | None = None
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._away: str | None = None  # why
        self._trying: tuple[int, threading.Thread] | None = None  # the process, and its thread
        self._closed = threading.Event()
        self._listeners: dict[int, Listener] = {}
        # Raises StoreError if the store must not be used, although it responds.
        self.check: Callable[[Store], None] = lambda store: None

    @property
    def away(self) -> str | None:
        """Why the shard is away, or None if it is not."""
        return self._away

    @property
    def store(self) -> Store | None:
        """The engine, if it has been opened."""
        return self._store

    @property
    def may_hang(self) -> bool:
        """Whether a call may wait for ever: that to a server. A file that is locked gives up."""
        return self._store is not None and self._store.in_flight > 1

    def open(self) -> Store:
        """The engine, which is opened if it was away before."""
        with self._opening:
            if self._store is None:
                self._store = self._open()
                for listener in self._listeners.values():
                    listener.start(self._store)
            return self._store

    def apply(self, batch: Sequence[Op], fence: Fence | None = None) -> list[Answer]:
        return self._call(lambda store: store.apply(batch, fence), writes=True)

    def read(self, query: Query) -> Found:
        return self._call(lambda store: store.read(query))

    def apply_within(
        self, connection: Any, batch: Sequence[Op], fence: Fence | None = None
    ) -> list[Answer]:
        return self._call(lambda store: store.apply_within(connection, batch, fence))

    def _call(self, call: Callable[[Store], T], *, writes: bool = False) -> T:
        if (absent := self.absence()) is not None:
            raise absent
        try:
            return call(self.open())
        except (StoreRejected, StoreFull, StoreReadOnly):
            raise
        except StoreError as error:
            self.leave(error.message)
            raise type(error)(f"shard {self.name!r}: {error.message}") from error
        except Busy as error:
            # With one writer, no other batch would get through either.
            if writes and self._store is not None and self._store.in_flight == 1:
                self.leave(error.message)
            raise Busy(f"shard {self.name!r}: {error.message}") from error

    def absence(self) -> StoreError | None:
        """The error of all calls, if the shard is away."""
        if self._away is None:
            return None
        self._keep_trying()
        return StoreError(f"shard {self.name!r} is away: {self._away}")

    def leave(self, reason: str) -> None:
        """Mark the shard as away, and try it until it is back."""
        if self._away is None:
            log.warning("shard %s is away: %s", self.name, reason)
        self._away = reason
        self._keep_trying()

    def _keep_trying(self) -> None:
        with self._lock:
            if self._closed.is_set() or (self._trying and self._trying[0] == os.getpid()):
                return
            thread = threading.Thread(target=self._try, name="tenure-shard", daemon=True)
            self._trying = (os.getpid(), thread)
            thread.start()

    def _try(self) -> None:
        while not self._closed.wait(TRY_SECONDS):
            if self.is_back():
                return

    def is_back(self) -> bool:
        """Try the shard. Returns whether it accepts changes again."""
        try:
            store, began = self.open(), time.monotonic()
            self.check(store)
            store.apply([ops.DropSlot(SCOPE, "tried", self.name)])
            if time.monotonic() - began > QUICK_SECONDS:
                self._away = "it responds slowly"
                return False
        except (StoreError, Busy) as error:
            self._away = error.message
            return False
        except Exception as error:  # whatever it is, later tries may find it gone
            log.exception("shard %s cannot be tried", self.name)
            self._away = str(error)
            return False
        with self._lock:
            self._trying = None
            self._away = None
        log.info("shard %s is back", self.name)
        return True

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Listen to the store, as soon as it is open."""
        listener = Listener(wake)
        with self._opening:
            self._listeners[id(listener)] = listener
            if self._store is not None:
                listener.start(self._store)

        def stop() -> None:
            with self._opening:
                self._listeners.pop(id(listener), None)
                listener.stop()

        return stop

    def close(self) -> None:
        self._closed.set()
        with self._opening:
            if self._store is not None:
                self._store.close()


class Listener:
    """A listener of a store, which may not be open yet."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.stop: Callable[[], None] = lambda: None

    def start(self, store: Store) -> None:
        self.stop = store.listen(self._wake)
        self._wake()  # what changed before is not told
