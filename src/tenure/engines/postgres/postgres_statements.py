"""The schema by version, and the statements by name, from the files of SQL beside this one.

A file is about one noun. It begins with what its noun needs in the schema, by version, and ends
with its statements. A migration executes the shared part of each version, then those of FILES in
this order.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tenure.engines.sql.statements import SHARED, divided

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
    """What is shared, with parameters as psycopg has them. The server knows the time, unless it is
    given."""
    by_key = r"CROSS JOIN LATERAL (SELECT * FROM \1 k WHERE k.\3 = \4 OFFSET 0) \2"
    text = re.sub(r"CROSS JOIN (\S+) (\w+) ON \2\.(\w+) = ([\w.]+)", by_key, text)
    text = text.replace(":now", "(SELECT tenure.moment(:given))").replace("?", "%s")
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text.replace(" WITHOUT ROWID", ""))


@cache
def statements(schema: str) -> Statements:
    """All statements, with `schema` as the name of the schema."""
    texts = [_for_psycopg(SHARED), *_TEXTS]
    scripts, sql = divided(re.sub(r"\btenure\b", schema, text) for text in texts)
    lines = {name: statement.splitlines() for name, statement in sql.items()}
    return Statements(
        scripts,
        {name: " ".join(map(str.strip, some)).encode() for name, some in lines.items()},
    )
