"""Renewing leases in a separate thread, so that a handler that blocks the event loop or computes
for minutes does not lose its job.

Renewing waits for nothing. The thread of the keeper only decides what is due. Each round of
renewals has a thread of its own, and the next one begins in time even if this one is held up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from tenure.errors import Busy, LeaseLost, NotFound, StoreError, TenureError
from tenure.model.job import Lease
from tenure.queue import Queue
from tenure.worker.outage import Outage
from tenure.worker.run import Run

log = logging.getLogger("tenure.worker")

OVERDUE_SECONDS = 1.0  # how long a handler can take to end after its timeout
SHORTEST_PAUSE = 0.25  # seconds between two checks for overdue handlers
LONGEST_INTERVAL = 5.0  # seconds; within which a cancelled job is noticed
MOST_AT_ONCE = 1_000  # leases in one call
MOST_ROUNDS = 8  # in progress at once
STOP_SECONDS = 2.0  # for rounds in progress to end

_Key = tuple[str, int]  # the id of a job, and the token of its claim


class Keeper:
    """Renews the leases of running jobs, and stops handlers that have lost theirs."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        runs: Callable[[], Collection[Run]],
        overdue: Callable[[Run], None],
        unstored: Callable[[], Collection[Lease]],
    ) -> None:
        """overdue: gives up on a handler that does not end after its timeout; must not wait.
        unstored: leases of jobs whose handlers ended and whose outcome is not stored yet."""
        self._queue = queue
        self._lease = lease
        self._interval = min(lease / 3, LONGEST_INTERVAL)
        self._runs = runs
        self._overdue = overdue
        self._unstored = unstored
        self._hard: set[_Key] = set()  # leases that could not be renewed the last time
        self._outage = Outage(log, queue.settings)
        self._looked_at_ms = queue.clock.now_ms()
        self._stopping = False
        self._poked = threading.Event()
        self._wakes_at = math.inf  # on the queue's clock
        self._rounds: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._keep, name="tenure-keeper", daemon=True)

    @property
    def was_suspended(self) -> bool:
        """Whether leases may have expired, or soon will, because the whole process was suspended. A
        lease that was too young to be renewed in the last round ends 5/6 of a lease after it."""
        return self._queue.clock.now_ms() - self._looked_at_ms > self._lease * 1000 * 2 / 3

    def start(self) -> None:
        self._looked_at_ms = self._queue.clock.now_ms()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._poked.set()
        self._thread.join()
        until = time.monotonic() + STOP_SECONDS
        for one in self._rounds:
            one.join(max(0.0, until - time.monotonic()))

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
                    self._begin_round()
                self.give_up_overdue()
            except Exception:
                log.exception("leases could not be renewed, trying again")

    def _pause(self, seconds: float) -> float:
        """How long to sleep: until the next renewal, or until the next handler may be overdue."""
        self._wakes_at = math.inf  # a handler that starts from here on wakes this thread
        deadlines = [run.deadline for run in self._runs() if run.deadline is not None]
        now = self._queue.clock.monotonic()
        if deadlines:
            seconds = min(seconds, max(min(deadlines) + OVERDUE_SECONDS - now, SHORTEST_PAUSE))
        self._wakes_at = now + seconds
        return max(seconds, 0)

    def _begin_round(self) -> None:
        self._rounds = [one for one in self._rounds if one.is_alive()]
        if len(self._rounds) < MOST_ROUNDS:
            one = threading.Thread(target=self._round, name="tenure-renewals", daemon=True)
            one.start()
            self._rounds.append(one)

    def _round(self) -> None:
        try:
            self.look()
        except TenureError as error:
            if not self._stopping:
                self._outage.goes_on("leases could not be renewed", error)
        except Exception:
            log.exception("leases could not be renewed, trying again")
        else:
            self._outage.is_over()

    def look(self) -> None:
        """Renew leases that are old enough."""
        now, all_of_them = self._queue.clock.monotonic(), self.was_suspended
        looked_at_ms = self._queue.clock.now_ms()
        # Half an interval, so that a job claimed just after a round is renewed in the next one,
        # with half of its lease left, rather than in the one after that.
        age = 0.0 if all_of_them else self._interval / 2
        running = [run for run in self._runs() if not run.ended]
        runs = {(run.job.id, run.token): run for run in running if now - run.kept_at >= age}
        keys = dict.fromkeys([*runs, *((one.id, one.token) for one in self._unstored())])
        # Those that are locked, or on a shard that is away, are tried apart: the others are not
        # locked, and their answers are not held up, while these wait.
        hard = _parts([key for key in keys if key in self._hard])
        easy = _parts([key for key in keys if key not in self._hard])
        self._hard = {key for part in hard for key in part}
        errors = self._renew_all([*easy, *hard], runs, now)
        for error in errors[len(easy) :]:
            if error is not None:
                log.info("some leases could not be renewed, trying again: %s", error)
        for error in errors[: len(easy)]:
            if error is not None:
                raise error
        # Only now: until then a claim could take our own jobs.
        self._looked_at_ms = max(self._looked_at_ms, looked_at_ms)

    def _renew_all(
        self, parts: Sequence[Sequence[_Key]], runs: dict[_Key, Run], now: float
    ) -> list[Exception | None]:
        """Renew the parts at once, so that none waits for what another waits for."""

        def renew(part: Sequence[_Key]) -> Exception | None:
            try:
                self._renew(part, runs, now)
            except Exception as error:
                return error
            return None

        if len(parts) <= 1:
            return [renew(part) for part in parts]
        with ThreadPoolExecutor(len(parts), thread_name_prefix="tenure-renewals") as threads:
            return list(threads.map(renew, parts))

    def _renew(self, part: Sequence[_Key], runs: dict[_Key, Run], now: float) -> None:
        answers = self._queue.extend_many([Lease(*key) for key in part], self._lease)
        for key, error in zip(part, answers, strict=True):
            if isinstance(error, Busy | StoreError):
                self._hard.add(key)
                continue
            self._hard.discard(key)
            run = runs.get(key)
            if run is None:
                continue  # its handler has ended: the one who stores its outcome learns of it
            if error is None:
                run.kept_at = max(run.kept_at, now)
            elif isinstance(error, LeaseLost | NotFound) and not run.ended and run.reason is None:
                log.warning("job %s was lost, its handler is stopped: %s", run.job.id, error)
                run.stop("lost")

    def give_up_overdue(self) -> None:
        """Give up on handlers that do not end after their timeouts."""
        now = self._queue.clock.monotonic()
        for run in self._runs():
            if run.deadline is not None and now > run.deadline + OVERDUE_SECONDS:
                self._overdue(run)


def _parts(keys: Sequence[_Key]) -> list[Sequence[_Key]]:
    return [keys[start : start + MOST_AT_ONCE] for start in range(0, len(keys), MOST_AT_ONCE)]
