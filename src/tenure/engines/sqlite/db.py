"""A connection as the rest of the engine uses it: named statements, plain tuples."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from tenure.engines.sqlite.statements import SQL

_INSERT_SIZES = (128, 64, 32, 16, 8, 4, 2, 1)


@cache
def _insert_of(name: str, size: int) -> str:
    """An INSERT of one row, made one of several."""
    head, _, values = SQL[name].rpartition("VALUES ")
    return f"{head}VALUES {', '.join([values] * size)}"


class Db:
    """Runs the statements of sqlite.sql on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # a caller's own connection may have another

    def one(self, name: str, *params: Any) -> tuple[Any, ...] | None:
        """The first row, or None."""
        row: tuple[Any, ...] | None = self._cursor.execute(SQL[name], params).fetchone()
        return row

    def all(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        """Every row."""
        return self._cursor.execute(SQL[name], params).fetchall()

    def packed(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        """Every row of a statement that packs them into one. Python's own lock is given away for
        each row that is stepped to, and a busy program takes its time to give it back."""
        ((text,),) = self._cursor.execute(SQL[name], params).fetchall()
        return _unpack(text)

    def named(self, name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Every row of a statement with named parameters."""
        return self._cursor.execute(SQL[name], params).fetchall()

    def run(self, name: str, *params: Any) -> int:
        """How many rows it changed."""
        return self._cursor.execute(SQL[name], params).rowcount

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """The statement for each of the rows; how many rows it changed in all."""
        return self._cursor.executemany(SQL[name], rows).rowcount if rows else 0

    def insert(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        """The INSERT for all of the rows, many of them in one step."""
        start = 0
        for size in _INSERT_SIZES:
            while len(rows) - start >= size:
                params = [value for row in rows[start : start + size] for value in row]
                self._cursor.execute(_insert_of(name, size), params)
                start += size


_unpack = msgspec.json.Decoder(list[tuple[Any, ...]]).decode


def listed(values: Iterable[int] | Iterable[str] | Iterable[tuple[str, ...]]) -> str:
    """Values for `IN (SELECT value FROM json_each(?))`."""
    return msgspec.json.encode(list(values)).decode()
