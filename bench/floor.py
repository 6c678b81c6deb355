"""The floor: the standard library's sqlite3 doing the same durable work by hand.

WAL, synchronous=FULL, one narrow table with one partial index for ready rows; insert, update
returning, delete. No ids, lanes, tenants, limits, history or tokens: what a queue costs at least.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


class Floor:
    """A queue of nothing but payloads."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS jobs "
            "(seq INTEGER PRIMARY KEY, state INTEGER NOT NULL, payload TEXT)"
        )
        self.db.execute("CREATE INDEX IF NOT EXISTS ready ON jobs (seq) WHERE state = 0")

    def enqueue(self, payloads: list[str]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(
            "INSERT INTO jobs (state, payload) VALUES (0, ?)", [(text,) for text in payloads]
        )
        self.db.execute("COMMIT")

    def claim(self, n: int) -> list[tuple[int, str]]:
        self.db.execute("BEGIN IMMEDIATE")
        rows: list[tuple[int, str]] = self.db.execute(
            "UPDATE jobs SET state = 1 WHERE seq IN (SELECT seq FROM jobs WHERE state = 0 "
            "ORDER BY seq LIMIT ?) RETURNING seq, payload",
            (n,),
        ).fetchall()
        self.db.execute("COMMIT")
        return rows

    def ack(self, rows: list[tuple[int, str]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany("DELETE FROM jobs WHERE seq = ?", [(row[0],) for row in rows])
        self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()
