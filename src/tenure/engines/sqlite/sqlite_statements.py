"""The statements of sqlite.sql and the shared ones by name, and the schema by version."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.engines.sql.statements import SHARED, bare, divided

_OWN = Path(__file__).with_name("sqlite.sql").read_text("utf-8")


def _for_sqlite(text: str) -> str:
    """What is shared. A list is one parameter, and no parameter has a type. Text is compared by its
    bytes anyway."""
    each = r"(SELECT value AS \3 FROM json_each(\1)) \2"
    text = re.sub(r"unnest\((\?|:\w+)::\w+\[\]\) (\w+) \((\w+)\)", each, text)
    text = re.sub(r"= ANY \((\?|:\w+)::\w+\[\]\)", r"IN (SELECT value FROM json_each(\1))", text)
    text = re.sub(r"::\w+(\[\])?", "", text).replace(' COLLATE "C"', "")
    return text.replace(" tenure.", " tenure_").replace("CREATE INDEX ", "CREATE INDEX tenure_")


_SCRIPTS, SQL = divided([_for_sqlite(SHARED), _OWN])
SCHEMA: dict[int, list[str]] = {
    version: [bare(part) for part in script.split(";\n") if bare(part)]
    for version, script in _SCRIPTS.items()
}
