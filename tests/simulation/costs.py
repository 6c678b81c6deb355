"""What a job costs on FoundationDB, counted by the simulation.

    python -m tests.simulation.costs

The queue has a backlog, and others hold leases: a claim on an empty queue costs less than any that
matters. docs/foundationdb.md has the table that this prints.
"""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import dataclass, replace

import msgspec

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops
from tenure.model.job import Job, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim import Stats

PAYLOAD = msgspec.Raw(b'{"to":"' + b"x" * 190 + b'"}')
BACKLOG = 1_000
LEASED = 100
BATCHES = 20
LEASE_MS = 60_000


@dataclass(frozen=True)
class Load:
    """Callers that come together, and what each of them asks for."""

    name: str
    callers: int = 1
    each: int = 1  # jobs
    limit: int | None = None  # concurrency
    keyed: bool = False  # claims come through the service

    @property
    def jobs(self) -> int:
        return self.callers * self.each


LOADS = (
    Load("alone"),
    Load("alone, over HTTP", keyed=True),
    Load("64 callers together", callers=64),
    Load("100 in one call", each=100),
)


class Queue:
    """A queue in use."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._ids = itertools.count()
        self._clock = ManualClock()
        self._db = fdb_sim.open(fdb_sim.Cluster(self._clock))
        self._engine = FoundationDbEngine(
            fdb_sim, self._db, Settings(), self._clock, hybrid=True, chance=random.Random(0)
        )
        if load.limit is not None:
            self._engine.apply([ops.SetLimit("mail", concurrency=load.limit)])
        self._engine.apply([ops.Enqueue(self._specs(BACKLOG // 2)) for _ in range(2)])
        self._engine.apply([ops.Claim(("mail",), "others", LEASE_MS, LEASED)])
        self._clock.advance(5)
        self._count = 0

    def _specs(self, count: int) -> tuple[JobSpec, ...]:
        # As a process makes them up, except that their count never begins again at zero: that would
        # scatter the ids of one batch, and cost more.
        ids = [f"018bcfe5-6800-7000-8000-{next(self._ids):012x}" for _ in range(count)]
        return tuple(
            JobSpec(one, "mail", PAYLOAD, tenant="acme", group="g", made_up_id=True) for one in ids
        )

    def spend(self) -> dict[str, Stats]:
        """What enqueuing, claiming and acknowledging cost."""
        spent = {"enqueue": Stats(), "claim": Stats(), "ack": Stats()}
        for _ in range(BATCHES):
            self._clock.advance(0.1)
            for what, one in self._once().items():
                spent[what] = Stats.sum([spent[what], one])
        return spent

    def _once(self) -> dict[str, Stats]:
        load = self._load
        enqueues: list[ops.Op] = [ops.Enqueue(self._specs(load.each)) for _ in range(load.callers)]
        claims = [self._claim() for _ in range(load.callers)]
        before = [replace(self._db.stats)]
        self._engine.apply(enqueues)
        before.append(replace(self._db.stats))
        jobs = _jobs_of(self._engine.apply(claims))
        assert len(jobs) == load.jobs
        before.append(replace(self._db.stats))
        self._engine.apply([ops.Ack(job.id, job.token) for job in jobs])
        before.append(replace(self._db.stats))
        return {
            what: before[n + 1].since(before[n])
            for n, what in enumerate(("enqueue", "claim", "ack"))
        }

    def _claim(self) -> ops.Op:
        self._count += 1
        claim = ops.Claim(("mail",), "w", LEASE_MS, self._load.each)
        return ops.Once(f"key-{self._count}", (claim,)) if self._load.keyed else claim


def _jobs_of(answers: list[ops.Answer]) -> list[Job]:
    flat = [
        one
        for answer in answers
        for one in (answer.answers if isinstance(answer, ops.Answers) else [answer])
    ]
    return [job for one in flat if isinstance(one, ops.Leased) for job in one.jobs]


def costs(load: Load) -> dict[str, Stats]:
    """What each step costs for all jobs of BATCHES rounds."""
    return Queue(load).spend()


def table() -> str:
    """The table of the docs: for one job."""
    lines = [
        "| | keys written | bytes written | keys read | bytes read | reads | commits |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in LOADS:
        jobs = BATCHES * load.jobs
        for what, one in costs(load).items():
            if load.keyed and what != "claim":
                continue
            figures = [
                one.keys_written / jobs,
                one.bytes_written / jobs,
                one.keys_read / jobs,
                one.bytes_read / jobs,
                (one.point_reads + one.range_reads) / jobs,
                one.commits_committed / jobs,
            ]
            lines.append(f"| {what}, {load.name} | " + " | ".join(map(_shown, figures)) + " |")
    return "\n".join(lines) + "\n"


def _shown(figure: float) -> str:
    return f"{figure:.3g}" if figure < 10 else f"{figure:.0f}"


if __name__ == "__main__":
    sys.stdout.write(table())
