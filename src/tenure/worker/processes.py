"""Child processes for CPU-bound handlers: they do not block other jobs, and can be killed."""

from __future__ import annotations

import atexit
import contextvars
import importlib
import multiprocessing
import os
import signal
import threading
import weakref
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tenure.errors import InvalidInput
from tenure.model.job import Job
from tenure.model.ops import Op
from tenure.observe.tracing import working
from tenure.queue import Queue, connect
from tenure.settings import Settings
from tenure.worker.current_job import CURRENT, CurrentJob
from tenure.worker.handler import HandlerSpec
from tenure.worker.outcome import NO_ERRORS, after_error, after_return
from tenure.worker.run import Run

_CONTEXT = multiprocessing.get_context("spawn")


class ProcessDied(RuntimeError):
    """The process that ran the task ended before the task did."""


class NeverBegan(Exception):
    """The process ended before it took the job."""


class Processes:
    """A pool of processes that each run one job at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._closed = False

    def attempt(self, run: Run) -> Op | None:
        """Run the job in a process, blocking the calling thread. Returns the operation to submit
        for the job, if any."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is not None and child.process.is_alive():
            try:
                return self._attempt_in(child, run)
            except NeverBegan:  # killed while it was idle: the job has not been tried
                if run.reason is not None:  # interrupted, and that killed it
                    return after_error(run.job, _died(child), run.reason)
        try:
            child = Child(self._settings)
        except Exception as error:  # no process can be started
            return after_error(run.job, error, run.reason)
        try:
            return self._attempt_in(child, run)
        except NeverBegan:
            return after_error(run.job, _died(child), run.reason)

    def _attempt_in(self, child: Child, run: Run) -> Op | None:
        run.can_be_interrupted_by(child.process.kill)
        try:
            op = child.attempt(run)
        except (EOFError, OSError):
            return after_error(run.job, _died(child), run.reason)
        finally:
            run.can_be_interrupted_by(None)
        with self._lock:
            if run.reason is None and not self._closed:
                self._idle.append(child)
                return op
        child.process.kill()
        return op

    def close(self) -> None:
        """Kill idle processes; the others end with their jobs."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.process.kill()
        for child in idle:
            child.process.join()


class Child:
    """The parent's handle on a process."""

    def __init__(self, settings: Settings) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self.process: BaseProcess = _CONTEXT.Process(
            target=serve, args=(theirs, settings), name="tenure-process", daemon=True
        )
        self.process.start()
        self.parent: int = os.getpid()
        _CHILDREN.add(self)
        theirs.close()

    def attempt(self, run: Run) -> Op | None:
        """Run the job and return the operation to submit.

        Raises NeverBegan if the process ends before it takes the job, and EOFError or OSError if
        it ends later.
        """
        try:
            self._pipe.send((run.handler.module, run.handler.qualname, run.job))
            self._pipe.recv()
        except (EOFError, OSError) as error:
            raise NeverBegan from error
        while True:
            what, value = self._pipe.recv()
            if what == "progress":
                run.progress(*value)
            else:
                op: Op | None = value
                return op


def _died(child: Child) -> ProcessDied:
    child.process.join()
    return ProcessDied(f"the process that ran it ended with exit code {child.process.exitcode}")


_CHILDREN: weakref.WeakSet[Child] = weakref.WeakSet()


@atexit.register
def _kill_all() -> None:
    """Kill the processes of a program that exits without stopping its worker. They ignore the
    SIGTERM that multiprocessing would send, and it would then wait for them."""
    for child in list(_CHILDREN):
        if child.parent == os.getpid():  # not in a fork
            child.process.kill()


def serve(pipe: Connection, settings: Settings) -> None:
    """The main function of a process: run the jobs it is sent until the parent is gone."""
    # Only the parent decides when to stop, even if a terminal or a service manager signals all
    # processes. Not SIG_IGN, because programs started by a task would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    queue = connect(settings=settings)
    while True:
        try:
            module, qualname, job = pipe.recv()
        except EOFError:
            return
        pipe.send(("began", None))
        pipe.send(("ended", _attempt(pipe, queue, module, qualname, job)))


class InProcess(CurrentJob):
    """A job whose handler runs in a process of its own, which uses the store by itself."""

    __slots__ = ()

    def _carry_out(self, course: Any) -> Any:
        if self._queue.settings.url.startswith("memory:"):
            course.close()
            raise InvalidInput(
                "process",
                "a task in a process has no steps in a store in memory, which is another one there:"
                " use a file such as sqlite:///jobs.db, or leave out process=True",
            )
        return super()._carry_out(course)


def _attempt(pipe: Connection, queue: Queue, module: str, qualname: str, job: Job) -> Op | None:
    try:
        handler = find(module, qualname)
    except BaseException as error:
        return after_error(job, error, None)

    def report(_: CurrentJob, percent: int, note: str | None) -> None:
        pipe.send(("progress", (percent, note)))

    current = InProcess(job, queue, report, handler.result_of)
    CURRENT.set(current)
    try:
        value = contextvars.copy_context().run(_call, handler, current)
        limit = queue.settings.payload_limit
        return after_return(job, value, None, limit, handler.rules, current.suspension)
    except BaseException as error:
        return after_error(job, error, None, handler.rules, current.suspension)


def _call(handler: HandlerSpec, current: CurrentJob) -> Any:
    job = current.job
    try:
        with working(job, job.kind, NO_ERRORS):
            return handler.call(job)
    finally:
        if current.uses_steps:
            current.settle()


def _end_with_parent() -> None:
    """Exit when the parent dies: another worker will run the job, so it must not continue here."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def find(module: str, qualname: str) -> HandlerSpec:
    """Find the handler of a task by the module and name it was declared under."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    handler = getattr(found, "handler", None)
    if not isinstance(handler, HandlerSpec):
        raise InvalidInput("process", f"{module}.{qualname} is not a task at module level")
    return handler
