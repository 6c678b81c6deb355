"""Attack a service on SQLite and PostgreSQL, and print what an honest client sees meanwhile.

python -m tests.server.attacks [--seconds 10] [--scale 1] [NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.server.attacks.measured import MOST_MEMORY, MOST_RATIO, Attacked, Seen
from tests.server.attacks.programs import PROGRAMS, say
from tests.support import postgres

ROW = "{:<16} {:<11} {:>9} {:>9} {:>7} {:>9} {:>9}"


def show(seen: Seen) -> None:
    ratio = f"{seen.ratio:.1f}" + ("" if seen.is_good else " !")
    say(ROW.format(seen.name, seen.store, f"{seen.before:.2f}", f"{seen.during:.2f}", ratio,
                     f"{seen.slowest:.0f}", seen.memory))  # fmt: skip


def attacked(store: str, name: str, seconds: float, scale: float) -> Seen:
    with tempfile.TemporaryDirectory(prefix="tenure-attack-") as made:
        folder = Path(made)
        url = postgres.url_of(folder) if store == "postgresql" else ""
        with Attacked(folder, url).served() as service:
            return service.suffer(name, seconds=seconds, scale=scale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="attacks; all, if none are named")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--stores", default="sqlite,postgresql")
    given = parser.parse_args()
    say("Times of an honest client's requests in ms; memory of the service in MB.")
    say(ROW.format("attack", "store", "without", "with", "ratio", "slowest", "memory"))
    all_good = True
    for store in given.stores.split(","):
        for name in given.names or PROGRAMS:
            seen = attacked(store, name, given.seconds, given.scale)
            show(seen)
            all_good = all_good and seen.is_good
    if not all_good:
        say(f"!: more than {MOST_RATIO:g} times as slow, or over {MOST_MEMORY} MB")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
