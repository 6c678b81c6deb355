"""Statements of a pipeline whose answers nobody asked for fail all the same."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tenure.engines.postgres.session import piped
from tests.support import postgres


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        yield connection


def test_an_error_that_nobody_waited_for_is_raised_at_the_end(
    connection: psycopg.Connection,
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), piped(connection):
        connection.execute("SELECT 1 / 0")


def test_of_an_error_and_what_follows_from_it_the_first_is_raised(
    connection: psycopg.Connection,
) -> None:
    def stumble() -> None:
        connection.execute("SELECT 1 / 0")
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"), piped(connection):
        stumble()


def test_an_error_of_the_caller_is_raised(connection: psycopg.Connection) -> None:
    with pytest.raises(LookupError, match="first"), piped(connection):
        raise LookupError("first")
