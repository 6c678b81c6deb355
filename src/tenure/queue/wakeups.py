"""Telling those who wait that something changed: jobs may be ready now, or may have ended.

What this process commits is told at once, with the queues that it may concern. What others commit
is told by the engine, as soon as it knows.
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

Wake = Callable[[Collection[str] | None], None]  # None: it may concern any queue
Watch = Callable[[Sequence[Op], Sequence[Answer]], None]


class Changes:
    """Those who listen to one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listeners: tuple[Wake, ...] = ()
        self._watchers: tuple[Watch, ...] = ()
        self._stop_engine: Callable[[], None] | None = None

    def listen(self, wake: Wake) -> Callable[[], None]:
        """Call `wake`, from any thread, after each change; it must be quick, and may be called
        for nothing. Answers with what ends it."""
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
        """Call `watcher`, from any thread, with what this process committed and what it was
        answered; it must be quick. Answers with what ends it."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

        def stop() -> None:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

        return stop

    def tell(self, queues: Collection[str] | None) -> None:
        """Something of these queues, or of any, may have changed."""
        for wake in self._listeners:
            _told(wake, queues)

    def committed(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """These operations were committed, and answered so."""
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
    """Tell one listener. What it is told of has happened already, so its error concerns nobody
    else."""
    try:
        hear(*news)
    except Exception:
        log.exception("a listener to changes failed: %r", hear)
