"""The SQL of the page about PostgreSQL does what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from docs.generate import FOLDER
from tenure import NewJob
from tenure.model import ops, queries
from tenure.queue import store_of
from tests.docs.test_pages import blocks
from tests.support import audit_postgres, postgres

PAGE = FOLDER / "postgresql.md"
Connection = psycopg.Connection[tuple[Any, ...]]


class Names:
    """The schema and the roles of the page, under names of this test's own."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.owner, self.app = f"{schema}_owner", f"{schema}_app"

    def of(self, sql: str) -> bytes:
        sql = sql.replace("jobs_owner", self.owner).replace("jobs_app", self.app)
        return re.sub(r"\btenure\b", self.schema, sql).encode()

    def url(self, role: str) -> str:
        url = postgres.shared_url().replace("postgres@", f"{role}@", 1)
        return f"{url}&schema={self.schema}"


@pytest.fixture
def connection() -> Iterator[Connection]:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def names(connection: Connection, tmp_path: Path) -> Iterator[Names]:
    """With the roles and the schema that the page makes."""
    names = Names(f"{postgres.schema_of(tmp_path)}_roles")
    (roles,) = (block for block in blocks(PAGE, "sql") if "CREATE ROLE" in block)
    connection.execute(names.of(roles))
    yield names
    assert audit_postgres.audit(postgres.shared_url(), names.schema) == []
    connection.execute(f"DROP SCHEMA {names.schema} CASCADE".encode())
    for role in (names.owner, names.app):
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


def do_everything(url: str) -> None:
    """Every kind of operation."""
    with tenure.connect(url) as queue:
        queue.limits.set("q", concurrency=5, rate=100, per=1)
        queue.enqueue("q", id="parent", unique_key="k")
        queue.enqueue("q", id="child", after=["parent"])
        queue.enqueue_many(NewJob(queue="plain") for _ in range(3))
        queue.enqueue("q", id="gone")
        queue.delete("gone")
        (job,) = queue.claim("q")
        queue.extend(job, 60)
        queue.progress(job, 50)
        queue.ack(job, "result")
        queue.fail(queue.claim("q")[0], "boom", fatal=True)
        queue.replay("child")
        queue.release(queue.claim("q")[0])
        queue.cancel("child")
        queue.ack_many(queue.claim("plain", limit=3), keep=False)
        queue.pause("q", tenant="acme")
        queue.resume("q", tenant="acme")
        queue.slots.take("scope", "key", "holder", 60)
        queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q"))
        queue.schedules.drop("nightly")
        store_of(queue).do([ops.Once("key", (ops.Pause("q"), ops.Resume("q")))])
        store_of(queue).do([ops.Import(tuple(store_of(queue).do(queries.Export()).entries))])
        queue.maintain()
        queue.reconcile("q")
        queue.limits.clear("q")
        assert queue.stats("q").cancelled == 1


def test_the_role_that_works_can_do_everything_but_migrate(
    names: Names, connection: Connection
) -> None:
    with pytest.raises(tenure.StoreReadOnly, match=f"as its owner, {names.owner}"):
        tenure.connect(names.url(names.app))
    tenure.connect(names.url(names.owner)).close()
    do_everything(names.url(names.app))
    with psycopg.connect(names.url(names.app).partition("&schema")[0], autocommit=True) as app:
        for forbidden in (
            f"DROP TABLE {names.schema}.jobs",
            f"TRUNCATE {names.schema}.jobs",
            f"CREATE TABLE {names.schema}.more ()",
            f"CREATE SCHEMA {names.schema}_more",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(forbidden.encode())


def test_the_rights_on_a_schema_that_is_there_are_enough(
    names: Names, connection: Connection
) -> None:
    tenure.connect(names.url(names.owner)).close()
    connection.execute(f"DROP OWNED BY {names.app}".encode())
    with pytest.raises(tenure.StoreReadOnly, match="GRANT USAGE ON SCHEMA"):
        tenure.connect(names.url(names.app))
    grants = re.findall(r"^    (GRANT .* SCHEMA .*;)$", PAGE.read_text(), re.MULTILINE)
    assert len(grants) == 3
    for grant in grants:
        connection.execute(names.of(grant))
    do_everything(names.url(names.app))


def test_what_is_to_be_watched_can_be_asked(names: Names, connection: Connection) -> None:
    with tenure.connect(names.url(names.owner)) as queue:
        queue.enqueue("q", id="a")
        queue.enqueue("q", id="b")
        queue.claim("q", lease=0.001)
    connection.execute(
        f"UPDATE {names.schema}.states SET at = at - 120000 WHERE state = 3".encode()
    )
    queries = [block for block in blocks(PAGE, "sql") if block.startswith("SELECT")]
    assert len(queries) == 6
    found = [connection.execute(names.of(query)).fetchall() for query in queries]
    by_query = dict(zip([query.split("\n")[0] for query in queries], found, strict=True))
    ages = [
        rows for first, rows in by_query.items() if "AS oldest" in first or "AS waits_for" in first
    ]
    assert [[row[:2] for row in rows] for rows in ages if rows][:2] == [[("q", 1)], [("q", 1)]]
    connection.execute(
        f"UPDATE {names.schema}.states SET at = at + 120000 WHERE state = 3".encode()
    )
