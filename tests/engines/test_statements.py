"""The SQL that the engines share."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tenure.engines import sql
from tenure.engines.postgres.postgres_statements import FILES, statements
from tenure.engines.sql.statements import SHARED, parts
from tenure.engines.sqlite.sqlite_statements import SQL

ENGINES = Path(sql.__file__).parents[1]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_no_statement_is_written_twice(engine: str) -> None:
    texts = [path.read_text("utf-8") for path in (ENGINES / engine).glob("*.sql")]
    text = "".join([*texts, SHARED])
    names = Counter(re.findall(r"^-- name: (\S+)$", text, re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_file_of_postgresql_is_loaded() -> None:
    assert {path.stem for path in (ENGINES / "postgres").glob("*.sql")} == set(FILES)


def test_each_engine_has_the_shared_statements_in_its_own_notation() -> None:
    postgres = statements("jobs_of_mine").sql
    for name in parts(SHARED, "name"):
        assert not re.search(r"tenure\.|%|::|unnest|ANY", SQL[name]), name
        assert not re.search(rb"(?<!:):\w|\?|tenure", postgres[name]), name
    assert b"FROM jobs_of_mine.slots" in postgres["slots"]
    assert b"expires_at > (SELECT jobs_of_mine.moment(%(given)s))" in postgres["slots"]
    assert "FROM tenure_slots" in SQL["slots"]
