"""The statements of sqlite.sql and of the shared reads by name, and the schema by version."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.engines.sql.statements import SHARED, bare, named, parts

_TEXT = Path(__file__).with_name("sqlite.sql").read_text("utf-8")
_SCHEMA, _, _STATEMENTS = _TEXT.partition("\n-- statements\n")

SCHEMA: dict[int, list[str]] = {
    int(version): [bare(part) for part in script.split(";\n") if bare(part)]
    for version, script in parts(_SCHEMA, "version").items()
}


def _for_sqlite(text: str) -> str:
    """The shared statements. A list is one parameter, and no parameter has a type."""
    each = r"(SELECT value AS \3 FROM json_each(\1)) \2"
    text = re.sub(r"unnest\((\?|:\w+)::\w+\[\]\) (\w+) \((\w+)\)", each, text)
    text = re.sub(r"= ANY \((\?|:\w+)::\w+\[\]\)", r"IN (SELECT value FROM json_each(\1))", text)
    return re.sub(r"::\w+(\[\])?", "", text).replace(" tenure.", " tenure_")


SQL: dict[str, str] = named(_for_sqlite(SHARED) + _STATEMENTS)
