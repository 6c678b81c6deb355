"""Threads for handlers that are plain functions.

A thread that has finished a call takes the next one itself. Besides, one thread at a time is woken
to take a call, and wakes another if calls are left. So few threads do short calls, and long ones
hold up no others. queue.SimpleQueue works like that before Python 3.13; later ones give each item
to a thread that sleeps, and so switch threads for each call.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("tenure.worker")


class Threads:
    """A pool that grows to the number of concurrent calls. Its threads are daemons."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._asleep: list[threading.Lock] = []  # each is released to wake its thread
        self._waking = False  # a thread was woken or started, and has not looked for calls yet
        self._count = 0
        self._closed = False

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call` in a thread. It must not raise."""
        with self._lock:
            self._calls.append(call)
            if self._waking:
                return
            bell = self._choose()
        self._wake(bell)

    def close(self) -> None:
        """Let each thread exit once there are no more calls."""
        with self._lock:
            self._closed = True
            asleep, self._asleep = self._asleep, []
        for bell in asleep:
            bell.release()

    def _choose(self) -> threading.Lock | None:
        """Choose the thread to wake; None for a new one. The caller holds the lock."""
        self._waking = True
        if self._asleep:
            return self._asleep.pop()
        self._count += 1
        return None

    def _wake(self, bell: threading.Lock | None) -> None:
        if bell is not None:
            bell.release()
            return
        name = f"tenure-worker-{self._count}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError as error:  # cannot start a thread: the call waits for a free one
            with self._lock:
                self._waking = False
                self._count -= 1
            log.warning("%s; %d threads do the work", error, self._count)

    def _serve(self) -> None:
        bell = threading.Lock()
        was_woken = bell.acquire()
        while True:
            with self._lock:
                if was_woken:
                    self._waking = was_woken = False
                call = self._calls.popleft() if self._calls else None
                if call is None:
                    if self._closed:
                        return
                    self._asleep.append(bell)
                wakes = bool(self._calls) and not self._waking
                other = self._choose() if wakes else None
            if wakes:
                self._wake(other)
            if call is None:
                was_woken = bell.acquire()
            else:
                call()
