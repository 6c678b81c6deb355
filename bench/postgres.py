"""Enqueue, claim and ack in batches of 100 on PostgreSQL, against plain psycopg on the same server;
then several worker processes against one.

The server is started with fsync and synchronous_commit on, as it comes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

import psycopg

import tenure
from bench import postgres_workers
from bench.batches import BATCH, PAYLOAD, TEXT, Pair, timed
from bench.report import Figure
from tests.support.postgres import Server

# An ack keeps the finished job, where the floor deletes a row.
PROMISES = {"enqueue": 0.4, "claim": 0.4, "ack": 0.35}


class Floor:
    """A queue of nothing but payloads: one narrow table with one partial index for ready rows;
    insert, update returning with SKIP LOCKED, delete. No ids, lanes, tenants, limits, history or
    tokens: what a queue costs at least."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url)
        self._db.execute(
            "CREATE TABLE floor (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "state smallint NOT NULL, payload text)"
        )
        self._db.execute("CREATE INDEX floor_ready ON floor (seq) WHERE state = 0")
        self._db.commit()

    def enqueue(self, payloads: list[str]) -> None:
        self._db.execute(
            "INSERT INTO floor (state, payload) SELECT 0, unnest(%s::text[])", (payloads,)
        )
        self._db.commit()

    def claim(self, n: int) -> list[tuple[int, str]]:
        rows: list[tuple[int, str]] = self._db.execute(
            "UPDATE floor SET state = 1 WHERE seq IN (SELECT seq FROM floor WHERE state = 0 "
            "ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING seq, payload",
            (n,),
        ).fetchall()
        self._db.commit()
        return rows

    def ack(self, rows: list[tuple[int, str]]) -> None:
        self._db.execute("DELETE FROM floor WHERE seq = ANY (%s)", ([row[0] for row in rows],))
        self._db.commit()

    def close(self) -> None:
        self._db.close()


def run(folder: Path, *, rounds: int = 5, batches: int = 60) -> list[Figure]:
    """One batch of the floor, one of Tenure, and again; through the public calls."""
    server = Server()
    try:
        figures = _run(server.url, rounds, batches)
    finally:
        server.stop()
    return figures + postgres_workers.run()


def _run(url: str, rounds: int, batches: int) -> list[Figure]:
    floor = Floor(url)
    pairs = {"enqueue": Pair(), "claim": Pair(), "ack": Pair()}
    with tenure.connect(url) as queue:
        for _ in range(rounds):
            for _ in range(batches):
                timed(pairs["enqueue"].floor, lambda: floor.enqueue([TEXT] * BATCH))
                timed(
                    pairs["enqueue"].tenure,
                    lambda: queue.enqueue_many(
                        [tenure.NewJob(queue="mail", payload=PAYLOAD) for _ in range(BATCH)]
                    ),
                )
            rows, jobs = [], []
            for _ in range(batches):
                rows.append(timed(pairs["claim"].floor, lambda: floor.claim(BATCH)))
                jobs.append(
                    timed(
                        pairs["claim"].tenure,
                        lambda: queue.claim("mail", limit=BATCH, worker="w"),
                    )
                )
            for mine, theirs in zip(jobs, rows, strict=True):
                assert len(mine) == len(theirs) == BATCH
                timed(pairs["ack"].floor, partial(floor.ack, theirs))
                timed(pairs["ack"].tenure, partial(queue.ack_many, mine))
    floor.close()
    return [
        Figure(
            f"PostgreSQL: {name}, batches of 100",
            rate=BATCH / median(pair.tenure),
            floor=BATCH / median(pair.floor),
            ratios=pair.ratios(),
            at_least=PROMISES[name],
        )
        for name, pair in pairs.items()
    ]
