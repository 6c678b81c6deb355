"""A newer Tenure migrates a schema while programs that opened it before keep working on it. The
newer version is invented here, until there is a second one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.server import exists, upgrade, upgrade_sql
from tests.support import audit_postgres, postgres

NEWEST = max(statements("tenure").schema)
STEP = """
ALTER TABLE {0}.jobs ADD COLUMN colour text NOT NULL DEFAULT 'grey';
UPDATE {0}.jobs SET colour = 'green' WHERE id = 'job-1';
CREATE FUNCTION {0}.colours() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(DISTINCT colour) FROM {0}.jobs
$$;
"""


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[str]:
    name = postgres.schema_of(tmp_path)
    postgres.drop_schema(name)
    yield name
    assert audit_postgres.audit(postgres.shared_url(), name) == []
    postgres.drop(tmp_path)


@pytest.fixture
def url(schema: str, tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


def invent(monkeypatch: pytest.MonkeyPatch, schema: str, step: str = STEP) -> None:
    """Let this process know a newer version."""
    monkeypatch.setitem(statements(schema).schema, NEWEST + 1, step.format(schema))


def ask(query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(postgres.shared_url()) as connection:
        return connection.execute(query.encode()).fetchall()


def version(schema: str) -> int:
    ((found,),) = ask(f"SELECT schema_version FROM {schema}.about")
    assert isinstance(found, int)
    return found


def contents(schema: str) -> str:
    """Everything in a schema. pg_dump makes up a password for each dump."""
    return re.sub(r"(?m)^\\(un)?restrict .*$", "", postgres.dump(postgres.shared_url(), schema))


def test_an_older_schema_is_migrated_while_a_program_works_on_it(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.connect(url) as older:
        older.enqueue_many([tenure.NewJob(queue="q", id=f"job-{n}") for n in range(3)])
        invent(monkeypatch, schema)
        assert upgrade(url) == (NEWEST, NEWEST + 1)
        assert upgrade(url) == (NEWEST + 1, NEWEST + 1)
        assert ask(f"SELECT id, colour FROM {schema}.jobs ORDER BY seq") == [
            ("job-0", "grey"),
            ("job-1", "green"),
            ("job-2", "grey"),
        ]
        assert ask(f"SELECT {schema}.colours()") == [(2,)]
        with tenure.connect(url) as newer:
            for queue in (older, newer):
                queue.enqueue("q")
                (job,) = queue.claim("q")
                queue.ack(job)
            assert newer.stats("q").done == 2


def test_a_fresh_schema_equals_a_migrated_one(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(url)
    invent(monkeypatch, schema)
    upgrade(url)
    store = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
    migrated = store.sub("", contents(schema))
    postgres.drop_schema(schema)
    assert upgrade(url) == (0, NEWEST + 1)
    assert store.sub("", contents(schema)) == migrated


def test_a_migration_that_fails_changes_nothing(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(url)
    before = contents(schema)
    with monkeypatch.context() as patch:
        invent(patch, schema, f"{STEP} DROP TABLE {{0}}.nonsense;")
        with pytest.raises(tenure.TenureError, match="nonsense"):
            tenure.connect(url)
    assert contents(schema) == before
    tenure.connect(url).close()


def test_what_is_printed_for_an_older_schema_migrates_it(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(url)
    invent(monkeypatch, schema)
    printed = upgrade_sql(url)
    assert "CREATE TABLE" not in printed
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(printed.encode())
    assert version(schema) == NEWEST + 1
    assert ask(f"SELECT {schema}.colours()") == [(0,)]


def test_a_role_that_worked_before_a_migration_works_after_it(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"role_{schema}"
    upgrade(url)
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            for right in (
                "USAGE ON SCHEMA {0}",
                "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0}",
                "USAGE ON ALL SEQUENCES IN SCHEMA {0}",
            ):
                connection.execute(f"GRANT {right.format(schema)} TO {role}".encode())
            invent(monkeypatch, schema)
            upgrade(url)
            with tenure.connect(url.replace("postgres@", f"{role}@", 1)) as queue:
                queue.enqueue("q")
                queue.ack(queue.claim("q")[0])
        finally:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("number", [1, NEWEST + 1, 9])
def test_a_schema_of_the_time_before_the_first_release_is_left_alone(
    url: str, schema: str, number: int
) -> None:
    """Its version has another name, and counts differently."""
    with tenure.connect(url) as queue:
        queue.enqueue("q")
    with psycopg.connect(postgres.shared_url()) as connection:
        rename = f"ALTER TABLE {schema}.about RENAME schema_version TO version"
        connection.execute(rename.encode())
        connection.execute(f"UPDATE {schema}.about SET version = {number}".encode())
    before = contents(schema)
    for call in (tenure.connect, upgrade, upgrade_sql, exists):
        with pytest.raises(tenure.WrongVersion) as refused:
            call(url)
        for part in (schema, "before its first release", "another schema", "DROP SCHEMA"):
            assert part in str(refused.value)
    assert contents(schema) == before
