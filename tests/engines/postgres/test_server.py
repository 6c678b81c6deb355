"""PostgreSQL: opening and migrating a schema, rights, URLs, and what goes wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import tenure
from tenure import InvalidInput, NewJob
from tenure.clock import SystemClock
from tenure.engines.postgres import engine as engine_module
from tenure.engines.postgres.commit_attempt import run
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.server import address_of, exists, upgrade, upgrade_sql
from tenure.engines.postgres.session import array
from tenure.model import ops, queries
from tenure.model.fields import MAX_WEIGHT
from tenure.model.job import NULL, JobSpec, new_ids
from tests.support import postgres
from tests.support.sizes import let

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def url(schema: str, tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@pytest.fixture
def queue(url: str) -> Iterator[tenure.Queue]:
    with tenure.connect(url) as queue:
        yield queue


@pytest.fixture
def connection(queue: tenure.Queue) -> Iterator[Connection]:
    """A connection of the caller's own."""
    with psycopg.connect(postgres.shared_url()) as connection:
        yield connection


# URLs -------------------------------------------------------------------------------------------


def test_the_short_scheme_names_the_same_store(queue: tenure.Queue, url: str) -> None:
    """Several hosters write their DATABASE_URL so."""
    job = queue.enqueue("mail")
    with tenure.connect(url.replace("postgresql://", "postgres://")) as same:
        assert same.get(job.id).queue == "mail"


def test_tenure_does_not_need_psycopg_until_it_is_asked_for() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import tenure\n"
        "tenure.connect('memory://').close()\n"
        "try: tenure.connect('postgresql://localhost/db')\n"
        "except tenure.InvalidInput as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert "pip install 'tenure[postgresql]'" in done.stdout


def test_a_url_names_a_database_and_a_schema() -> None:
    address = address_of("postgresql://me:secret@db.example:5433/shop?schema=jobs&sslmode=require")
    assert address.schema == "jobs"
    assert address.parameters["host"] == "db.example"
    assert address.parameters["sslmode"] == "require"
    assert "schema" not in address.parameters
    assert address.shown == "postgresql://db.example:5433/shop"
    assert address_of("postgresql:///shop").schema == "tenure"


@pytest.mark.parametrize("name", ["", "Jobs", "a-b", "1st", 'x"y', "a.b", "x" * 64])
def test_a_schema_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        address_of(f"postgresql://localhost/db?schema={name}")


def test_a_url_that_postgresql_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="url"):
        tenure.connect("postgresql://localhost/db?colour=blue")


@pytest.mark.parametrize("use", [tenure.connect, exists, upgrade, upgrade_sql])
def test_a_server_that_is_not_there_is_an_error_at_once(
    tmp_path: Path, use: Callable[[str], object]
) -> None:
    with pytest.raises(tenure.StoreError, match=f"{tmp_path}.*No such file"):
        use(f"postgresql:///db?host={tmp_path}")


# The schema -------------------------------------------------------------------------------------


def test_two_schemas_of_a_database_know_nothing_of_each_other(url: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with tenure.connect(url) as one, tenure.connect(postgres.url_of(other)) as two:
        one.enqueue("q", id="a")
        two.enqueue("q", id="a")
        assert len(two.jobs().jobs) == 1
    postgres.drop(other)


def test_a_schema_of_a_newer_tenure_is_refused(queue: tenure.Queue, url: str, schema: str) -> None:
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"UPDATE {schema}.about SET schema_version = 999".encode())
    with pytest.raises(tenure.WrongVersion, match="999"):
        tenure.connect(url)


def test_what_opening_changes_is_nothing_the_second_time(url: str, schema: str) -> None:
    for _ in range(2):
        with tenure.connect(url) as queue:
            queue.enqueue("q")
    with psycopg.connect(postgres.shared_url()) as connection:
        query = f"SELECT schema_version FROM {schema}.about".encode()
        version = connection.execute(query).fetchall()
    assert version == [(max(statements(schema).schema),)]
    (only,) = upgrade_sql(url).splitlines()
    assert only.startswith("-- ")


def test_a_turn_is_counted_as_everywhere(queue: tenure.Queue, schema: str) -> None:
    with psycopg.connect(postgres.shared_url()) as connection:
        for weight in (None, 1, 3, 7, MAX_WEIGHT):
            query = f"SELECT {schema}.stride(%s::integer)".encode()
            assert connection.execute(query, (weight,)).fetchall() == [(ops.stride(weight),)]


