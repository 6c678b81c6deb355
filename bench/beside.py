"""The latency of an enqueue while another process writes to the same SQLite file all the time.

That process enqueues, claims and acknowledges batches of 100. The floor has such a process beside
it, too, and waits as SQLite does by default, for up to five seconds.

    python -m bench.beside NAME PATH    is that other process, until its input ends
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import quantiles

import tenure
from bench.batches import BATCH, PAYLOAD, TEXT
from bench.floor import Floor
from bench.report import Figure

ROUNDS = 4
SECONDS = 3.0  # of each round
PAUSE = 0.01  # between two enqueues
Times = dict[str, list[float]]


def run(folder: Path) -> list[Figure]:
    """Median and 99th percentile of the latency, in turns."""
    times: Times = {"tenure": [], "floor": []}
    with tenure.connect(_url(folder / "tenure.db")) as queue:
        floor = Floor(folder / "floor.db")
        calls: dict[str, Callable[[], object]] = {
            "tenure": lambda: queue.enqueue("light", PAYLOAD),
            "floor": lambda: floor.enqueue([TEXT]),
        }
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name] += _beside(name, folder / f"{name}.db", call)
        floor.close()
    found = {name: quantiles(some, n=100) for name, some in times.items()}
    return [
        Figure(
            f"enqueue of one job beside a process that writes all the time: {which}",
            found["tenure"][at] * 1000,
            found["floor"][at] * 1000,
            [found["tenure"][at] / found["floor"][at]],
            at_most=0.5,
            unit="ms",
        )
        for which, at in (("median", 49), ("p99", 98))
    ]


def _beside(name: str, path: Path, call: Callable[[], object]) -> list[float]:
    """How long each call took while the other process ran."""
    command = [sys.executable, "-m", "bench.beside", name, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        times: list[float] = []
        until = time.perf_counter() + SECONDS
        while (began := time.perf_counter()) < until:
            with suppress(sqlite3.OperationalError):  # the floor gives up after 5 s
                call()
            times.append(time.perf_counter() - began)
            time.sleep(PAUSE)
    return times


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def write(name: str, path: Path) -> None:
    """Write all the time."""
    listener = threading.Thread(target=sys.stdin.read, daemon=True)
    listener.start()
    if name == "floor":
        floor = Floor(path)
        print("ready", flush=True)
        while listener.is_alive():
            floor.enqueue([TEXT] * BATCH)
            floor.ack(floor.claim(BATCH))
        return
    with tenure.connect(_url(path)) as queue:
        print("ready", flush=True)
        while listener.is_alive():
            queue.enqueue_many([tenure.NewJob(queue="bulk", payload=PAYLOAD) for _ in range(BATCH)])
            queue.ack_many(queue.claim("bulk", limit=BATCH, worker="w"))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
