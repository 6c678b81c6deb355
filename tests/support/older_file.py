"""Make a SQLite file look as an older version of the schema left it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from tenure.engines.sqlite.statements import SCHEMA

SAME_TABLES_SINCE = 4


def make_older(path: Path, version: int) -> None:
    """Give a file the tables, indexes and the number of an older version."""
    assert version >= SAME_TABLES_SINCE
    older: dict[str, str] = {}
    for step in range(1, version + 1):
        for statement in SCHEMA[step]:
            for name in re.findall(r"^CREATE INDEX (\w+)", statement):
                older[name] = statement
            for name in re.findall(r"^DROP INDEX (\w+)", statement):
                del older[name]
    with closing(sqlite3.connect(path)) as db, db:
        by_hand = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        for (name,) in db.execute(by_hand).fetchall():
            db.execute(f"DROP INDEX {name}")
        for step in range(version + 1, max(SCHEMA) + 1):
            for name in re.findall(r"CREATE TABLE (\w+)", "".join(SCHEMA[step])):
                db.execute(f"DROP TABLE {name}")
        for statement in older.values():
            db.execute(statement)
        db.execute("UPDATE tenure_counters SET value = ? WHERE name = 'version'", (version,))
