"""Renewing leases in a separate thread, so that a handler that blocks the event loop or computes
for minutes does not lose its job."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection

from tenure.errors import LeaseLost, NotFound, TenureError
from tenure.model.job import Lease
from tenure.queue import Queue
from tenure.worker.beats import Beats
from tenure.worker.run import Run

log = logging.getLogger("tenure.worker")

OVERDUE_SECONDS = 1.0  # how long a handler can take to end after its timeout
SHORTEST_PAUSE = 0.25  # seconds between two checks for overdue handlers
LONGEST_INTERVAL = 5.0  # seconds; within which a cancelled job is noticed
MOST_AT_ONCE = 1_000


class Keeper:
    """Renews the leases of running jobs, and stops handlers that have lost theirs."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        runs: Callable[[], Collection[Run]],
        overdue: Callable[[Run], None],
        unstored: Callable[[], Collection[Lease]],
        beats: Beats | None = None,
    ) -> None:
        """unstored: leases of jobs whose handlers ended and whose outcome is not stored yet. beats:
        the worker's reports that it is alive, which this thread also sends."""
        self._queue = queue
        self._lease = lease
        self._interval = min(lease / 3, LONGEST_INTERVAL)
        self._runs = runs
        self._overdue = overdue
        self._untold = unstored
        self._beats = beats
        self._looked_at_ms = queue.clock.now_ms()
        self._stopping = False
        self._poked = threading.Event()
        self._wakes_at = math.inf  # on the queue's clock
        self._thread = threading.Thread(target=self._keep, name="tenure-keeper", daemon=True)

    @property
    def was_suspended(self) -> bool:
        """Whether leases may have expired because the whole process was suspended."""
        return self._queue.clock.now_ms() - self._looked_at_ms > self._lease * 1000

    def start(self) -> None:
        self._looked_at_ms = self._queue.clock.now_ms()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._poked.set()
        self._thread.join()
        if self._beats is not None:
            self._beats.stop()

    def begin_beats(self) -> None:
        """Report the worker as alive from now on. Can be called from any thread."""
        if self._beats is not None and not self._beats.begun:
            self._beats.begin()
            self._poked.set()

    def watch(self, deadline: float) -> None:
        """Wake up in time to see whether a handler that has just started ends by its deadline. Can
        be called from any thread."""
        if deadline + OVERDUE_SECONDS < self._wakes_at:
            self._poked.set()

    def _keep(self) -> None:
        renew_at = time.monotonic() + self._interval
        while True:
            self._poked.wait(self._pause(renew_at - time.monotonic()))
            if self._stopping:
                return
            self._poked.clear()
            try:
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + self._interval
                    self.look()
                else:
                    self._give_up_overdue()
                if self._beats is not None:
                    self._beats.beat_if_due()
            except TenureError as error:
                log.warning("leases could not be renewed, trying again: %s", error)
            except Exception:
                log.exception("leases could not be renewed, trying again")

    def _pause(self, seconds: float) -> float:
        """How long to sleep: until the next renewal, or until the next handler may be overdue."""
        self._wakes_at = math.inf  # a handler that starts from here on wakes this thread
        deadlines = [run.deadline for run in self._runs() if run.deadline is not None]
        now = self._queue.clock.monotonic()
        if deadlines:
            seconds = min(seconds, max(min(deadlines) + OVERDUE_SECONDS - now, SHORTEST_PAUSE))
        if self._beats is not None:
            seconds = min(seconds, self._beats.seconds_left())
        self._wakes_at = now + seconds
        return max(seconds, 0)

    def look(self) -> None:
        """Renew leases that are old enough, and give up on overdue handlers."""
        now, all_of_them = self._queue.clock.monotonic(), self.was_suspended
        looked_at_ms = self._queue.clock.now_ms()
        running = [run for run in self._runs() if not run.ended]
        # Half an interval, so that a job claimed just after a round is renewed in the next one,
        # with half of its lease left, rather than in the one after that.
        age = 0.0 if all_of_them else self._interval / 2
        old = [run for run in running if now - run.kept_at >= age]
        for start in range(0, len(old), MOST_AT_ONCE):
            self._renew(old[start : start + MOST_AT_ONCE], now)
        if unstored := self._untold():
            self._queue.extend_many(list(unstored), self._lease)  # fails for those stored meanwhile
        self._looked_at_ms = looked_at_ms  # only now: until then a claim could take our own jobs
        self._give_up_overdue()

    def _give_up_overdue(self) -> None:
        now = self._queue.clock.monotonic()
        for run in self._runs():
            if run.deadline is not None and now > run.deadline + OVERDUE_SECONDS:
                self._overdue(run)

    def _renew(self, runs: list[Run], now: float) -> None:
        answers = self._queue.extend_many([run.job for run in runs], self._lease)
        for run, error in zip(runs, answers, strict=True):
            if error is None:
                run.kept_at = now
            elif isinstance(error, LeaseLost | NotFound) and not run.ended and run.reason is None:
                log.warning("job %s was lost, its handler is stopped: %s", run.job.id, error)
                run.stop("lost")
