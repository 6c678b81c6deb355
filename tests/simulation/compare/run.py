"""Runs histories, from a seed or a file, and shrinks and reports those that fail."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.simulation.compare.history import Comparison
from tests.simulation.compare.rigs import RIGS, Rig
from tests.simulation.compare.shrink import shrink
from tests.simulation.compare.state import Difference
from tests.simulation.compare.steps import History, Step
from tests.simulation.compare.workload import Workload

STEPS = 400  # of one history
SHRINK_SECONDS = 60.0
_SHORT = 40  # steps
_SWEEPS = (1000, 1000, 3, 1)
_SKEWS_MS = (0, -700, 1_300)


class Failed(Exception):
    """A history on which engine and model differ."""

    def __init__(self, history: History, difference: Difference) -> None:
        super().__init__(f"{history.engine}, seed {history.seed}: {difference}")
        self.history = history
        self.difference = difference


def open_rig(engine: str, seed: int) -> Rig:
    """Open the rig for a seed, which decides the number of callers and how much one claim
    sweeps."""
    return RIGS[engine](_SWEEPS[seed % 4], list(_SKEWS_MS[: 1 + seed % 3]))


def run_seed(engine: str, seed: int, steps: int = STEPS) -> int:
    """Generate and run a history. Returns the number of its steps; raises Failed."""
    rig = open_rig(engine, seed)
    done: list[Step] = []
    try:
        comparison, workload = Comparison(rig), Workload(seed, rig)
        while len(done) < steps:
            done.append(workload.next())
            comparison.step(done[-1])
        comparison.end()
    except Difference as difference:
        raise Failed(History(engine, seed, done), difference) from difference
    finally:
        rig.close()
    return len(done)


def replay(history: History) -> Difference | None:
    """Run a history again, and return the difference, if any. Compares the whole state after each
    step of a short history. Where faults are random, each comparison changes those that follow, so
    that a history must be compared in the same way every time."""
    rig = open_rig(history.engine, history.seed)
    try:
        comparison = Comparison(rig, every=10 if len(history.steps) > _SHORT else 1)
        for step in history.steps:
            comparison.step(step)
        comparison.end()
    except Difference as difference:
        return difference
    finally:
        rig.close()
    return None


def shrunk(failed: Failed, seconds: float = SHRINK_SECONDS) -> Failed:
    """Shrink a history that fails, keeping the same failure."""
    engine, seed = failed.history.engine, failed.history.seed
    kind = failed.difference.kind

    def fails(steps: list[Step]) -> bool:
        found = replay(History(engine, seed, steps))
        return found is not None and found.kind == kind

    steps = failed.history.steps
    if not fails(steps):
        return failed  # the failure depends on something besides the steps
    history = History(engine, seed, shrink(steps, fails, seconds))
    return Failed(history, replay(history) or failed.difference)


def report(failed: Failed, folder: Path, seconds: float = SHRINK_SECONDS) -> Path:
    """Print what happened, and save the history."""
    small = shrunk(failed, seconds)
    path = folder / f"compare-{small.history.engine}-{small.history.seed}.json"
    small.history.save(path)
    sys.stdout.write(
        f"{failed}\nshrunk to {len(small.history.steps)} steps: {small.difference}\n"
        f"again: python -m tests.simulation.compare --replay {path}\n"
    )
    return path


def show(history: History) -> None:
    """Print the steps and their results."""
    for n, step in enumerate(history.steps):
        sys.stdout.write(f"{n}: {step}\n")
    sys.stdout.write(f"{replay(history) or 'no difference'}\n")
