"""What the programs were told, and what must therefore be true."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.model.job import Job, State
from tests import fdb_sim
from tests.support.fdb_audit import Rows, wrong_keys

QUEUE_LIMIT, TENANT_LIMIT, GROUP_LIMIT = 4, 2, 1


@dataclass
class Holding:
    """A lease that somebody was told to have."""

    worker: str
    token: int
    lease_ms: int
    valid_until: int  # in versions of the store without jumps: nobody may take the job before
    ended: bool = False  # the holder may have ended it


@dataclass
class Auditor:
    """Watches one run."""

    cluster: fdb_sim.Cluster
    enqueued: set[str] = field(default_factory=set)
    maybe_enqueued: set[str] = field(default_factory=set)
    acking: Counter[str] = field(default_factory=Counter)  # tried to, and never heard
    acked: Counter[str] = field(default_factory=Counter)
    held: dict[str, list[Holding]] = field(default_factory=lambda: defaultdict(list))
    cancelled: set[str] = field(default_factory=set)  # tried to: whatever lease there was may end
    wrong: list[str] = field(default_factory=list)

    def version(self) -> int:
        """Of the store, now, without jumps."""
        tr = fdb_sim.open(self.cluster).create_transaction()
        return self.cluster.without_jumps(int(tr.get_read_version().wait()))

    def holds(self, job_id: str, token: int) -> bool:
        """Whether a lease can only have been taken away too early."""
        return job_id not in self.cancelled and any(
            one.token == token and not one.ended and self.version() < one.valid_until
            for one in self.held[job_id]
        )

    def claimed(self, worker: str, jobs: list[Job], lease_ms: int) -> None:
        for job in jobs:
            before = self.held[job.id]
            for other in before:
                if other.token == job.token:
                    self.wrong.append(f"{job.id} has two holders of token {job.token}")
            until = self.cluster.without_jumps(job.token) + lease_ms * 1000
            before.append(Holding(worker, job.token, lease_ms, until))
            if job.attempts > job.max_attempts:
                self.wrong.append(f"{job.id} has {job.attempts} of {job.max_attempts} attempts")

    def extending(self, job_id: str, token: int, until: int) -> None:
        """Somebody tries to have the lease end then, be that later or earlier."""
        for one in self.held[job_id]:
            if one.token == token:
                one.valid_until = min(one.valid_until, until)

    def extended(self, job_id: str, token: int, until: int) -> None:
        for one in self.held[job_id]:
            if one.token == token:
                one.valid_until = until

    def lost(self, job_id: str, token: int) -> None:
        """Somebody who held a lease when a call began is told that it is lost, after the call."""
        for one in self.held[job_id] if job_id not in self.cancelled else ():
            if one.token == token and self.version() < one.valid_until:
                self.wrong.append(f"{job_id} was taken from {one.worker} too early")

    def may_have_ended(self, job_id: str, token: int) -> None:
        for one in self.held[job_id]:
            if one.token == token:
                one.ended = True

    def ack(self, job_id: str) -> None:
        self.acked[job_id] += 1
        if self.acked[job_id] > 1:
            self.wrong.append(f"{job_id} was acknowledged twice")

    def look(self, *, thoroughly: bool) -> None:
        """Look into the store."""
        rows = Rows(fdb_sim.open(self.cluster), ("tenure",))
        leased = Counter[Any]()
        for queue, tenant, group, _ in rows.of(k.LEASE):
            if queue == "web":
                leased[()] += 1
                leased[tenant] += 1
                leased[tenant, group] += 1 if group else 0
        bounds = {0: QUEUE_LIMIT, 1: TENANT_LIMIT, 2: GROUP_LIMIT}
        for key, count in leased.items():
            bound = bounds[len(key) if isinstance(key, tuple) else 1]
            if count > bound:
                self.wrong.append(f"{count} jobs of {key} are leased, and {bound} may be")
        if thoroughly:
            self.wrong += wrong_keys(fdb_sim.open(self.cluster))

    def at_the_end(self, jobs: dict[str, Job]) -> None:
        """All work is done."""
        for job_id in self.enqueued - jobs.keys():
            self.wrong.append(f"{job_id} was enqueued, and is lost")
        for job_id in jobs.keys() - self.enqueued - self.maybe_enqueued:
            self.wrong.append(f"{job_id} was enqueued by nobody")
        for job in jobs.values():
            if job.state not in (State.DONE, State.DEAD, State.CANCELLED):
                self.wrong.append(f"{job.id} is still {job.state}")
            if self.acked[job.id] and job.state is not State.DONE:
                self.wrong.append(f"{job.id} was acknowledged, and is {job.state}")
            if job.state is State.DONE and not self.acked[job.id] and not self.acking[job.id]:
                self.wrong.append(f"{job.id} is done, and nobody was told so")
        for job_id, holdings in self.held.items():
            holdings.sort(key=lambda one: one.token)
            for first, second in itertools.pairwise(holdings):
                kept = not first.ended and job_id not in self.cancelled
                early = first.valid_until - self.cluster.without_jumps(second.token)
                if kept and early > 0:
                    self.wrong.append(
                        f"{job_id} was taken from {first.worker} {early / 1e6:.3f} s too early"
                    )
