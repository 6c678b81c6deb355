"""What a process knows of shards that have not answered in time.

Such a shard is *silent* until it has answered; claims skip it while another one can serve them.
Jobs that it leases late are kept for the next equal claim of the same worker. Those that nobody
claims soon are given back, and then the next claim waits for the shard: it may always be as slow.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

from tenure.clock import Clock
from tenure.core.fencing import Fence, Fenced
from tenure.engines.sharded.shard import Shard
from tenure.errors import StoreError, TenureError
from tenure.model import ops
from tenure.model.job import Job

log = logging.getLogger("tenure.shards")

# That a claim, or the search for a job, waits for a shard if others can do without: it is silent.
PROMPT_SECONDS = 0.25
# After which a shard that is silent is away. A renewal and a step of upkeep give up.
SLOW_SECONDS = 3.0
KEEP_SECONDS = 3.0  # until jobs that nobody claims are given back
MOST_AGE = 0.25  # of a lease, when its job is handed on; a worker renews it after a half

Kind = tuple[frozenset[str], str | None, tuple[str, ...], str, int]


def kind_of(claim: ops.Claim) -> Kind:
    """Equal for claims that may get the same jobs."""
    queues = frozenset(claim.queues)  # a worker asks for them in turns
    return (queues, claim.tenant, claim.not_groups, claim.worker, claim.lease_ms)


class Unanswered(StoreError):
    """A shard is silent. What it was asked to do may happen later."""


def unanswered(shard: Shard) -> Unanswered:
    return Unanswered(f"shard {shard.name!r} has not responded yet")


def too_late(shard: Shard) -> StoreError:
    return StoreError(f"shard {shard.name!r} has not responded for {SLOW_SECONDS:g} seconds")


class Kept:
    """Jobs that a shard has leased late."""

    def __init__(self, kind: Kind, shard: int, jobs: Sequence[Job], until: float) -> None:
        self.kind = kind
        self.shard = shard
        self.jobs: list[Job] = list(jobs)
        self.until = until  # on the clock of the store, when too much of the lease has gone


class Late:
    """The silent shards, and the jobs that are kept."""

    def __init__(
        self,
        shards: Sequence[Shard],
        clock: Clock,
        mark: Callable[[], str],
        wake: Callable[[], None],
    ) -> None:
        """mark: that of the shards, as this process knows it. wake: called when there are jobs to
        hand on."""
        self.pid: int = os.getpid()
        self._shards = shards
        self._clock = clock
        self._mark = mark
        self._wake = wake
        self._lock = threading.Lock()
        self._unanswered: dict[int, tuple[Future[Any], float]] = {}  # and when it was asked
        self._kept: list[Kept] = []
        self._unclaimed: set[int] = set()  # shards whose late jobs were given back
        self._closed = False

    # Silence ------------------------------------------------------------------------------------

    def note(self, shard: int, call: Future[Any], asked_at: float) -> None:
        """Note that a call is not answered in time."""
        with self._lock:
            known = self._unanswered.get(shard)
            if known is None or known[0].done():
                self._unanswered[shard] = (call, asked_at)

    def is_silent(self, shard: int) -> bool:
        """Whether a shard has not answered an earlier call in time. After a while, it is away."""
        known = self._unanswered.get(shard)
        if known is None or known[0].done():
            return False
        if monotonic() - known[1] > SLOW_SECONDS:
            self.leave(shard)
        return True

    def leave(self, shard: int) -> StoreError:
        """Mark a shard as away, and return the error. When it is back, it is not silent."""
        self._shards[shard].leave(f"has not responded for {SLOW_SECONDS:g} seconds")
        with self._lock:
            self._unanswered.pop(shard, None)
        return too_late(self._shards[shard])

    def must_wait(self, shard: int) -> bool:
        """Whether the next claim must wait for a shard, so that it gets anything from it."""
        with self._lock:
            if shard not in self._unclaimed:
                return False
            self._unclaimed.discard(shard)
            return True

    # Jobs ---------------------------------------------------------------------------------------

    def keep(self, shard: int, claim: ops.Claim, jobs: Sequence[Job], asked_at: float) -> None:
        """Keep jobs for a claim, or give them back. asked_at: on the clock of the store."""
        if self._shards[shard].away is not None:  # it responds, but is not known to be back
            self._give_back(shard, jobs)
            return
        until = asked_at + claim.lease_ms / 1000 * MOST_AGE
        kept = Kept(kind_of(claim), shard, jobs, until)
        with self._lock:
            self._kept.append(kept)
        if self._closed or self._clock.monotonic() > until:
            self._drop(kept)
            return
        timer = threading.Timer(KEEP_SECONDS, self._drop, (kept,))
        timer.daemon = True
        timer.start()
        self._wake()

    def take(self, claim: ops.Claim, limit: int) -> list[Job]:
        """Jobs that were kept for such a claim."""
        if not self._kept:
            return []
        found: list[Job] = []
        kind, now = kind_of(claim), self._clock.monotonic()
        with self._lock:
            for kept in self._kept:
                is_there = self._shards[kept.shard].away is None
                if kept.kind == kind and now <= kept.until and is_there:
                    end = limit - len(found)
                    found += kept.jobs[:end]
                    kept.jobs = kept.jobs[end:]
            self._kept = [kept for kept in self._kept if kept.jobs]
        return found

    def _drop(self, kept: Kept) -> None:
        with self._lock:
            if kept not in self._kept:
                return
            self._kept.remove(kept)
            self._unclaimed.add(kept.shard)
        self._give_back(kept.shard, kept.jobs)

    def _give_back(self, shard: int, jobs: Sequence[Job]) -> None:
        batch = [ops.Release(job.id, job.token) for job in jobs]
        try:
            self._shards[shard].open().apply(batch, Fence(self._mark()))
        except (TenureError, Fenced) as error:
            log.info("%d jobs are leased until their leases expire: %s", len(jobs), error)

    def close(self) -> None:
        """Give back all jobs, also those that are leased in a moment."""
        self._closed = True
        wait([call for call, _ in self._unanswered.values()], SLOW_SECONDS)
        for kept in list(self._kept):
            self._drop(kept)
