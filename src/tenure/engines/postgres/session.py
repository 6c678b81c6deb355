"""A connection with named statements that returns plain tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import TupleRow, tuple_row

from tenure.errors import InvalidInput

Sent = psycopg.Cursor[TupleRow]


class Db:
    """Runs named statements on one connection. In pipeline mode, `send` does not wait
    for the result; `all` and `one` do."""

    def __init__(self, connection: psycopg.Connection[Any], sql: dict[str, bytes]) -> None:
        self._connection = connection
        self._sql = sql

    def send(self, name: str, *params: Any) -> Sent:
        """Run a statement. The cursor has the result once it is fetched."""
        cursor = self._connection.cursor(row_factory=tuple_row)
        values = [array(value) if type(value) is list else value for value in params]
        return cursor.execute(self._sql[name], values, prepare=False)

    def listed(self, values: Sequence[str]) -> list[str]:
        """Values as one parameter of a statement."""
        return list(values)

    def all(self, name: str, *params: Any) -> list[TupleRow]:
        """Every row."""
        return self.send(name, *params).fetchall()

    def one(self, name: str, *params: Any) -> TupleRow | None:
        """The first row, or None."""
        return self.send(name, *params).fetchone()

    def value(self, name: str, *params: Any) -> Any:
        """The only value of the only row."""
        row = self.one(name, *params)
        assert row is not None
        return row[0]

    def named(self, name: str, params: dict[str, Any]) -> list[TupleRow]:
        """Every row of a statement with named parameters."""
        cursor = self._connection.cursor(row_factory=tuple_row)
        return cursor.execute(self._sql[name], params, prepare=False).fetchall()

    def send_named(self, name: str, params: dict[str, Any]) -> None:
        cursor = self._connection.cursor(row_factory=tuple_row)
        cursor.execute(self._sql[name], params, prepare=False)


def array(values: list[Any]) -> str:
    """Values as a PostgreSQL array literal, ten times as fast as psycopg. Text never contains a
    NUL, so NUL can separate the values while all of them are escaped at once."""
    if not values:
        return "{}"
    if None in values:
        return "{" + ",".join(["NULL" if v is None else array([v])[1:-1] for v in values]) + "}"
    if type(values[0]) is not str:
        return "{" + ",".join(map(str, values)) + "}"
    text = "\0".join(values).replace("\\", "\\\\").replace('"', '\\"')
    if text.count("\0") != len(values) - 1:
        raise InvalidInput("text", "must not contain a NUL character")
    return '{"' + text.replace("\0", '","') + '"}'


@contextmanager
def piped(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Pipeline mode. Raises only the first error; psycopg would log the errors that follow from
    it."""
    first: Exception | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except Exception as error:
                first = error
    except psycopg.Error:
        if first is None:
            raise
    if first is not None:
        raise first
