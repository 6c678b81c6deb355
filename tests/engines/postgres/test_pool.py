"""Which connections are kept for the next who needs one, and which are closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

from tenure import Closed
from tenure.engines.postgres.pool import MOST_KEPT, Pool
from tenure.engines.postgres.server import Connection
from tests.support import postgres


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(lambda: psycopg.connect(postgres.shared_url(), autocommit=True))
    yield pool
    pool.close()


def used(pool: Pool, statement: str = "SELECT 1", error: BaseException | None = None) -> Connection:
    """The connection on which a statement was run; the error comes after it."""
    with suppress(LookupError, KeyboardInterrupt), pool.use() as connection:
        connection.execute(statement.encode())
        if error is not None:
            raise error
    return connection


def test_a_connection_is_used_again(pool: Pool) -> None:
    first = used(pool)
    assert used(pool) is first
    assert used(pool, error=LookupError()) is first
    assert used(pool) is first


def test_one_with_an_open_transaction_is_closed(pool: Pool) -> None:
    first = used(pool, "BEGIN")
    assert first.closed
    assert used(pool) is not first


def test_one_that_broke_is_not_used_again(pool: Pool) -> None:
    first = used(pool)
    first.close()
    pool.clear()
    with pool.use() as second:
        second.close()
    assert used(pool) not in (first, second)


def test_one_whose_user_was_interrupted_is_closed(pool: Pool) -> None:
    first = used(pool, error=KeyboardInterrupt())
    assert first.closed
    assert used(pool) is not first


def test_only_some_of_many_are_kept(pool: Pool) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(pool.use()) for _ in range(MOST_KEPT + 2)]
    assert [one.closed for one in many].count(True) == 2


def test_one_that_is_given_back_to_a_closed_pool_is_closed(pool: Pool) -> None:
    with pool.use() as connection:
        pool.close()
        assert not connection.closed
    assert connection.closed
    with pytest.raises(Closed):
        pool.use().__enter__()