def test_a_role_with_few_rights_can_work_but_not_migrate(url: str, schema: str) -> None:
    role = f"role_{schema}"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            theirs = url.replace("postgres@", f"{role}@", 1)
            with pytest.raises(tenure.StoreReadOnly):
                tenure.connect(theirs)
            with tenure.connect(url):
                pass
            for right in (
                "USAGE ON SCHEMA {0}",
                "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0}",
                "USAGE ON ALL SEQUENCES IN SCHEMA {0}",
            ):
                connection.execute(f"GRANT {right.format(schema)} TO {role}".encode())
            with tenure.connect(theirs) as queue:
                queue.limits.set("q", concurrency=1)
                queue.enqueue_many([NewJob(queue="q", unique_key=str(n)) for n in range(3)])
                (job,) = queue.claim("q", limit=3)
                queue.ack(job)
                queue.maintain()
                assert queue.stats("q").ready == 2
        finally:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_the_servers_clock_counts_unless_another_is_given(queue: tenure.Queue) -> None:
    with psycopg.connect(postgres.shared_url()) as connection:
        query = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        ((before,),) = connection.execute(query).fetchall()
        queue.enqueue("q", id="a")
        (job,) = queue.claim("q", lease=10)
        connection.rollback()
        ((after,),) = connection.execute(query).fetchall()
    assert before <= job.created_at <= (job.started_at or 0) <= after
    assert job.lease_until == (job.started_at or 0) + 10_000


@pytest.mark.parametrize("hours", [-1, 1])
def test_what_is_due_is_said_by_the_clock_of_this_machine(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    right = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: right(self) + hours * 3_600_000)
    before = queue.clock.now_ms()
    queue.enqueue("q", delay=60)
    due = queue.next_due("q")
    assert due is not None
    # A slow machine may take a moment between reading one clock and the other.
    assert before + 60_000 - 5_000 <= due <= queue.clock.now_ms() + 60_000 + 5_000


def test_what_is_due_is_found_without_reading_every_job(queue: tenure.Queue, schema: str) -> None:
    """Neither those that are delayed for longer, nor those that are done."""
    queue.enqueue_many([NewJob(queue="q", delay=1000 + n) for n in range(3000)])
    queue.enqueue_many([NewJob(queue="q") for _ in range(1000)])
    queue.ack_many(queue.claim("q", limit=1000, lease=900))
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {schema}.states".encode())
        reads = []
        for _ in range(2):
            connection.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
            ((sums, *_),) = connection.execute(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_all_tables"
                " WHERE schemaname = %s AND relname = 'states'",
                (schema,),
            ).fetchall()
            reads.append(int(sums))
            connection.execute(
                f"SELECT * FROM {schema}.next_due(NULL, '{{q,r}}')".encode()
            ).fetchall()
    assert queue.next_due("q") is not None
    assert reads[1] - reads[0] <= 10


# The caller's own transaction -------------------------------------------------------------------


def ids(queue: tenure.Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs().jobs)


def test_a_commit_brings_the_job_and_a_rollback_takes_it_back(
    queue: tenure.Queue, connection: Connection
) -> None:
    queue.enqueue("q", id="a", connection=connection)
    assert ids(queue) == []
    connection.rollback()
    assert ids(queue) == []
    queue.enqueue("q", id="a", connection=connection)
    queue.enqueue("q", id="b", after=["a"], connection=connection)
    connection.commit()
    assert ids(queue) == ["a", "b"]


def test_a_block_of_the_caller_decides(queue: tenure.Queue) -> None:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        with connection.transaction():
            queue.enqueue("q", id="a", connection=connection)
        with connection.transaction(force_rollback=True):
            queue.enqueue("q", id="b", connection=connection)
        assert ids(queue) == ["a"]
        with pytest.raises(InvalidInput, match="no open transaction"):
            queue.enqueue("q", id="c", connection=connection)


def test_what_is_refused_leaves_the_callers_transaction_as_it_was(
    queue: tenure.Queue, connection: Connection
) -> None:
    queue.enqueue("q", id="held")
    connection.execute("CREATE TEMP TABLE orders (n integer)")
    connection.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(tenure.Duplicate):
        queue.enqueue("q", id="held", connection=connection)
    assert connection.execute("SELECT n FROM orders").fetchall() == [(1,)]


def test_a_connection_with_rows_of_another_kind_will_do(queue: tenure.Queue) -> None:
    with psycopg.connect(postgres.shared_url(), row_factory=dict_row) as connection:
        queue.enqueue("q", id="a", unique_key="k", connection=connection)
    assert ids(queue) == ["a"]


