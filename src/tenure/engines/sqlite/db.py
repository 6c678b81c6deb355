"""A connection with named statements that returns plain tuples."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from tenure.engines.sqlite.sqlite_statements import SQL

_INSERT_SIZES = (128, 64, 32, 16, 8, 4, 2, 1)


@cache
def _insert_of(name: str, size: int) -> str:
    """Turn an INSERT of one row into an INSERT of `size` rows."""
    head, _, values = SQL[name].rpartition("VALUES ")
    return f"{head}VALUES {', '.join([values] * size)}"


class Db:
    """Runs the statements of sqlite.sql on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # a caller's own connection may use another

    def one(self, name: str, *params: Any) -> tuple[Any, ...] | None:
        """The first row, or None."""
        row: tuple[Any, ...] | None = self._cursor.execute(SQL[name], params).fetchone()
        return row

    def all(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        """Every row."""
        return self._cursor.execute(SQL[name], params).fetchall()

    def packed(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        """Every row of a statement that packs its rows into one. The GIL is released for each row
        that is stepped to, and in a busy program it takes long to get it back."""
        ((text,),) = self._cursor.execute(SQL[name], params).fetchall()
        return _unpack(text)

    def ids(self, name: str, *params: Any) -> list[int]:
        """The numbers of a statement that packs them into one row; see `packed`."""
        ((text,),) = self._cursor.execute(SQL[name], params).fetchall()
        return _unpack_ids(text)

    def named(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Every row of a statement with named parameters."""
        return self._cursor.execute(SQL[name], params).fetchall()

    def start_of(self, table: str, column: str, row: int, most: int) -> tuple[bytes, int]:
        """The first bytes of a value, and its size. The rest of it is not read."""
        with self._connection.blobopen(table, column, row, readonly=True) as value:
            return value.read(most), len(value)

    def run(self, name: str, *params: Any) -> int:
        """Run a statement. Returns how many rows it changed."""
        return self._cursor.execute(SQL[name], params).rowcount

    send = run

    def listed(self, values: Sequence[str]) -> str:
        return listed(values)

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for each of the rows. Returns how many rows it changed in total."""
        return self._cursor.executemany(SQL[name], rows).rowcount if rows else 0

    def insert(self, name: str, rows: Sequence[tuple[Any, ...]], *shared: Any) -> None:
        """Run an INSERT for all rows, many of them per step. shared: the values of the numbered
        parameters, which are the same in all rows; they come first in the statement."""
        start = 0
        for size in _INSERT_SIZES:
            while len(rows) - start >= size:
                params = [*shared, *chain.from_iterable(rows[start : start + size])]
                self._cursor.execute(_insert_of(name, size), params)
                start += size


_encode = msgspec.json.Encoder().encode
_unpack_ids = msgspec.json.Decoder(list[int]).decode
_unpack = msgspec.json.Decoder(list[tuple[Any, ...]]).decode


def listed(values: Iterable[int | str | tuple[int, ...] | tuple[str, ...]]) -> str:
    """Values for `IN (SELECT value FROM json_each(?))`."""
    return json(list(values))


def json(value: Any) -> str:
    """A value as one parameter."""
    return _encode(value).decode()
