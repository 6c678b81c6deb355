"""Statements by name, from files of SQL."""

from __future__ import annotations

import re
from pathlib import Path

# Not importlib.resources, which takes longer to import than a whole engine.
SHARED = Path(__file__).with_name("reads.sql").read_text("utf-8")


def parts(text: str, marker: str) -> dict[str, str]:
    """The parts of a file, each of which begins with a line `-- marker: name`."""
    pieces = re.split(rf"^-- {marker}: (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def bare(statement: str) -> str:
    """A statement without comments and empty lines."""
    lines = (line for line in statement.splitlines() if line and not line.startswith("--"))
    return "\n".join(lines).rstrip(";")
