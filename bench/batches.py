"""Enqueue, claim and ack in batches of 100, against the floor in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

import tenure
from bench.floor import Floor
from bench.report import Figure

BATCH = 100
PAYLOAD = {
    "to": "somebody@example.com",
    "template": "welcome-to-our-web-shop",
    "locale": "da-DK",
    "n": 123456789012,
}
TEXT = msgspec.json.encode(PAYLOAD).decode()
assert len(TEXT) == 100, len(TEXT)

PROMISES = {"enqueue": 0.42, "claim": 0.42, "ack": 0.48}

T = TypeVar("T")


class Pair:
    """The time that the floor and Tenure took, batch by batch in turn."""

    def __init__(self) -> None:
        self.floor: list[float] = []
        self.tenure: list[float] = []

    def ratios(self) -> list[float]:
        """Those of slices of the run: the machine's own swings cancel out."""
        size = max(1, len(self.floor) // 20)
        starts = range(0, len(self.floor), size)
        return [sum(self.floor[at : at + size]) / sum(self.tenure[at : at + size]) for at in starts]


def timed(times: list[float], work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    times.append(time.perf_counter() - start)
    return result


def run(folder: Path, *, rounds: int = 5, batches: int = 60) -> list[Figure]:
    """One batch of the floor, one of Tenure, and again; through the public calls."""
    floor = Floor(folder / "floor.db")
    pairs = {"enqueue": Pair(), "claim": Pair(), "ack": Pair()}
    with tenure.connect(f"sqlite:///{folder / 'batches.db'}") as queue:
        for _ in range(rounds):
            for _ in range(batches):
                timed(pairs["enqueue"].floor, lambda: floor.enqueue([TEXT] * BATCH))
                timed(
                    pairs["enqueue"].tenure,
                    lambda: queue.enqueue_many(
                        [tenure.NewJob(queue="mail", payload=PAYLOAD) for _ in range(BATCH)]
                    ),
                )
            rows, jobs = [], []
            for _ in range(batches):
                rows.append(timed(pairs["claim"].floor, lambda: floor.claim(BATCH)))
                jobs.append(
                    timed(
                        pairs["claim"].tenure,
                        lambda: queue.claim("mail", limit=BATCH, worker="w"),
                    )
                )
            for mine, theirs in zip(jobs, rows, strict=True):
                assert len(mine) == len(theirs) == BATCH
                timed(pairs["ack"].floor, partial(floor.ack, theirs))
                timed(pairs["ack"].tenure, partial(queue.ack_many, mine))
    floor.close()
    return [
        Figure(
            f"{name}, batches of 100",
            rate=BATCH / median(pair.tenure),
            floor=BATCH / median(pair.floor),
            ratios=pair.ratios(),
            at_least=PROMISES[name],
        )
        for name, pair in pairs.items()
    ]
