"""The commands that make, migrate and move a store."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure import connect
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.sqlite.sqlite_statements import SCHEMA
from tenure.model import queries
from tenure.queue import store_of
from tests.support import audit_postgres, postgres
from tests.unit.cli.terminal import Terminal

NEWEST = max(SCHEMA)


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[str]:
    """A schema of the test's own that there is not yet."""
    name = f"{postgres.schema_of(tmp_path / 'new')}_new"
    yield name
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def on_postgres(cli: Terminal, schema: str) -> Terminal:
    cli.url = f"{postgres.shared_url()}&schema={schema}"
    return cli


# migrate ----------------------------------------------------------------------------------------


def test_migrate_makes_the_file_and_says_so(fresh: Terminal) -> None:
    assert fresh.text("migrate") == f"Created the schema, version {NEWEST}.\n"
    assert "nothing to do" in fresh.text("migrate")
    assert fresh.json("migrate") == {"from": NEWEST, "to": NEWEST}


def test_migrate_says_from_which_version_to_which(
    fresh: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.text("migrate")
    monkeypatch.setitem(SCHEMA, NEWEST + 1, ["CREATE TABLE tenure_x (y)"])
    assert fresh.text("migrate") == f"Migrated the schema from version {NEWEST} to {NEWEST + 1}.\n"


def test_migrate_refuses_a_store_of_the_time_before_the_first_release(
    cli: Terminal, on_postgres: Terminal, schema: str
) -> None:
    on_postgres.text("migrate")
    with psycopg.connect(postgres.shared_url()) as connection:
        rename = f"ALTER TABLE {schema}.about RENAME schema_version TO version"
        connection.execute(rename.encode())
    for options in ((), ("--sql",)):
        assert "before its first release" in on_postgres.error("migrate", *options)
        assert f"DROP SCHEMA {schema} CASCADE" in on_postgres.error("migrate", *options)


def test_migrate_refuses_a_store_of_a_newer_tenure(cli: Terminal, tmp_path: Path) -> None:
    cli.text("migrate")
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
        db.execute("UPDATE tenure_counters SET value = 99 WHERE name = 'schema_version'")
    for options in ([], ["--sql"]):
        assert "has schema version 99" in cli.error("migrate", *options)
        assert "upgrade Tenure" in cli.error("migrate", *options)


def test_migrate_prints_the_sql_and_does_nothing(fresh: Terminal, tmp_path: Path) -> None:
    text = fresh.text("migrate", "--sql")
    assert not (tmp_path / "jobs.db").exists()
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
        db.executescript(text)
    assert "nothing to do" in fresh.text("migrate")
    assert fresh.text("migrate", "--sql").count("\n") == 1


def test_migrate_has_nothing_to_do_where_there_is_no_schema(cli: Terminal) -> None:
    for url in ("memory://", "http://localhost:3100"):
        for options in ([], ["--sql"]):
            result = cli.run("migrate", *options, url=url)
            assert result.exit_code == 0, result.stderr
            assert "nothing to do" in result.stdout or "no schema" in result.stdout


def test_migrate_makes_and_brings_up_to_date_a_schema_of_postgresql(
    on_postgres: Terminal, schema: str
) -> None:
    newest = max(statements(schema).schema)
    assert on_postgres.json("migrate") == {"from": 0, "to": newest}
    assert on_postgres.json("migrate") == {"from": newest, "to": newest}
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"UPDATE {schema}.about SET schema_version = 99".encode())
    assert "has schema version 99" in on_postgres.error("migrate")


