"""The statements of postgres.sql by name, and the schema by version."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_TEXT = files("tenure.engines.postgres").joinpath("postgres.sql").read_text("utf-8")


class Statements(NamedTuple):
    """The contents of postgres.sql for one schema name."""

    schema: dict[int, str]
    sql: dict[str, bytes]


def _parts(text: str, marker: str) -> dict[str, str]:
    pieces = re.split(rf"^-- {marker}: (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _bare(statement: str) -> str:
    lines = (line for line in statement.splitlines() if line and not line.startswith("--"))
    return " ".join(line.strip() for line in lines).rstrip(";")


@cache
def statements(schema: str) -> Statements:
    """All statements, with `schema` as the name of the schema."""
    text = re.sub(r"\btenure\b", schema, _TEXT)
    versions, _, named = text.partition("\n-- statements\n")
    return Statements(
        {int(version): script for version, script in _parts(versions, "version").items()},
        {name: _bare(statement).encode() for name, statement in _parts(named, "name").items()},
    )
