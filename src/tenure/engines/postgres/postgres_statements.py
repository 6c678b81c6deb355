"""The schema by version, and the statements by name, from the files of SQL beside this one.

A file is about one noun. It begins with what its noun needs in the schema, by version, and ends
with its statements. A migration executes the parts of each version in the order of FILES.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tenure.engines.sql.statements import SHARED, named, parts

FILES = (
    "tables",
    "batches",
    "tokens",
    "bounds",
    "books",
    "enqueueing",
    "moving",
    "claiming",
    "finishing",
    "sweeping",
    "slots",
    "records",
    "reading",
    "plans",  # sets how the functions of all others are planned
)
_FOLDER = files("tenure.engines.postgres")
_TEXTS = [_FOLDER.joinpath(f"{name}.sql").read_text("utf-8") for name in FILES]


class Statements(NamedTuple):
    """The contents of all files and of the shared statements for one schema name."""

    schema: dict[int, str]
    sql: dict[str, bytes]


def _for_psycopg(text: str) -> str:
    """The shared statements with parameters as psycopg has them. The server knows the time, unless
    it is given."""
    by_key = r"CROSS JOIN LATERAL (SELECT * FROM \1 k WHERE k.\3 = \4 OFFSET 0) \2"
    text = re.sub(r"CROSS JOIN (\S+) (\w+) ON \2\.(\w+) = ([\w.]+)", by_key, text)
    text = text.replace(":now", "(SELECT tenure.moment(:given))").replace("?", "%s")
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text)


@cache
def statements(schema: str) -> Statements:
    """All statements, with `schema` as the name of the schema."""
    scripts: dict[int, str] = {}
    named_parts = [_for_psycopg(SHARED)]
    for text in _TEXTS:
        versions, _, rest = text.partition("-- statements\n")
        named_parts.append(rest)
        for version, script in parts(_called(schema, versions), "version").items():
            scripts[int(version)] = scripts.get(int(version), "") + script
    sql = named(_called(schema, "\n".join(named_parts)))
    return Statements(scripts, {name: _one_line(statement) for name, statement in sql.items()})


def _called(schema: str, text: str) -> str:
    return re.sub(r"\btenure\b", schema, text)


def _one_line(statement: str) -> bytes:
    return " ".join(line.strip() for line in statement.splitlines()).encode()
