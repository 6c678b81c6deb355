"""The statements of postgres.sql and of the shared reads by name, and the schema by version."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tenure.engines.sql.statements import SHARED, bare, parts

_TEXT = files("tenure.engines.postgres").joinpath("postgres.sql").read_text("utf-8")


class Statements(NamedTuple):
    """The contents of postgres.sql and of the shared reads for one schema name."""

    schema: dict[int, str]
    sql: dict[str, bytes]


def _for_psycopg(text: str) -> str:
    """The shared reads with parameters as psycopg has them. The server knows the time, unless it
    is given."""
    text = text.replace(":now", "(SELECT tenure.moment(:given))").replace("?", "%s")
    return re.sub(r":(\w+)", r"%(\1)s", text)


def _one_line(statement: str) -> str:
    return " ".join(line.strip() for line in bare(statement).splitlines())


@cache
def statements(schema: str) -> Statements:
    """All statements, with `schema` as the name of the schema."""
    versions, _, named = re.sub(r"\btenure\b", schema, _TEXT).partition("\n-- statements\n")
    shared = re.sub(r"\btenure\b", schema, _for_psycopg(SHARED))
    return Statements(
        {int(version): script for version, script in parts(versions, "version").items()},
        {
            name: _one_line(statement).encode()
            for text in (named, shared)
            for name, statement in parts(text, "name").items()
        },
    )
