"""The statements run on the oldest SQLite that is promised."""

from __future__ import annotations

import re

import pytest

from tenure.engines.sqlite.file import OLDEST_SQLITE
from tenure.engines.sqlite.sqlite_statements import SCHEMA, SQL

# What came later, and when. https://sqlite.org/changes.html
NEWER = {
    r"->": (3, 38),
    r"\bunixepoch\s*\(": (3, 38),
    r"\bformat\s*\(": (3, 38),
    r"\bSTRICT\b": (3, 37),
    r"\b(RIGHT|FULL)\s+(OUTER\s+)?JOIN\b": (3, 39),
    r"\bIS\s+(NOT\s+)?DISTINCT\s+FROM\b": (3, 39),
    r"\bunhex\s*\(": (3, 41),
    r"\bjson_error_position\s*\(": (3, 42),
    r"\boctet_length\s*\(": (3, 43),
    r"\b(string_agg|concat|concat_ws)\s*\(": (3, 44),
    r"\b(group_concat|json_group_array|sum|count)\s*\([^()]*\bORDER\s+BY\b": (3, 44),
    r"\bjsonb\w*\s*\(": (3, 45),
    r"\bif\s*\(": (3, 48),
}
STATEMENTS = SQL | {
    f"schema {version}.{n}": text
    for version, script in SCHEMA.items()
    for n, text in enumerate(script)
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_uses_nothing_newer_than_is_promised(name: str) -> None:
    for pattern, since in NEWER.items():
        if since > OLDEST_SQLITE[:2]:
            assert not re.search(pattern, STATEMENTS[name], re.IGNORECASE), (pattern, since)
