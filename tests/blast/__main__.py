"""Let one part after the other fail, and print what becomes of the promises made to others.

    python -m tests.blast [--seconds 6] [--only "shard away"]

Each row is a run of its own with real processes. A cell has the figures of a promise that was kept;
"!" marks one that broke. Exits with 1 if one did.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.blast.parts import PARTS, Skipped, Stage
from tests.blast.promises import MOST_MEMORY, MOST_RATIO, PROMISES, Verdict, tried_out

QUIET_SECONDS = 4.0
ROW = "{:<22} {:<38} {:<30} {:<46} {}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.blast",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", action="append", choices=names, metavar="ROW", help=str(names))
    parser.add_argument("--seconds", type=float, default=6, help="how long each part fails")
    options = parser.parse_args(arguments)
    chosen = [part for part in PARTS if part.name in (options.only or names)]
    _say(ROW.format("", *PROMISES))
    logging.getLogger("tenure").setLevel(logging.CRITICAL)  # of the producers in this process
    broken = []
    for n, part in enumerate(chosen):
        if not _row(part, options.seconds, f"{n + 1}/{len(chosen)}"):
            broken.append(part.name)
    if broken:
        _say(f"\n{len(broken)} of {len(chosen)} rows broke: {', '.join(broken)}")
        _say(f"!: run again or never, slower than {MOST_RATIO:g} times, or over {MOST_MEMORY} MB")
    return 1 if broken else 0


def _row(part: type[Stage], seconds: float, number: str) -> bool:
    """Print a row. Returns whether all promises were kept. The folder of one that broke is left."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-blast-"))
    try:
        found = tried_out(part(folder, seconds), QUIET_SECONDS, partial(_progress, number, part))
    except Skipped as why:
        _say(f"{part.name:<22} skipped: {why}")
        found = {}
    _say(ROW.format(part.name, *(_cell(found[name]) for name in PROMISES)) if found else "")
    if all(verdict.kept for verdict in found.values()):
        shutil.rmtree(folder)
        return True
    _say(f"{'':<22} see {folder}")
    return False


def _cell(verdict: Verdict) -> str:
    return verdict.figures if verdict.kept else f"! {verdict.figures}"


def _progress(number: str, part: type[Stage], phase: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{number} {part.name}: {phase}\r")
        sys.stderr.flush()
    else:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {number} {part.name}: {phase}\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
