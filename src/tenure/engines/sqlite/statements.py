"""The statements of sqlite.sql by name, and the schema by version."""

from __future__ import annotations

import re
from pathlib import Path

# Not importlib.resources, which takes longer to import than the rest of the engine.
_TEXT = Path(__file__).with_name("sqlite.sql").read_text("utf-8")
_SCHEMA, _, _STATEMENTS = _TEXT.partition("\n-- statements\n")


def _parts(text: str, marker: str) -> dict[str, str]:
    pieces = re.split(rf"^-- {marker}: (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _bare(statement: str) -> str:
    lines = (line for line in statement.splitlines() if line and not line.startswith("--"))
    return "\n".join(lines).rstrip(";")


SCHEMA: dict[int, list[str]] = {
    int(version): [_bare(part) for part in script.split(";\n") if _bare(part)]
    for version, script in _parts(_SCHEMA, "version").items()
}
SQL: dict[str, str] = {
    name: _bare(statement) for name, statement in _parts(_STATEMENTS, "name").items()
}