def test_a_connection_to_another_store_is_refused(queue: tenure.Queue) -> None:
    with pytest.raises(InvalidInput, match="psycopg"):
        queue.enqueue("q", connection=object())
    name = f"elsewhere_{os.getpid()}"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            with (
                psycopg.connect(postgres.shared_url(), dbname=name) as other,
                pytest.raises(InvalidInput, match="does not lead to"),
            ):
                queue.enqueue("q", connection=other)
        finally:
            connection.execute(f"DROP DATABASE {name}".encode())


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
@pytest.mark.parametrize("field", ["id", "unique_key"])
def test_a_duplicate_that_the_callers_snapshot_does_not_show_is_one(
    queue: tenure.Queue, connection: Connection, field: str, level: psycopg.IsolationLevel
) -> None:
    queue.enqueue("q", id="first")
    connection.isolation_level = level
    connection.execute("SELECT 1 FROM pg_class LIMIT 1")  # from here on the snapshot is fixed
    holder = queue.enqueue("q", **{field: "x"})  # type: ignore[arg-type]
    with pytest.raises(tenure.Duplicate) as refused:
        queue.enqueue("q", connection=connection, **{field: "x"})  # type: ignore[arg-type]
    assert refused.value.job_id == holder.id
    new = [NewJob(queue="q", id="other"), NewJob(queue="q", **{field: "x"})]  # type: ignore[arg-type]
    assert queue.enqueue_many(new, if_exists="skip", connection=connection) == ["other", holder.id]
    connection.commit()
    assert ids(queue) == sorted(["first", "other", holder.id])


def test_a_transaction_that_failed_is_refused(queue: tenure.Queue, connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(InvalidInput, match="roll it back"):
        queue.enqueue("q", connection=connection)


# What the engine leaves behind ------------------------------------------------------------------


def rows(schema: str, table: str) -> int:
    with psycopg.connect(postgres.shared_url()) as connection:
        ((n,),) = connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchall()
    return int(n)


def test_claims_that_find_nothing_leave_no_trace(queue: tenure.Queue, schema: str) -> None:
    queue.enqueue("plain", id="a")
    queue.ack(queue.claim("plain")[0])
    queue.limits.set("bound", concurrency=1)
    for name in ("plain", "bound", "unknown"):
        assert queue.claim(name) == []  # the news are folded in by this one
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        query = f"SELECT max(xmin::text::bigint), max(xmax::text::bigint) FROM {schema}.queues"
        before = connection.execute(query.encode()).fetchall(), rows(schema, "marks")
        for name in ("plain", "bound", "unknown"):
            assert queue.claim(name) == []
        assert (connection.execute(query.encode()).fetchall(), rows(schema, "marks")) == before


def test_news_do_not_pile_up_where_jobs_are_claimed(queue: tenure.Queue, schema: str) -> None:
    for n in range(20):
        queue.enqueue("q", n)
        queue.ack(queue.claim("q")[0])
    assert rows(schema, "news") <= 20  # a claim folds them in if there are 16
    for n in range(20):
        queue.enqueue("q", n)
    assert rows(schema, "news") > 20
    queue.maintain()
    assert rows(schema, "news") == 0
    assert queue.stats("q").ready == 20


@pytest.mark.parametrize("bound", [False, True], ids=["plain", "bound"])
def test_a_younger_server_finds_jobs_in_a_queue_that_was_empty(
    queue: tenure.Queue, schema: str, bound: bool
) -> None:
    """Nothing but the news tells of them, and these have lower numbers than the old server's."""
    if bound:
        queue.limits.set("q", concurrency=5)
    queue.enqueue("q", id="a")
    queue.ack(queue.claim("q")[0])
    assert queue.claim("q") == []
    assert queue.claim("q") == []
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(
            f"UPDATE {schema}.queues SET folded = '4000000000', folded_on = ''".encode()
        )
    queue.enqueue("q", id="b")
    assert [job.id for job in queue.claim("q")] == ["b"]


def test_maintenance_finds_a_lease_that_came_to_light_too_late(
    queue: tenure.Queue, schema: str
) -> None:
    queue.enqueue("q", id="a")
    queue.claim("q", lease=0.001)
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"UPDATE {schema}.queues SET no_lease_before = 1e12 * 1.5".encode())
        connection.execute(f"UPDATE {schema}.states SET at = 1".encode())
    assert queue.claim("q") == []
    assert queue.next_due("q") is None  # so that workers do not claim again and again
    assert queue.maintain().leases == 1
    assert [job.id for job in queue.claim("q")] == ["a"]


