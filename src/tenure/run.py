"""One run of a job's handler: started, perhaps told to end early, ended once."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable

from tenure.current import CURRENT, CurrentJob, Report
from tenure.handler import Handler
from tenure.job import Job
from tenure.queue import Queue


class Stopped(BaseException):
    """Raised inside a plain function that runs in a thread and is to end early."""


class Run(CurrentJob):
    """A job that is being worked on, and how it can be ended."""

    __slots__ = ("_ended", "_interrupt", "_lock", "deadline", "handler", "kept_at", "timer")

    def __init__(
        self, job: Job, handler: Handler, queue: Queue, report: Report, now: float
    ) -> None:
        super().__init__(job, queue, report)
        self.handler = handler
        self.timer: asyncio.TimerHandle | None = None
        self.deadline: float | None = None  # on the runner's clock
        self.kept_at = now  # when its lease was last renewed
        self._interrupt: Callable[[], object] | None = None
        self._ended = False
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._ended

    def can_be_interrupted_by(self, interrupt: Callable[[], object] | None) -> None:
        """How the handler is made to end early, from here on; None: it is over."""
        with self._lock:
            self._interrupt = interrupt
            if interrupt is not None and self.reason is not None:
                interrupt()

    def stop(self, reason: str) -> None:
        """Tell the handler to end early: timeout, lost or stop. May be called from any thread."""
        with self._lock:
            if not self._ended and self.to_end(reason) and self._interrupt is not None:
                self._interrupt()

    def end(self) -> bool:
        """It is over for the store; True for the one who says so first, and may tell it why."""
        with self._lock:
            first, self._ended = not self._ended, True
            return first


def call_in_thread(run: Run) -> object:
    """Call a plain handler in this thread, so that it can be interrupted."""
    thread = threading.get_ident()

    def interrupt() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(Stopped)
        )

    def uninterrupt() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)

    def call() -> object:
        CURRENT.set(run)
        return run.handler.call(run.job)

    run.can_be_interrupted_by(interrupt)
    try:
        return contextvars.copy_context().run(call)
    finally:
        run.can_be_interrupted_by(None)
        uninterrupt()  # one that was sent and has not arrived is not meant for the next job
