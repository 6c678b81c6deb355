"""PostgreSQL: fencing tokens follow the clock, or those of another store that are ahead of it."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.engines.postgres import fast_paths
from tenure.engines.postgres.claimed_places import Places
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.session import Db
from tenure.model import ops
from tenure.model.job import new_ids
from tests.support import postgres


@pytest.fixture
def schema(tmp_path: Path) -> str:
    """A schema with nothing in it."""
    tenure.connect(postgres.url_of(tmp_path)).close()
    return postgres.schema_of(tmp_path)


def connect() -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(postgres.shared_url(), autocommit=True)


def by_the_clock() -> int:
    """The time as a token: quarters of a microsecond since 2026."""
    return (time.time_ns() // 1_000 - 1_767_225_600 * 10**6) * 4


@pytest.mark.parametrize("limited", [False, True])
def test_a_token_is_the_time_of_its_claim(schema: str, tmp_path: Path, limited: bool) -> None:
    """So it says nothing about the claims between two of them, however many there were."""
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        if limited:
            queue.limits.set("q", concurrency=100)
        queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(60)])
        tokens = []
        for _ in range(60):
            before = by_the_clock()
            (job,) = queue.claim("q")
            assert before <= job.token <= by_the_clock() + 16
            tokens.append(job.token)
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 2**53  # exact in JavaScript


def test_tokens_grow_while_the_clock_is_behind_them(schema: str, tmp_path: Path) -> None:
    """As after a clock was set back by an hour."""
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(41)])
        (first,) = queue.claim("q")
        ahead = first.token + 3600 * 4 * 10**6
        with connect() as connection:
            connection.execute(f"SELECT setval('{schema}.tokens', {ahead})".encode())
        tokens = [queue.claim("q")[0].token for _ in range(40)]
    assert tokens[0] > ahead
    assert tokens == sorted(set(tokens))
    steps = {after - before for before, after in pairwise(tokens)}
    assert len(steps) > 2


def test_tokens_grow_whatever_the_clock_does(schema: str) -> None:
    """It goes on, is set back by some seconds or by a minute, is set ahead, and catches up."""
    query = f"SELECT {schema}.new_tokens(%s, 2, 0)".encode()
    now, tokens = 1_800_000_000_000, []
    with connect() as connection:
        for moved in (0, -3_000, 30_000, -8_000, -60_000, 30_000, 0, -10_000, 3_600_000, -1):
            now += moved
            for _ in range(45):
                now += 1_000
                ((given,),) = connection.execute(query, (now,)).fetchall()
                assert isinstance(given, list)
                tokens += given
    assert tokens == sorted(set(tokens))
    ahead = tokens[-1] - (now - 1_767_225_600_000) * 4000
    assert 0 < ahead <= 4000 + 2 * 16  # by the clock again


def test_tokens_grow_in_a_new_home_whose_clock_is_a_little_behind(
    schema: str, tmp_path: Path
) -> None:
    """A standby that took over, for example: it does not have the last claims of the primary."""
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(3)])
        queue.claim("q")
        with connect() as connection:
            connection.execute(f"UPDATE {schema}.about SET home = 'elsewhere'".encode())
            connection.execute(f"UPDATE {schema}.queues SET folded_on = 'elsewhere'".encode())
        lost = by_the_clock() + 9 * 4 * 10**6
        after = [queue.claim("q")[0].token for _ in range(2)]
    assert lost < after[0] < after[1]


def test_a_claim_that_is_recovered_is_not_given_the_jobs_of_another_with_its_token(
    schema: str, tmp_path: Path
) -> None:
    batch = [ops.Claim(("q",), "w", 60_000, limit=1)]
    way = fast_paths.fast_path_of(batch)
    assert way is not None
    (mark,) = new_ids(0, 1)
    with tenure.connect(postgres.url_of(tmp_path)) as queue, connect() as connection:
        queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(2)])
        db = Db(connection, statements(schema).sql)
        assert way(db, mark, batch, None, Places()) is not None
        queue.claim("q")
        (mine,) = fast_paths.recover(db, mark, batch)
        assert isinstance(mine, ops.Leased)
        connection.execute(
            f"UPDATE {schema}.states SET token = {mine.jobs[0].token}".encode()
            + b" WHERE token <> %s",
            (mine.jobs[0].token,),
        )
        (again,) = fast_paths.recover(db, mark, batch)
        assert again == mine


def test_tokens_only_grow_while_others_take_some(schema: str) -> None:
    """Importers with tokens in any order, some near and some far, and claims beside them."""
    sql = statements(schema).sql["tokens_from"]
    take = f"SELECT nextval('{schema}.tokens')".encode()
    taken: dict[int, list[int]] = {n: [] for n in range(2)}
    over = threading.Event()

    def claim(mine: list[int]) -> None:
        with connect() as connection:
            while not over.is_set():
                ((token,),) = connection.execute(take).fetchall()
                assert isinstance(token, int)
                mine.append(token)

    def bring(order: list[int]) -> None:
        with connect() as connection:
            for last in order:
                connection.execute(sql, (last,))
                ((token,),) = connection.execute(take).fetchall()
                assert isinstance(token, int)
                assert token > last

    claims = [threading.Thread(target=claim, args=(mine,)) for mine in taken.values()]
    wanted = [10**n for n in range(15)]
    importers = [
        threading.Thread(target=bring, args=(order,))
        for order in (wanted, wanted[::-1], wanted[::2] * 2)
    ]
    for thread in (*claims, *importers):
        thread.start()
    for thread in importers:
        thread.join(60)
    over.set()
    for thread in claims:
        thread.join(60)
    for mine in taken.values():
        assert mine == sorted(set(mine))
    assert not set(taken[0]) & set(taken[1])


def test_the_next_token_follows_one_that_is_near(schema: str) -> None:
    sql = statements(schema).sql["tokens_from"]
    take = f"SELECT nextval('{schema}.tokens')".encode()
    with connect() as connection:
        for last, then in ((0, 1), (1, 2), (7, 8), (3, 9), (9, 10)):
            connection.execute(sql, (last,))
            assert connection.execute(take).fetchall() == [(then,)]


def test_a_role_that_only_works_may_import(schema: str) -> None:
    role, sql = f"role_{schema}", statements(schema).sql["tokens_from"]
    with connect() as connection:
        connection.execute(f"CREATE ROLE {role}".encode())
        try:
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
            connection.execute(f"SET ROLE {role}".encode())
            connection.execute(sql, (10**12,))
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("tenants", ["a", "abcd"])
def test_a_claim_of_jobs_whose_tokens_are_ahead_of_the_clock_is_recovered(
    schema: str, tmp_path: Path, tenants: str
) -> None:
    """As after an import, or after the clock was set back by less than 0.1 seconds."""
    batch = [ops.Claim(("q",), worker, 60_000, limit=2) for worker in ("v", "w")]
    way = fast_paths.fast_path_of(batch)
    assert way is not None
    with tenure.connect(postgres.url_of(tmp_path)) as queue, connect() as connection:
        if len(tenants) > 1:
            queue.limits.set("q", concurrency=100)
        db = Db(connection, statements(schema).sql)
        jobs = [tenure.NewJob(queue="q", tenant=tenants[n % len(tenants)]) for n in range(4)]
        for ahead in (0, 1, 8, 16, 300_000):
            queue.enqueue_many(jobs)
            queue.maintain()
            connection.execute(
                f"UPDATE {schema}.states SET token = {schema}.token_clock(NULL) + %s".encode()
                + b" WHERE state = 2",
                (ahead,),
            )
            (mark,) = new_ids(0, 1)
            told = [jobs_of(one) for one in way(db, mark, batch, None, Places()) or ()]
            assert [len(jobs) for jobs in told] == [2, 2]
            assert [jobs_of(one) for one in fast_paths.recover(db, mark, batch)] == told
            for job in (*told[0], *told[1]):
                queue.ack(job)


def jobs_of(answer: ops.Answer) -> list[tenure.Job]:
    assert isinstance(answer, ops.Leased)
    return sorted(answer.jobs, key=lambda job: job.id)
