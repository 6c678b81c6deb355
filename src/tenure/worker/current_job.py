"""The job that the calling code is running."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from tenure.errors import JobNotFound, NoCurrentJob
from tenure.model.fields import check_label, percent_of
from tenure.model.job import Job, State
from tenure.queue import Queue
from tenure.worker.steps import Durable

Report = Callable[["CurrentJob", int, str | None], None]


class CurrentJob(Durable):
    """A job while its handler runs."""

    __slots__ = ("_event", "_lock", "_queue", "_report", "_result_of", "job", "reason")

    def __init__(
        self, job: Job, queue: Queue, report: Report, result_of: Callable[[Job], Any]
    ) -> None:
        self.job: Job = job
        self.reason: str | None = None  # why it must end early: timeout, lost or stop
        self._queue = queue
        self._report = report
        self._result_of = result_of
        self._event: threading.Event | None = None
        self._lock = threading.Lock()
        self._course = None

    @property
    def token(self) -> int:
        """The fencing token of the lease: it grows with every claim of the job."""
        return self.job.token

    @property
    def cancelled(self) -> threading.Event:
        """An event that is set when the job must end early; `reason` says why."""
        with self._lock:  # threads of the handler that ask at once must get the same event
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            return self._event

    def progress(self, percent: float, note: str | None = None) -> None:
        """Report progress, from 0 to 100, with an optional note. Does not block: the report is
        stored with the next commit."""
        percent = percent_of(percent)
        if note is not None:
            check_label("note", note)
        self._report(self, percent, note)

    def parents(self) -> list[Job]:
        """Return the jobs that this one waited for."""
        return self._all_of(self._queue.get_many(self.job.after))

    async def aparents(self) -> list[Job]:
        """Awaitable form of `parents`."""
        return self._all_of(await self._queue.aget_many(self.job.after))

    def _all_of(self, parents: list[Job | None]) -> list[Job]:
        for id, parent in zip(self.job.after, parents, strict=True):
            if parent is None:
                raise JobNotFound(id)
        return [parent for parent in parents if parent is not None]

    def results(self) -> list[Any]:
        """Return the results of the jobs that this one waited for, in order, decoded as the return
        types of their tasks. A job that is not done has None."""
        return [self._read(job) for job in self.parents()]

    async def aresults(self) -> list[Any]:
        """Awaitable form of `results`."""
        return [self._read(job) for job in await self.aparents()]

    def _read(self, job: Job) -> Any:
        return self._result_of(job) if job.state is State.DONE else None

    def to_end(self, reason: str) -> bool:
        """Tell the job to end early. Returns False if it was told before. The caller holds the
        lock."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._event is not None:
            self._event.set()
        return True


CURRENT: ContextVar[CurrentJob] = ContextVar("tenure_current_job")


def current_job() -> CurrentJob:
    """Return the job that the calling code is running. Raises NoCurrentJob outside of one."""
    try:
        return CURRENT.get()
    except LookupError:
        raise NoCurrentJob("current_job() was called outside of a running job") from None
