"""Notifying listeners of commits by others: watches a few keys, one of which is incremented at
random by every relevant commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.store import Store
from tenure.engines.foundationdb.transact import begin
from tenure.engines.foundationdb.tx import WAKE_SHARDS

_LOOK_AGAIN_S = 30.0  # a watch may be lost with the process that holds it
_AFTER_ERROR_S = 1.0
_PATIENCE_S = 3.0  # if the cluster is down, closing the engine waits this long


class Wake:
    """The listeners of one engine, and the thread that watches for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._news = threading.Event()  # for the round of the thread that is under way
        self._closed = False

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        mine = object()
        with self._lock:
            self._listeners[mine] = wake
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tenure-fdb", daemon=True)
                self._thread.start()

        def stop() -> None:
            with self._lock:
                self._listeners.pop(mine, None)
                self._news.set()

        return stop

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._listeners.clear()
            self._news.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        seen: list[bytes | None] | None = None
        while True:
            with self._lock:
                if self._closed or not self._listeners:
                    self._thread = None
                    return
                # A new one: the client calls back later for the watches that were cancelled, too.
                self._news = news = threading.Event()
            try:
                found, watches = self._watch(news)
            except self._store.handle.FDBError:
                news.wait(_AFTER_ERROR_S)
                continue
            if found != seen:  # also at first: something may have happened before the first read
                self._tell()
            seen = found
            news.wait(_LOOK_AGAIN_S)
            for watch in watches:
                watch.cancel()

    def _watch(self, news: threading.Event) -> tuple[list[bytes | None], list[Any]]:
        """The values of the keys, and watches on them, which outlive the timeout and set `news`."""
        tr = begin(self._store.db, _PATIENCE_S)
        keys = [self._store.keys.pack(k.WAKE, shard) for shard in range(WAKE_SHARDS)]
        asked = [tr.get(key) for key in keys]
        watches = [tr.watch(key) for key in keys]
        found = [one.value for one in asked]
        tr.commit().wait()
        for watch in watches:
            watch.on_ready(lambda _: news.set())
        return [None if one is None else bytes(one) for one in found], watches

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for wake in listeners:
            wake()
