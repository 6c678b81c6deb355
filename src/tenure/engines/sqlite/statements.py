"""The statements of sqlite.sql and of the shared reads by name, and the schema by version."""

from __future__ import annotations

from pathlib import Path

from tenure.engines.sql.statements import SHARED, bare, named, parts

_TEXT = Path(__file__).with_name("sqlite.sql").read_text("utf-8")
_SCHEMA, _, _STATEMENTS = _TEXT.partition("\n-- statements\n")

SCHEMA: dict[int, list[str]] = {
    int(version): [bare(part) for part in script.split(";\n") if bare(part)]
    for version, script in parts(_SCHEMA, "version").items()
}
SQL: dict[str, str] = {
    name: statement
    for text in (_STATEMENTS, SHARED.replace(" tenure.", " tenure_"))
    for name, statement in named(text).items()
}
