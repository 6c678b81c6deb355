"""What the programs of a run do, drawn by chance."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.transact import TooSlow
from tenure.errors import Busy, LeaseLost, TenureError
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec, Lease
from tenure.model.retry import Backoff
from tenure.settings import Settings
from tests import fdb_sim
from tests.simulation.servers.auditor import QUEUE_LIMIT, Auditor
from tests.simulation.servers.stepping import Actor, Crashed, SteppedDatabase

QUEUES = ("mail", "web")
SCOPES: list[tuple[str, str | None]] = [("acme", None), ("acme", "g"), ("*", "g"), ("", None)]


class Program:
    """A server with a worker: it enqueues, claims, finishes, and crashes now and then."""

    def __init__(
        self, name: str, seed: int, db: fdb_sim.Database, auditor: Auditor, operations: int
    ) -> None:
        self.name = name
        self.db = db
        self.chance = random.Random(seed)
        self.auditor = auditor
        self.operations = operations
        self.leases: list[Lease] = []
        self.made: list[str] = []
        self.count = 0

    def run(self, actor: Actor) -> None:
        engine: FoundationDbEngine | None = None
        while self.operations > 0:
            try:
                engine = engine or self._open(actor)
                while self.operations > 0:
                    self.operations -= 1
                    with suppress(Busy, TooSlow):  # it may have happened: nobody was told
                        self._operate(engine)
                    actor.step()
            except Crashed:
                engine, self.leases = None, []

    def _open(self, actor: Actor) -> FoundationDbEngine:
        chance = random.Random(self.chance.random())
        db = SteppedDatabase(self.db, actor)
        clock = self.db.clock
        return FoundationDbEngine(
            fdb_sim, db, Settings(), clock, hybrid=True, chance=chance, aside_from=1, near_from=1
        )

    def _operate(self, engine: FoundationDbEngine) -> None:
        kind = self.chance.choices(
            [
                "enqueue", "claim", "claim_once", "ack", "fail", "release", "extend", "cancel",
                "maintain", "once", "set_limits", "pause", "reconcile", "look",
            ],
            [4, 6, 1, 5, 2, 1, 1, 0.5, 0.5, 1, 0.3, 0.7, 0.3, 0.3],
        )[0]  # fmt: skip
        getattr(self, kind)(engine)

    def _spec(self) -> JobSpec:
        self.count += 1
        job_id = f"{self.name}-{self.count}"
        self.made.append(job_id)
        self.auditor.maybe_enqueued.add(job_id)
        parents = self.made[:-1] if self.chance.random() < 0.15 else []
        parents = [one for one in parents if one in self.auditor.enqueued][-1:]
        return JobSpec(
            job_id,
            self.chance.choice(QUEUES),
            NULL,
            tenant=self.chance.choice(["", "acme", "bolt"]),
            group=self.chance.choice(["", "g", "h"]),
            priority=self.chance.choice([0, 0, 5]),
            max_attempts=self.chance.randint(1, 4),
            delay_ms=self.chance.choice([0, 0, 0, 2000]),
            expires_in_ms=self.chance.choice([None, None, None, 20_000]),
            unique_key=self.chance.choice([None, None, None, "k"]),
            after=tuple(parents),
            if_parent_fails=self.chance.choice(["cancel", "run"]),
            backoff=Backoff("fixed", 500),
        )

    def _note_enqueued(self, op: ops.Enqueue, answer: Any) -> None:
        if not isinstance(answer, ops.Enqueued):
            return
        for spec, job_id, created in zip(op.jobs, answer.ids, answer.created, strict=True):
            if created:
                self.auditor.enqueued.add(job_id)
            elif job_id == spec.id:
                self.auditor.wrong.append(f"{job_id} was enqueued twice")

    def enqueue(self, engine: FoundationDbEngine) -> None:
        batch = [
            ops.Enqueue(tuple(self._spec() for _ in range(self.chance.randint(1, 3))), "skip")
            for _ in range(self.chance.randint(1, 2))
        ]
        for op, answer in zip(batch, engine.apply(batch), strict=True):
            self._note_enqueued(op, answer)

    def once(self, engine: FoundationDbEngine) -> None:
        """As a client that lost the answer does: twice under one key."""
        enqueue = ops.Enqueue((self._spec(),), "skip")
        op = ops.Once(f"{self.name}-{self.count}", (enqueue,))
        first, second = engine.apply([op]), engine.apply([op])
        assert first == second
        (answers,) = first
        assert isinstance(answers, ops.Answers)
        self._note_enqueued(enqueue, answers.answers[0])

    def claim(self, engine: FoundationDbEngine) -> None:
        lease_ms = self.chance.choice([1000, 5000, 20_000])
        claim = ops.Claim(
            (self.chance.choice(QUEUES),), self.name, lease_ms, self.chance.randint(1, 4)
        )
        for answer in engine.apply([claim]):
            assert isinstance(answer, ops.Leased)
            self.auditor.claimed(self.name, answer.jobs, lease_ms)
            self.leases += [Lease(job.id, job.token) for job in answer.jobs]

    def claim_once(self, engine: FoundationDbEngine) -> None:
        """A claim whose answer is stored, and asked for twice. A lease may have ended meanwhile:
        others cancel jobs, and a call with faults can take longer than the lease."""
        self.count += 1
        claim = ops.Claim((self.chance.choice(QUEUES),), self.name, 5000, self.chance.randint(1, 2))
        op = ops.Once(f"{self.name}-{self.count}", (claim,))
        answer, again = (_leased(engine.apply([op])) for _ in range(2))
        assert all(job in answer.jobs for job in again.jobs)
        self.auditor.claimed(self.name, answer.jobs, 5000)
        self.leases += [Lease(job.id, job.token) for job in answer.jobs]

    def set_limits(self, engine: FoundationDbEngine) -> None:
        """Limits that change nothing but have everything counted anew, or no tenant at all."""
        engine.apply(
            [
                ops.SetLimit("web", concurrency=QUEUE_LIMIT, rate=1000, per_ms=1000),
                ops.SetLimit("mail", tenant="nobody", concurrency=1, weight=2),
                ops.Pause("mail", "acme"),
                ops.Resume("mail", "acme"),
            ]
        )

    def pause(self, engine: FoundationDbEngine) -> None:
        """A tenant or a group is paused, or any that is goes on."""
        scope = self.chance.choice(SCOPES)
        change = self.chance.choice([ops.Pause, ops.Resume, ops.Resume])
        engine.apply([change("web", *scope)])

    def reconcile(self, engine: FoundationDbEngine) -> None:
        """While the others work: there is never anything to correct."""
        for answer in engine.apply([ops.Reconcile(queue) for queue in QUEUES]):
            if isinstance(answer, ops.Corrected) and answer.by:
                self.auditor.wrong.append(f"a recount corrected {answer.by}")

    def look(self, engine: FoundationDbEngine) -> None:
        """Counts are those of one moment: none is below nothing."""
        found = engine.read(queries.GetStats())
        assert isinstance(found, list)
        for one in found:
            assert isinstance(one, queries.QueueStats)
            if min(queries.as_counts(one).values()) < 0:
                self.auditor.wrong.append(f"counted {one}")

    def _lease(self, *, forget: bool = True) -> Lease | None:
        if not self.leases:
            return None
        n = self.chance.randrange(len(self.leases))
        keep = not forget or self.chance.random() < 0.1  # and come back with an old token
        return self.leases[n] if keep else self.leases.pop(n)

    def ack(self, engine: FoundationDbEngine) -> None:
        leases = [one for one in (self._lease(), self._lease()) if one is not None]
        held = [lease for lease in leases if self.auditor.holds(lease.id, lease.token)]
        for lease in leases:
            self.auditor.may_have_ended(lease.id, lease.token)
            self.auditor.acking[lease.id] += 1
        answers = engine.apply([ops.Ack(lease.id, lease.token) for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            self.auditor.acking[lease.id] -= 1
            if isinstance(answer, ops.Ok):
                self.auditor.ack(lease.id)
            else:
                assert isinstance(answer, ops.Moved | LeaseLost), answer
                # A call with faults can take longer than the lease, and find its job taken.
                lost = isinstance(answer, LeaseLost) and answer.state != "done"
                if lost and lease in held and leases.count(lease) == 1:
                    self.auditor.lost(lease.id, lease.token)

    def fail(self, engine: FoundationDbEngine) -> None:
        self._end(engine, lambda lease: ops.Fail(lease.id, lease.token, "boom"))

    def release(self, engine: FoundationDbEngine) -> None:
        self._end(engine, lambda lease: ops.Release(lease.id, lease.token))

    def _end(self, engine: FoundationDbEngine, op: Any) -> None:
        lease = self._lease()
        if lease is not None:
            self.auditor.may_have_ended(lease.id, lease.token)
            (answer,) = engine.apply([op(lease)])
            assert isinstance(answer, ops.Moved | LeaseLost), answer

    def extend(self, engine: FoundationDbEngine) -> None:
        lease = self._lease(forget=False)
        if lease is not None:
            until = self.auditor.version() + 10_000_000
            self.auditor.extending(lease.id, lease.token, until)
            (answer,) = engine.apply([ops.Extend(lease.id, lease.token, 10_000)])
            if isinstance(answer, ops.Ok):
                self.auditor.extended(lease.id, lease.token, until)

    def cancel(self, engine: FoundationDbEngine) -> None:
        if self.made:
            job_id = self.chance.choice(self.made)
            self.auditor.cancelled.add(job_id)
            engine.apply([ops.Cancel((job_id,)), ops.Replay((job_id,))])

    def maintain(self, engine: FoundationDbEngine) -> None:
        (answer,) = engine.apply([ops.Maintain()])
        assert not isinstance(answer, TenureError)


def _leased(answers: list[ops.Answer]) -> ops.Leased:
    """The answer of the only claim of the only keyed call."""
    (given,) = answers
    assert isinstance(given, ops.Answers)
    (leased,) = given.answers
    assert isinstance(leased, ops.Leased)
    return leased
