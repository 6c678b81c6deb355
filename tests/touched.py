"""Counts the files that an addition to Tenure touches, by looking at one that was added before.

python -m tests.touched
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tenure"
PAGE = ROOT / "docs" / "architecture.md"


class Addition(NamedTuple):
    """Something that was added, and how to find where."""

    what: str  # as the page about the architecture calls it
    pattern: str
    uses: frozenset[str]  # files that use it, which an addition need not have


ADDITIONS = (
    Addition(
        "An operation",
        r"\bReplay\b|\bareplay\b|name: replay",
        frozenset(
            {
                "cli/change.py",  # a command for it
                "server/event_feed.py",  # an event for it
                "server/dialects/evekill.py",
                "features/bulk/__init__.py",  # an action on all that match
            }
        ),
    ),
    Addition(
        "A query",
        r"\bListSlots\b|name: slots\b|\bslots\.alist\b",
        frozenset(
            {
                "queue/store_copy.py",
                "server/dialects/firecrawl.py",
                "engines/sharded/ring.py",  # marks the shards
            }
        ),
    ),
    Addition(
        "A stored field",
        r"\.trace\b|\btrace: |\btrace=",
        frozenset(
            {
                "model/fields.py",  # its format
                "observe/tracing.py",  # what it is for
                "server/service.py",  # the header
                "queue/open_store.py",  # gives jobs that of their caller
                "server/native.py",  # passes it to a thread
            }
        ),
    ),
)


def listed(what: str) -> set[str]:
    """The files that the page lists for an addition."""
    text = PAGE.read_text("utf-8")
    start = text.index(f"**{what}")
    table = re.search(r"\n\n((?:\|.*\n)+)", text[start:])
    assert table is not None
    return set(re.findall(r"^\| `([^`]+)`", table.group(1), re.MULTILINE))


def found(addition: Addition) -> set[str]:
    """The files of the product in which it is found."""
    pattern = re.compile(addition.pattern)
    paths = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]
    return {
        path.relative_to(SOURCE).as_posix()
        for path in paths
        if pattern.search(path.read_text("utf-8"))
    }


def main() -> int:
    for addition in ADDITIONS:
        needed = listed(addition.what)
        sys.stdout.write(f"{addition.what}: {len(needed)} files\n")
        for path in sorted(needed):
            sys.stdout.write(f"  {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
