"""Signals that stop a process: the first gracefully, the second at once."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tenure.observe.logs import counted
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.worker")

ABORTED = 130
SAME_SIGNAL_SECONDS = 0.5  # a shell or `timeout` may repeat a signal sent by the terminal
LAST_WORDS_SECONDS = 5.0  # how long an abort can take before the process exits anyway
LEAVING_SECONDS = 2.0  # how long the process can take to exit once its worker has stopped

Stop = Callable[..., None]


@contextmanager
def told_to_stop(gracefully: Callable[[], None], at_once: Callable[[], None]) -> Iterator[Stop]:
    """At the first SIGTERM or SIGINT, call `gracefully`; at the next one, call `at_once` and exit
    the process. Yields a function that does the same without a signal.

    Each is called in its own thread: a task may be blocking the event loop, and the signal may
    arrive in the middle of a log call.
    """
    told_at: list[float] = []

    def stop(number: int, frame: FrameType | None = None) -> None:
        told_at.append(time.monotonic())
        if len(told_at) == 1:
            threading.Thread(target=gracefully, daemon=True).start()
        elif told_at[-1] - told_at[0] >= SAME_SIGNAL_SECONDS:
            threading.Thread(target=_abort, args=(at_once,), daemon=True).start()

    with on_signals(stop):
        yield stop


def _abort(at_once: Callable[[], None]) -> None:
    threading.Timer(LAST_WORDS_SECONDS, os._exit, args=(ABORTED,)).start()
    try:
        at_once()
    finally:
        os._exit(ABORTED)


@contextmanager
def on_signals(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `stop` at each SIGTERM and SIGINT."""
    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def ensure_exit(
    worker: Worker, stopped: threading.Event, left: threading.Event, more_seconds: float = 0
) -> None:
    """Make sure that the process exits, even if a task blocks the event loop, ignores its
    cancellation, or leaves a thread behind.

    stopped: set when the worker has stopped. left: set when the event loop is closed.
    more_seconds: extra time for whatever else has to stop.
    """
    if count := len(worker.running()):
        running = counted(count, "running job")
        log.info("stopping: waiting for %s; a second signal gives them back at once", running)
    else:
        log.info("stopping: no job is running")
    if not stopped.wait(worker.patience + more_seconds + 1):
        running = counted(len(worker.running()), "running job")
        log.warning("the event loop is blocked: %s given back", running)
        worker.give_up()
    elif left.wait(LEAVING_SECONDS):
        return
    else:
        log.warning("abandoned tasks keep the process from exiting: it exits now")
    os._exit(0)


def give_back_at_once(worker: Worker) -> None:
    """Give back the jobs of a worker whose process is being aborted."""
    log.warning("aborting: %s given back", counted(len(worker.running()), "running job"))
    worker.give_up()