def test_what_migrate_prints_is_what_psql_can_run(on_postgres: Terminal, schema: str) -> None:
    text = on_postgres.text("migrate", "--sql")
    psql = [str(postgres.programs() / "psql"), postgres.shared_url(), "-v", "ON_ERROR_STOP=1", "-q"]
    subprocess.run(psql, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
    assert "nothing to do" in on_postgres.text("migrate")
    assert on_postgres.text("migrate", "--sql").count("\n") == 1
    with connect(on_postgres.url) as queue:
        queue.enqueue("q", id="a")
        assert [job.id for job in queue.claim("q")] == ["a"]
    assert audit_postgres.audit(postgres.shared_url(), schema) == []


def test_migrate_says_which_right_is_missing(on_postgres: Terminal, schema: str) -> None:
    role, owners = f"role_{schema}", on_postgres.url
    on_postgres.url = owners.replace("postgres@", f"{role}@", 1)
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            said = on_postgres.error("migrate")
            assert f'GRANT CREATE ON DATABASE "postgres" TO "{role}";' in said
            connection.execute(f'GRANT CREATE ON DATABASE "postgres" TO "{role}"'.encode())
            assert on_postgres.json("migrate")["from"] == 0
            # What belongs to another is for that one to migrate.
            connection.execute(f"ALTER TABLE {schema}.about OWNER TO postgres".encode())
            connection.execute(f"ALTER SCHEMA {schema} OWNER TO postgres".encode())
            said = on_postgres.error("migrate")
            assert f"GRANT USAGE ON SCHEMA {schema} TO" in said
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
            connection.execute(f"GRANT SELECT ON {schema}.about TO {role}".encode())
            connection.execute(f"UPDATE {schema}.about SET schema_version = 0".encode())
            said = on_postgres.error("migrate")
            assert "Run `tenure migrate` as its owner, postgres" in said
        finally:
            connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
            connection.execute(f"DROP ROLE {role}".encode())


# copy -------------------------------------------------------------------------------------------


def test_copy_says_what_it_did(cli: Terminal, tmp_path: Path) -> None:
    with cli.open() as queue:
        queue.enqueue("q", id="a")
        queue.limits.set("q", concurrency=5)
    target = f"sqlite:///{tmp_path}/new.db"
    said = cli.text("copy", cli.url, target)
    assert said.startswith("Copied 1 job in ")
    assert "1 limit and 0 schedules. The queues of the source are paused" in said
    cli.text("enqueue", "q", "1")
    assert "1 were already there" in cli.text("copy", cli.url, target)
    again = cli.json("copy", cli.url, target)
    assert (again["copied"], again["there"], again["resumed"]) == (0, 2, True)


def test_copy_from_a_file_to_postgresql_and_back(
    cli: Terminal, schema: str, tmp_path: Path
) -> None:
    with cli.open() as queue:
        queue.enqueue("q", {"ø": 1}, id="a", tenant="acme")
        queue.enqueue("q", id="b", after=["a"])
        before = store_of(queue).do(queries.Export()).entries
    there = f"{postgres.shared_url()}&schema={schema}"
    back = f"sqlite:///{tmp_path}/back.db"
    cli.text("copy", cli.url, there)
    cli.text("copy", there, back)
    with connect(back, clock=cli.clock) as queue:
        assert store_of(queue).do(queries.Export()).entries == before


def test_copy_refuses_jobs_that_run_and_says_what_to_do(cli: Terminal, tmp_path: Path) -> None:
    cli.text("enqueue", "q", "1")
    cli.json("claim", "q")
    target = f"sqlite:///{tmp_path}/new.db"
    said = cli.error("copy", cli.url, target, "--wait", "0")
    assert "1 jobs of the source are still leased" in said
    done = cli.run("copy", cli.url, target, "--wait", "0", "--leased", "requeue", "--json")
    assert json.loads(done.stdout)["copied"] == 1


def test_copy_wants_stores_and_not_services(cli: Terminal) -> None:
    assert "target: http://queue is a service" in cli.error("copy", cli.url, "http://queue")
    assert "source: 'jobs.db' must begin with" in cli.error("copy", "jobs.db", cli.url)


def test_copy_does_not_make_the_file_that_it_is_to_read(fresh: Terminal, tmp_path: Path) -> None:
    missing = tmp_path / "typo.db"
    said = fresh.error("copy", f"sqlite:///{missing}", f"sqlite:///{tmp_path}/new.db")
    assert said == f"source: there is no file {missing}"
    assert list(tmp_path.iterdir()) == []


def test_tenants_are_moved_to_more_shards(cli: Terminal, tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path}/shard-{{0..{last}}}.db" for last in (1, 3))
    assert "there is no store" in cli.error("reshard", old, new)
    with connect(old) as queue:
        for n in range(20):
            queue.enqueue("q", tenant=f"t{n}")
    planned = cli.json("reshard", old, new, "--dry-run")
    assert (planned["of_tenants"], planned["of_jobs"]) == (20, 20)
    assert f"{planned['tenants']} of 20 tenants would move" in cli.text(
        "reshard", old, new, "--dry-run"
    )
    assert not (tmp_path / "shard-2.db").exists()
    done = cli.json("reshard", old, new)
    assert (done["tenants"], done["finished"], done["resumed"]) == (planned["tenants"], True, False)
    assert cli.json("reshard", old, new)["tenants"] == 0
    assert "use `tenure copy`" in cli.error("reshard", cli.url, new)


def test_a_shard_from_an_old_backup_is_used_again(cli: Terminal, tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path}/shard-{{0..{last}}}.db" for last in (1, 3))
    assert "there is no store" in cli.error("readmit", new, "0")
    with connect(old) as queue:
        for n in range(20):
            queue.enqueue("q", tenant=f"t{n}")
    with closing(sqlite3.connect(tmp_path / "shard-0.db")) as shard:
        backup = sqlite3.connect(":memory:")
        shard.backup(backup)
        cli.json("reshard", old, new)
        backup.backup(shard)
        backup.close()
    said = cli.text("readmit", new, "0")
    assert said.startswith("Shard 0 is used again. Deleted ")
    with connect(new) as queue:
        assert queue.stats().pending == 20
    assert "is not older" in cli.error("readmit", new, "0")
    assert "does not name several shards" in cli.error("readmit", cli.url, "0")
