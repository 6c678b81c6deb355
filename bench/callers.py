"""64 tasks that each enqueue one job a call, durably, against the floor with 1 per transaction."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import tenure
from bench.batches import PAYLOAD, TEXT
from bench.floor import Floor
from bench.report import Figure

CALLERS = 64


async def _enqueue(queue: tenure.Queue, calls: int) -> float:
    async def caller() -> None:
        for _ in range(calls):
            await queue.aenqueue("mail", PAYLOAD)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return CALLERS * calls / (time.perf_counter() - start)


def _floor(floor: Floor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        floor.enqueue([TEXT])
    return calls / (time.perf_counter() - start)


def run(folder: Path, *, rounds: int = 9, calls: int = 30) -> list[Figure]:
    """A turn of the floor, a turn of Tenure, and again."""
    floor = Floor(folder / "floor-1.db")
    pairs: list[tuple[float, float]] = []
    with tenure.connect(f"sqlite:///{folder / 'callers.db'}") as queue:
        for _ in range(rounds):
            pairs.append((_floor(floor, 200), asyncio.run(_enqueue(queue, calls))))
    floor.close()
    return [
        Figure(
            "enqueue, 64 tasks, 1 a call",
            rate=median(ours for _, ours in pairs),
            floor=median(base for base, _ in pairs),
            ratios=[ours / base for base, ours in pairs],
            at_least=3.0,
        )
    ]
