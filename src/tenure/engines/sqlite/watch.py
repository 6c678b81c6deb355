"""Detecting commits of other processes to the file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from tenure.engines.sqlite.file_events import FileEvents

# Where the operating system does not tell of writes, and while this process commits itself: then it
# claims, and finds the jobs of others anyway.
INTERVAL_SECONDS = 0.035  # waking a thread costs a hundred microseconds, the check a few
IDLE_SECONDS = 1.0  # between checks, where it does
GAP_SECONDS = 0.01  # between two wake-ups, so that a process that writes a lot keeps nobody busy
# A commit can be seen some time after it is written to the log, when it has been synced.
STEP_SECONDS, MOST_SYNC_SECONDS = 0.001, 0.05


Version = tuple[int, int]
_UNKNOWN: Version = (-1, -1)


class Watch:
    """Calls the listeners whenever the version of the file changes."""

    def __init__(
        self, version: Callable[[], Version | None], log_path: Callable[[], Path | None]
    ) -> None:
        """version: None once the file is closed. log_path: the file that commits are written to."""
        self._version = version
        self._log_path = log_path
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._lookout: _Lookout | None = None
        self.committed_at = 0.0  # when this process last committed

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(wake)
            if self._lookout is None:
                self._lookout = _Lookout(self)
            elif not self._lookout.thread.is_alive():  # a child has no threads of its parent
                self._lookout.close_events()
                self._lookout = _Lookout(self)

        def stop() -> None:
            with self._lock:
                if wake in self._listeners:
                    self._listeners.remove(wake)
                if not self._listeners and self._lookout is not None:
                    self._lookout.stop()
                    self._lookout = None

        return stop

    def before_fork(self) -> None:
        self._lock.acquire()
        if self._lookout is not None:
            self._lookout.lock.acquire()

    def after_fork(self) -> None:
        if self._lookout is not None:
            self._lookout.lock.release()
        self._lock.release()

    def version(self) -> Version | None:
        try:
            return self._version()
        except sqlite3.Error:
            return _UNKNOWN  # the woken caller will run into the error and report it

    def wake(self) -> None:
        for wake in list(self._listeners):
            wake()

    @property
    def is_committing(self) -> bool:
        """Whether this process has committed just now."""
        return monotonic() - self.committed_at < INTERVAL_SECONDS

    def open_events(self) -> FileEvents | None:
        path = self._log_path()
        return None if path is None else FileEvents.of(path)


class _Lookout:
    """The thread that looks."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._nobody = threading.Event()  # listens any more
        self.lock = threading.Lock()
        self._events: FileEvents | None = None
        self.thread = threading.Thread(target=self._look, name="tenure-watch", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        with self.lock:
            self._nobody.set()
            # A forked child shares the pipe with its parent, whose thread must go on.
            if self._events is not None and self.thread.is_alive():
                self._events.interrupt()

    def close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _look(self) -> None:
        seen, written = _UNKNOWN, False
        self._open_events()  # before the first look, so that no commit is missed
        while not self._nobody.is_set():
            version = self._next_version(seen, MOST_SYNC_SECONDS if written else 0)
            if version is None:
                break
            if version != seen:
                seen = version
                self._watch.wake()
                self._nobody.wait(GAP_SECONDS)
            written = self._wait()
        with self.lock:
            self.close_events()

    def _wait(self) -> bool:
        """Wait until it is time to look. Returns whether the file was written to."""
        events = self._open_events()
        if events is None or self._watch.is_committing:
            self._nobody.wait(INTERVAL_SECONDS)
            return False
        return events.wait(IDLE_SECONDS)

    def _open_events(self) -> FileEvents | None:
        with self.lock:
            if self._nobody.is_set():
                return None
            if self._events is not None and self._events.is_over:
                self.close_events()
            if self._events is None:
                self._events = self._watch.open_events()
            return self._events

    def _next_version(self, seen: Version, seconds: float) -> Version | None:
        """The version, once it has changed or this time is over."""
        deadline = monotonic() + seconds
        while True:
            version = self._watch.version()
            if version != seen or monotonic() >= deadline or self._nobody.wait(STEP_SECONDS):
                return version
