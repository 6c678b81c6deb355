"""Notifying listeners of changes: jobs may have become ready, or may have finished.

Commits of this process are reported at once, with the queues they may concern. The engine reports
the commits of other processes as soon as it learns of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tenure.engines import Engine
from tenure.model import ops
from tenure.model.ops import Answer, Op

log = logging.getLogger("tenure.changes")

Wake = Callable[[Collection[str] | None], None]  # None: any queue may have changed
Watch = Callable[[Sequence[Op], Sequence[Answer]], None]


class Changes:
    """The listeners of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listeners: tuple[Wake, ...] = ()
        self._watchers: tuple[Watch, ...] = ()
        self._stop_engine: Callable[[], None] | None = None

    def listen(self, wake: Wake) -> Callable[[], None]:
        """Call `wake`, from any thread, after each change. It must be quick, and spurious calls
        are possible. Returns a function that stops listening."""
        with self._lock:
            self._listeners = (*self._listeners, wake)
            if self._stop_engine is None:
                self._stop_engine = self._engine.listen(lambda: self.tell(None))

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not wake)
                if not self._listeners and self._stop_engine is not None:
                    self._stop_engine()
                    self._stop_engine = None

        return stop

    def watch(self, watcher: Watch) -> Callable[[], None]:
        """Call `watcher`, from any thread, with the operations this process committed and their
        answers. It must be quick. Returns a function that stops watching."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

        def stop() -> None:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

        return stop

    def tell(self, queues: Collection[str] | None) -> None:
        """Notify listeners that these queues, or any if None, may have changed."""
        for wake in self._listeners:
            _told(wake, queues)

    def committed(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """Notify watchers and listeners that these operations were committed."""
        for watcher in self._watchers:
            _told(watcher, batch, answers)
        if not self._listeners:
            return
        queues: set[str] = set()
        for op in ops.flat(batch):
            if isinstance(op, ops.Enqueue):
                queues.update([spec.queue for spec in op.jobs])
            elif not isinstance(op, ops.QUIET):
                self.tell(None)
                return
        if queues:
            self.tell(queues)


def _told(hear: Callable[..., None], *news: Any) -> None:
    """Notify one listener. The change has already happened, so an error in the listener must not
    affect others."""
    try:
        hear(*news)
    except Exception:
        log.exception("a listener to changes failed: %r", hear)
