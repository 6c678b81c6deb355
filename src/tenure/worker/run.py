"""One run of a job's handler, and how to interrupt it."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tenure.model.job import Job
from tenure.model.ops import Op
from tenure.observe.tracing import working
from tenure.queue import Queue
from tenure.worker.current_job import CURRENT, CurrentJob, Report
from tenure.worker.handler import HandlerSpec
from tenure.worker.outcome import NO_ERRORS, Stopped, Suspended, after_error, after_return

FIRST_LOOK, LONGEST_LOOK = 0.002, 0.1  # seconds between checks of what a thread executes
AGAIN = 1.0  # seconds after which a function that continues is interrupted again
_TAKES_LOCKS = frozenset(
    (
        *("tenure", "logging", "threading", "queue", "concurrent", "multiprocessing", "importlib"),
        "opentelemetry",
    )
)

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Run(CurrentJob):
    """A running job, and how to interrupt it."""

    __slots__ = (
        *("_ended", "_interrupt"),
        *("began", "came_to", "deadline", "error", "handler", "kept_at", "mark", "task", "timer"),
    )

    def __init__(
        self,
        job: Job,
        handler: HandlerSpec,
        queue: Queue,
        report: Report,
        kept_at: float,
        began: float = 0.0,
    ) -> None:
        super().__init__(job, queue, report, handler.result_of)
        self.handler = handler
        self.task: asyncio.Task[Any] | None = None  # kept, as event loops do not keep tasks
        self.timer: asyncio.TimerHandle | None = None
        self.deadline: float | None = None  # on the worker's clock
        self.began = began
        self.error: BaseException | None = None  # what the handler raised
        self.kept_at = kept_at  # when its lease was last renewed
        self.mark: int = 0  # its number in the marks of this process
        self.came_to: Op | None = None  # the operation to submit, once its thread has ended
        self._interrupt: Callable[[], object] | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def can_be_interrupted_by(self, interrupt: Callable[[], object] | None) -> None:
        """Set the function that interrupts the handler from now on; None if it has ended."""
        with self._lock:
            self._interrupt = interrupt
            if interrupt is not None and self.reason is not None:
                interrupt()

    def stop(self, reason: str) -> None:
        """Tell the handler to end early: timeout, lost or stop. Can be called from any thread."""
        with self._lock:
            if not self._ended and self.to_end(reason) and self._interrupt is not None:
                self._interrupt()

    def check(self) -> None:
        """Raise Stopped if it was told to end before it started."""
        if self.reason is not None:
            raise Stopped

    def cancel_task(self) -> None:
        """Cancel the asyncio task that awaits the handler. Can be called from any thread."""
        if self.task is not None:
            with suppress(RuntimeError):  # the loop was closed
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    def interrupt_thread(self, thread: int) -> None:
        """Raise Stopped in the handler's thread, but not inside code that may just have acquired a
        lock, such as logging, because the lock would never be released.

        Python ignores an exception inside `__del__` or a callback of the garbage collector, so it
        is raised again if the handler continues.
        """
        pause = FIRST_LOOK
        while True:
            # After a sleep, this thread holds the GIL for a full switch interval, so the other
            # thread seldom moves between the check and the raise. If it has, the exception is
            # taken back: it is not raised while that thread waits for a lock.
            time.sleep(pause)
            pause = min(pause * 1.5, max(pause, LONGEST_LOOK))
            with self._lock:
                if self._interrupt is None or _is_stopping(thread):
                    return
                if _holds_no_lock(thread):
                    _raise_in(ctypes.c_ulong(thread), ctypes.py_object(Stopped))
                    if _holds_no_lock(thread):
                        pause = AGAIN
                    else:
                        _raise_in(ctypes.c_ulong(thread), None)

    def after_return(self, value: object, payload_limit: int) -> Op | None:
        """The operation to submit after the handler returned."""
        rules = self.handler.rules
        return after_return(self.job, value, self.reason, payload_limit, rules, self.suspension)

    def after_error(self, error: BaseException) -> Op | None:
        """The operation to submit after the handler raised."""
        if not isinstance(error, Suspended):
            self.error = error
        return after_error(self.job, error, self.reason, self.handler.rules, self.suspension)

    def end(self) -> bool:
        """Mark the run as ended. Returns True for the first caller, who submits its outcome."""
        with self._lock:
            first, self._ended = not self._ended, True
            return first


def start_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Start an asyncio task. It must keep itself referenced, as event loops do not. From Python
    3.12 on it begins at once, which costs less than half of a task that the event loop begins."""
    if sys.version_info < (3, 12) or loop.get_task_factory() is not None:
        loop.create_task(work)
    else:
        asyncio.Task(work, loop=loop, eager_start=True)


async def attempt(run: Run, payload_limit: int) -> Op | None:
    """Await a handler in the event loop. Returns the operation to submit for the job, if any."""
    CURRENT.set(run)
    run.task = asyncio.current_task()
    run.can_be_interrupted_by(run.cancel_task)
    try:
        run.check()
        try:
            with working(run.job, run.handler.name, NO_ERRORS):
                value = await run.handler.call(run.job)
        finally:
            if run.uses_steps:
                await run.asettle()
        return run.after_return(value, payload_limit)
    except BaseException as error:
        return run.after_error(error)
    finally:
        run.can_be_interrupted_by(None)
        run.task = None  # its context has the run: a cycle, which only the garbage collector frees


def attempt_in_thread(run: Run, payload_limit: int) -> Op | None:
    """Call a plain handler in this thread; other threads can interrupt it. Returns the operation
    to submit for the job, if any."""
    thread = threading.get_ident()

    def interrupt() -> None:
        threading.Thread(target=run.interrupt_thread, args=(thread,), daemon=True).start()

    def call() -> object:
        CURRENT.set(run)
        try:
            with working(run.job, run.handler.name, NO_ERRORS):
                return run.handler.call(run.job)
        finally:
            if run.uses_steps:
                run.settle()

    try:
        try:
            run.can_be_interrupted_by(interrupt)
            run.check()
            value = contextvars.copy_context().run(call)
        finally:
            run.can_be_interrupted_by(None)
            # Clear an exception that was not raised yet: it must not hit the next job.
            _raise_in(ctypes.c_ulong(thread), None)
        return run.after_return(value, payload_limit)
    except BaseException as error:
        return run.after_error(error)


def _holds_no_lock(thread: int) -> bool:
    """Whether a thread is outside of code that acquires locks without `with`."""
    frame = sys._current_frames().get(thread)
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return frame is not None and name.partition(".")[0] not in _TAKES_LOCKS


def _is_stopping(thread: int) -> bool:
    """Whether a thread is handling Stopped, or an error that followed from it: it must be able to
    clean up."""
    found: Any = sys._current_exceptions().get(thread)
    error = found[1] if isinstance(found, tuple) else found  # a tuple before Python 3.12
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None
