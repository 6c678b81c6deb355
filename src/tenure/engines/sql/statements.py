"""Statements by name and the schema by version, from files of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# Not importlib.resources, which takes longer to import than a whole engine.
SHARED = Path(__file__).with_name("shared.sql").read_text("utf-8")
_COUNTS = ",\n".join(
    f"{state} bigint NOT NULL DEFAULT 0"
    for state in ("waiting", "delayed", "ready", "leased", "done", "dead", "cancelled")
)
_NAMED = re.compile(r"^-- (fragment|name): (\S+)\n", re.MULTILINE)
_FRAGMENT = re.compile(r"(?<!')\{([a-z_]+)\}")  # not an array of PostgreSQL


def parts(text: str, marker: str) -> dict[str, str]:
    """The parts of a file, each of which begins with a line `-- marker: name`."""
    pieces = re.split(rf"^-- {marker}: (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def divided(texts: Iterable[str]) -> tuple[dict[int, str], dict[str, str]]:
    """The schema by version, and the statements by name. A file begins with its part of the schema;
    in a table, `{counts}` are the counts of jobs by state."""
    schema: dict[int, str] = {}
    statements: list[str] = []
    for text in texts:
        versions, _, rest = text.partition("-- statements\n")
        statements.append(rest)
        for version, script in parts(versions, "version").items():
            whole = script.replace("{counts}", _COUNTS)
            schema[int(version)] = schema.get(int(version), "") + whole
    return schema, named("\n".join(statements))


def named(text: str) -> dict[str, str]:
    """The bare statements of a file by name. What several of them share is a fragment, which comes
    before them: `-- fragment: row` defines it, and they contain `{row}`."""
    pieces = _NAMED.split(text)
    fragments: dict[str, str] = {}
    found: dict[str, str] = {}
    for kind, name, part in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        whole = _FRAGMENT.sub(lambda use: fragments[use[1]], bare(part))
        (fragments if kind == "fragment" else found)[name] = whole
    return found


def bare(statement: str) -> str:
    """A statement without comments and empty lines."""
    lines = (line for line in statement.splitlines() if line and not line.startswith("--"))
    return "\n".join(lines).rstrip(";")
