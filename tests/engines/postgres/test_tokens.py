"""PostgreSQL: fencing tokens that come from another store."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.engines.postgres.statements import statements
from tests.support import postgres


@pytest.fixture
def schema(tmp_path: Path) -> str:
    """A schema with nothing in it."""
    tenure.connect(postgres.url_of(tmp_path)).close()
    return postgres.schema_of(tmp_path)


def connect() -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(postgres.shared_url(), autocommit=True)


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
