"""Suspects: jobs that were running when their worker process died. One of them may have killed it.

If they were started again together, that one would take the others with it until they had no
attempts left. So a process starts one suspect at a time, and nothing else until it has ended or
has run for a moment. A job that runs for long holds up others only for a while: suspects that would
have to wait for it are released, so that other processes can run them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from tenure.clock import Clock
from tenure.model.job import Job
from tenure.model.states import LEASE_RAN_OUT
from tenure.observe.logs import counted
from tenure.worker.post import Post
from tenure.worker.run import Run

log = logging.getLogger("tenure.worker")

WORKER_DIED = "WorkerDied"  # the type of the failure

QUIET_SECONDS = 5.0  # for which a suspect waits for the jobs that were started before it
HOLD_SECONDS = 1.0  # for which nothing is started after it
ALONE_SECONDS = 10.0  # for which no other suspect is
LAST_SECONDS = 60.0  # the same, if a further crash would make one of them dead
AWAY_MS = 2_000  # for which those are released
LOOK_SECONDS = 0.05


def is_suspect(job: Job) -> bool:
    """Whether the job may have killed its process.

    A lease also runs out if the store was away for long. So one that ran out is a reason only if
    it happened twice, or if the job would be dead the next time.
    """
    if not job.errors:
        return False
    if job.errors[-1].type == WORKER_DIED:
        return True
    lost = [error.message == LEASE_RAN_OUT for error in job.errors[-2:]]
    return lost[-1] and (lost == [True, True] or job.attempts >= job.max_attempts)


class Suspects:
    """The suspects of a worker that wait for their turn.

    start: starts the handler of a job. release: gives a job back, with a delay in milliseconds.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        clock: Clock,
        start: Callable[[Post, Run], None],
        release: Callable[[Post, Run, int], None],
    ) -> None:
        self.alone: Run | None = None  # the one that was started last, while it runs
        self.hold: bool = False  # whether no other jobs must be claimed now
        self._posts = posts
        self._clock = clock
        self._start = start
        self._release = release
        self._line: deque[tuple[Post, Run]] = deque()
        self._waits_since = 0.0
        self._alone_since = 0.0
        self._timer: asyncio.Handle | None = None

    def add(self, post: Post, run: Run) -> None:
        """Let a job wait for its turn."""
        if not self._line:
            self._waits_since = self._clock.monotonic()
        self._line.append((post, run))
        self.hold = True
        self._look_in(0)

    def ended(self) -> None:
        """Note that the one that was started last has ended. However long the others have waited,
        there is some time to store its outcome: the next one may kill the process."""
        self.alone = None
        soon = self._clock.monotonic() + HOLD_SECONDS
        self._waits_since = max(self._waits_since, soon - QUIET_SECONDS)
        self._look_in(0)

    def release_all(self, delay_ms: int = 0) -> None:
        """Release those that wait."""
        while self._line:
            self._release(*self._line.popleft(), delay_ms)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._line and not self._is_blocked(now) and self._is_quiet(now):
            post, run = self._line.popleft()
            self.alone, self._alone_since = run, now
            self._start(post, run)  # it may have ended when this returns
        is_new = self.alone is not None and now - self._alone_since < HOLD_SECONDS
        if self.alone is not None and not is_new and self._line and self._is_blocked(now):
            log.info(
                "%s released for %g s: they ran when a worker process died, as job %s did, and "
                "such jobs are started one at a time",
                counted(len(self._line), "job"),
                AWAY_MS / 1000,
                self.alone.job.id,
            )
            self.release_all(AWAY_MS)
        self.hold = is_new or bool(self._line)
        if self.hold:
            self._look_in(LOOK_SECONDS)
        else:
            for post in self._posts:
                post.wake()

    def _is_blocked(self, now: float) -> bool:
        """Whether the first in line must not start beside the suspect that was started last."""
        if self.alone is None:
            return False
        jobs = (self.alone.job, self._line[0][1].job)
        last = any(job.attempts >= job.max_attempts for job in jobs)
        return now - self._alone_since < (LAST_SECONDS if last else ALONE_SECONDS)

    def _is_quiet(self, now: float) -> bool:
        """Whether other jobs have ended, or run for long. What the store does not know of jobs that
        have ended, or we do not know of a claim, would be lost. It may not learn it for long, and
        nothing else is claimed meanwhile, so this wait ends, too."""
        if now - self._waits_since >= QUIET_SECONDS:
            return True
        if any(post.asked or post.unstored for post in self._posts):
            return False
        waiting = {id(run) for _, run in self._line}
        return not any(
            now - run.began < QUIET_SECONDS and not run.ended and key not in waiting
            for post in self._posts
            for key, run in post.runs.items()
        )
