"""1,000 tenants in strict turns, batches of 100, against the floor in the same run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

import tenure
from bench.batches import BATCH, PAYLOAD, TEXT, Pair, timed
from bench.floor import Floor
from bench.report import Figure

TENANTS = 1_000
PROMISES = {"enqueue": 0.25, "claim": 0.22, "ack": 0.34}


def run(folder: Path, *, rounds: int = 3, batches: int = 50) -> list[Figure]:
    """Every job of a batch is another tenant's."""
    floor = Floor(folder / "floor.db")
    pairs = {"enqueue": Pair(), "claim": Pair(), "ack": Pair()}
    with tenure.connect(f"sqlite:///{folder / 'tenants.db'}") as queue:
        n = 0
        for _ in range(rounds):
            for _ in range(batches):
                timed(pairs["enqueue"].floor, lambda: floor.enqueue([TEXT] * BATCH))
                jobs = [
                    tenure.NewJob(queue="mail", payload=PAYLOAD, tenant=f"t{(n + i) % TENANTS}")
                    for i in range(BATCH)
                ]
                n += BATCH
                timed(pairs["enqueue"].tenure, partial(queue.enqueue_many, jobs))
            for _ in range(batches):
                rows = timed(pairs["claim"].floor, lambda: floor.claim(BATCH))
                mine = timed(
                    pairs["claim"].tenure, lambda: queue.claim("mail", limit=BATCH, worker="w")
                )
                assert len({job.tenant for job in mine}) == BATCH
                timed(pairs["ack"].floor, partial(floor.ack, rows))
                timed(pairs["ack"].tenure, partial(queue.ack_many, mine))
    floor.close()
    return [
        Figure(
            f"{name}, {TENANTS:,} tenants in turns",
            rate=BATCH / median(pair.tenure),
            floor=BATCH / median(pair.floor),
            ratios=pair.ratios(),
            at_least=PROMISES[name],
        )
        for name, pair in pairs.items()
    ]
