"""Detecting commits of other processes to the file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from tenure.engines.sqlite.file_events import FileEvents

# Used where the operating system does not report writes, and while this process commits all the
# time: then it also claims, and finds the jobs of others anyway.
INTERVAL_SECONDS = 0.035  # waking a thread costs a hundred microseconds, the check a few
FIRST_SECONDS = 0.005  # after a commit of this process; doubled while it goes on
IDLE_SECONDS = 1.0  # between checks, where it does
GAP_SECONDS = 0.01  # between two wake-ups, so that a process that writes a lot keeps nobody busy
# A commit can be seen some time after it is written to the log, when it has been synced.
FIRST_STEP_SECONDS, STEP_SECONDS, MOST_SYNC_SECONDS = 0.0001, 0.001, 0.05


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
        self._committed_at = 0.0  # the last commit of this process that is known here
        self._pause = FIRST_SECONDS
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
        events, committed_at = self._open_events(), self._watch.committed_at
        if events is None:
            self._nobody.wait(INTERVAL_SECONDS)
            return False
        if committed_at != self._committed_at:
            self._committed_at = committed_at
            self._nobody.wait(self._pause)
            self._pause = min(self._pause * 2, INTERVAL_SECONDS)
            return False
        self._pause = FIRST_SECONDS
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
        """The version, once it has changed or this time is up."""
        deadline, step = monotonic() + seconds, FIRST_STEP_SECONDS
        while True:
            version = self._watch.version()
            if version != seen or monotonic() >= deadline or self._nobody.wait(step):
                return version
            step = min(step * 1.5, STEP_SECONDS)