def test_the_marks_of_batches_are_forgotten_after_an_hour(queue: tenure.Queue, schema: str) -> None:
    queue.enqueue("q")
    with psycopg.connect(postgres.shared_url()) as connection:
        old = new_ids(int(time.time() * 1000) - 3_700_000, 1)[0]
        recent = new_ids(int(time.time() * 1000), 1)[0]  # by a clock that is ahead of the server's
        insert = f"INSERT INTO {schema}.marks (id, at) VALUES (%s, now() - interval '61 minutes')"
        for one in (old, recent):
            connection.execute(insert.encode(), (one,))
    before = rows(schema, "marks")
    queue.maintain()
    assert rows(schema, "marks") == before  # one went, and one came with the maintenance


def test_nothing_is_kept_on_a_connection_between_two_transactions(url: str) -> None:
    """So that a pooler may give it to another."""
    engine = PostgresEngine(url, tenure.Settings(), SystemClock())
    session = (
        b"SELECT (SELECT array_agg(name) FROM pg_settings WHERE source = 'session'), "
        b"(SELECT count(*) FROM pg_prepared_statements), "
        b"(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
        b"(SELECT count(*) FROM pg_listening_channels())"
    )
    spec = JobSpec("a", "q", NULL, unique_key="k")
    for batch in (
        [ops.Enqueue((spec,))],
        [ops.SetLimit("q", concurrency=1)],
        [ops.Claim(("q",), "w", 1000)],
        [ops.Ack("a", 1), ops.Maintain(), ops.TakeSlot("s", "k", "h", 1000)],
    ):
        engine.apply(batch)
        engine.read(queries.ListJobs())
        with engine._pool.use() as connection:
            assert connection.execute(session).fetchall() == [(None, 0, 0, 0)]
    engine.close()


def test_a_fork_has_connections_of_its_own(queue: tenure.Queue) -> None:
    queue.enqueue("q", id="before")
    assert queue.stats().ready == 1
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.enqueue("q", id="child")
            code = 0 if queue.stats().ready >= 2 else 2
        finally:
            os._exit(code)
    queue.enqueue("q", id="parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(job.id for job in queue.claim("q", limit=5)) == ["before", "child", "parent"]


def test_a_race_that_was_lost_does_not_cost_the_connection(url: str) -> None:
    engine = PostgresEngine(url, tenure.Settings(), SystemClock())
    engine.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
    with engine._pool.use() as connection:
        first = connection.info.backend_pid
    # An id that was made up is not looked for, but held all the same.
    with pytest.raises(tenure.StoreError):
        engine.apply([ops.Enqueue((JobSpec("a", "q", NULL, made_up_id=True),))])
    with engine._pool.use() as connection:
        assert connection.info.backend_pid == first
    engine.close()


def test_a_producer_that_loses_every_race_gives_up(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def counted(*args: Any) -> tuple[list[ops.Answer], bool]:
        attempts.append(1)
        assert len(attempts) < 10
        return run(*args)

    let(monkeypatch, tries_after_a_race=3)
    monkeypatch.setattr(engine_module, "run", counted)
    with closing(PostgresEngine(url, tenure.Settings(), SystemClock())) as engine:
        engine.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
        held = ops.Enqueue((JobSpec("a", "q", NULL, made_up_id=True),))
        with pytest.raises(tenure.StoreRejected, match="duplicate key"):
            engine.apply_within(connection, [held])
    assert len(attempts) == 4


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["NULL", "null", "{}", "{a,b}", 'say "hi"', "back\\slash", "a,b", " x ", "ø\x01\n\t'"],
        ["a", None, "", None],
        [1, -(2**63), 2**63 - 1],
        [None, 5],
        [None, None],
        [True, False],
    ],
    ids=str,
)
def test_an_array_arrives_as_it_was_sent(values: list[Any]) -> None:
    kind = "text" if any(isinstance(value, str) for value in values) else "bigint"
    kind = "boolean" if values and isinstance(values[0], bool) else kind
    with psycopg.connect(postgres.shared_url()) as connection:
        query = f"SELECT %s::{kind}[]".encode()
        assert connection.execute(query, (array(values),)).fetchall() == [(values,)]


def test_a_nul_does_not_make_one_text_of_two() -> None:
    with pytest.raises(InvalidInput):
        array(["a\0b", "c"])
