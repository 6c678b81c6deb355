"""The command for long runs; see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.compare.counting import counting
from tests.simulation.compare.paths import CI, short, table
from tests.simulation.compare.rigs import RIGS
from tests.simulation.compare.run import STEPS, Failed, replay, report, run_seed, show
from tests.simulation.compare.steps import History


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.compare")
    parser.add_argument("--engine", action="append", choices=sorted(RIGS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each history")
    parser.add_argument("--replay", type=Path, help="run a saved history again")
    parser.add_argument("--shrink", type=float, default=0, help="seconds to shrink a replay")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    if given.replay is not None:
        history = History.load(given.replay)
        show(history)
        difference = replay(history)
        if difference is not None and given.shrink:
            report(Failed(history, difference), given.out, given.shrink)
        return int(difference is not None)
    wrong = 0
    for engine in given.engine or sorted(RIGS):
        wrong += _long(engine, given.seconds, given.seed, given.steps, given.out)
    return int(wrong > 0)


def _long(engine: str, seconds: float, seed: int, steps: int, out: Path) -> int:
    """Run histories of one engine until the time is over. Returns how many failed."""
    until = time.monotonic() + seconds
    done = histories = wrong = 0
    with counting(engine) as counts:
        while time.monotonic() < until:
            try:
                done += run_seed(engine, seed + histories, steps)
            except Failed as failed:
                wrong += 1
                report(failed, out)
            histories += 1
    sys.stdout.write(table(engine, counts, done))
    missed = short(engine, counts, done) if done >= CI[engine].total else []
    sys.stdout.write(
        f"{engine}: {done} steps of {histories} histories from seed {seed}, {wrong} failed; "
        f"{len(missed)} paths are short of their floor: {', '.join(missed)}\n"
    )
    return wrong + len(missed)


if __name__ == "__main__":
    sys.exit(main())
