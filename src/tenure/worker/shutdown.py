"""Signals that end a process: the first gracefully, the second one at once."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tenure.worker.runner import Runner

log = logging.getLogger("tenure.worker")

ABORTED = 130
SAME_SIGNAL_SECONDS = 0.5  # a shell or a `timeout` may pass on what the terminal sent as well
LAST_WORDS_SECONDS = 5.0  # that an abort may take before the process ends anyway
LEAVING_SECONDS = 2.0  # that a process may take to end once its runner has stopped

Stop = Callable[..., None]


@contextmanager
def told_to_stop(gracefully: Callable[[], None], at_once: Callable[[], None]) -> Iterator[Stop]:
    """At the first SIGTERM or SIGINT, call `gracefully`; at the next one call `at_once`, and end
    the process. Gives what does the same without a signal.

    Each is called in a thread of its own: the event loop may be blocked by what runs in it, and a
    signal may come while something is written to the log.
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
    """Call it at each SIGTERM and SIGINT."""
    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def see_to_the_end(
    runner: Runner, stopped: threading.Event, left: threading.Event, more_seconds: float = 0
) -> None:
    """A task that blocks the loop, or takes no notice when it is cancelled, or leaves a thread
    behind, would keep the process alive for as long as it likes.

    stopped: the runner has; left: the event loop was closed. more_seconds: that whatever else is
    to be stopped takes.
    """
    running = len(runner.running())
    log.info("stopping: %d jobs are running; once more gives them back at once", running)
    if not stopped.wait(runner.patience + more_seconds + 1):
        log.warning("the event loop is blocked: %d jobs are given back", len(runner.running()))
        runner.give_up()
    elif left.wait(LEAVING_SECONDS):
        return
    else:
        log.warning("tasks that were given up keep the process from ending: it ends now")
    os._exit(0)


def give_back_at_once(runner: Runner) -> None:
    """What is left to do for a runner whose process is being aborted."""
    log.warning("aborting: %d running jobs are given back", len(runner.running()))
    runner.give_up()
