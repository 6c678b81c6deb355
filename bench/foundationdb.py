"""What a job costs a client of FoundationDB in CPU time: the engine's own, measured without a
cluster, and the binding's, estimated from its calls.

The queue has a backlog, and other workers hold leases.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import tenure
from bench.batches import BATCH, PAYLOAD
from bench.fdb_replay import Calls, Database, binding_us
from bench.report import Figure
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim

BACKLOG = 2_000
LEASED = 200
CALLERS = 64

T = TypeVar("T")


class Spent(NamedTuple):
    """What some work took."""

    engine_us: float
    calls: Calls


class Rig:
    """A queue on the simulation, with a clock that stands still."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.db = Database(fdb_sim.open(fdb_sim.Cluster(clock)))
        settings = Settings()
        engine = FoundationDbEngine(
            fdb_sim, self.db, settings, clock, hybrid=True, chance=random.Random(0)
        )
        self._claimed = engine._store.claimed
        self.queue = tenure.Queue(engine, settings, clock)
        for _ in range(BACKLOG // BATCH):
            self.enqueue()
        self.queue.claim("mail", limit=LEASED, worker="others")
        clock.advance(1)

    def enqueue(self) -> None:
        self.queue.enqueue_many(
            [tenure.NewJob(queue="mail", payload=PAYLOAD, tenant="acme") for _ in range(BATCH)]
        )

    def spend(self, work: Callable[[], T], repeat: int) -> tuple[T, Spent]:
        """Do some work once, and repeat it with the same answers to measure it. The machine's own
        swings only add to the CPU time, so the least counts."""
        remembered = list(self._claimed)  # otherwise, an ack would be the first only once
        recording = self.db.record()
        done = work()
        self.db.stop()
        least = float("inf")
        for _ in range(repeat):
            self._claimed.note(remembered)
            self.db.replay(recording)
            start = time.process_time()
            work()
            least = min(least, time.process_time() - start)
            self.db.stop()
        return done, Spent(least * 1e6, recording.calls)


async def _claim_one_each(queue: tenure.Queue) -> list[tenure.Job]:
    calls = [queue.aclaim("mail", limit=1, worker=f"w{n}") for n in range(CALLERS)]
    return [job for jobs in await asyncio.gather(*calls) for job in jobs]


async def _ack_one_each(queue: tenure.Queue, jobs: list[tenure.Job]) -> None:
    await asyncio.gather(*(queue.aack(job) for job in jobs))


def spend(repeat: int) -> dict[str, tuple[int, Spent]]:
    """By step: for how many jobs, and what it took."""
    rig = Rig()
    rig.queue.claim("mail", limit=1, worker="w")  # looks at the leases
    spent = {"enqueue, batches of 100": (BATCH, rig.spend(rig.enqueue, repeat)[1])}
    jobs, one = rig.spend(lambda: rig.queue.claim("mail", limit=BATCH, worker="w"), repeat)
    assert len(jobs) == BATCH
    spent["claim, batches of 100"] = BATCH, one
    spent["ack, batches of 100"] = BATCH, rig.spend(partial(rig.queue.ack_many, jobs), repeat)[1]
    # Not asyncio.Runner: its look at the handler of signals formats the result of the task.
    loop = asyncio.new_event_loop()
    run = loop.run_until_complete
    jobs, claim = rig.spend(lambda: run(_claim_one_each(rig.queue)), repeat)
    assert len(jobs) == CALLERS
    _, ack = rig.spend(lambda: run(_ack_one_each(rig.queue, jobs)), repeat)
    loop.close()
    both = Spent(claim.engine_us + ack.engine_us, claim.calls + ack.calls)
    spent["claim 1 and ack 1, 64 callers"] = CALLERS, both
    rig.queue.close()
    return spent


# By step: the CPU time a job that is wanted of a client of a real cluster, and the part of it that
# this may reach. The rest is left for libfdb_c, whose own work cannot be measured here.
_WANTED = ((80, 0.3), (150, 0.3), (120, 0.3), (500, 0.3))


def run(folder: Path, *, repeat: int = 40) -> list[Figure]:
    """Nothing is stored in the folder."""
    figures = []
    for (name, (jobs, spent)), (wanted, part) in zip(spend(repeat).items(), _WANTED, strict=True):
        engine, binding = spent.engine_us / jobs, binding_us(spent.calls) / jobs
        calls = ", ".join(f"{n / jobs:.3g} {call}" for call, n in spent.calls.most_common())
        shown = f"engine {engine:.1f} us, binding {binding:.1f} us a job: {calls}"
        print(f"{name}: {shown}", file=sys.stderr)
        us = engine + binding
        figures.append(
            Figure(
                f"FoundationDB: {name}",
                rate=us,
                floor=wanted,
                ratios=[us / wanted],
                at_most=part,
                unit="us CPU/job",
            )
        )
    return figures
