"""Look into a PostgreSQL schema, past the engine, for anything that its own books do not bear
out. Books and news must add up in one snapshot, whatever goes on meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import psycopg

from tests.support import postgres

STATES = ("waiting", "delayed", "ready", "leased", "done", "dead", "cancelled")
Db = psycopg.Connection[tuple[Any, ...]]


def audit(url: str, schema: str) -> list[str]:
    """What is wrong with the store; nothing, if the engine keeps its promises."""
    with postgres.looking(url) as db:
        if _all(db, "SELECT to_regclass(%s) IS NULL", f"{schema}.about") == [(True,)]:
            return []
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            db.execute(f"SET LOCAL search_path TO {schema}".encode())
            return [*_counters(db), *_heads(db), *_open(db), *_jobs(db), *_keys(db), *_slots(db)]
        finally:
            db.execute("COMMIT")  # after a rollback, psycopg forgets what it has prepared


def _all(db: Db, query: str, *params: object) -> list[tuple[Any, ...]]:
    return db.execute(re.sub(r"\s+", " ", query).encode(), params or None).fetchall()


def _counters(db: Db) -> list[str]:
    """Every book, with the news added, against the jobs that there are."""
    names = ", ".join(STATES)
    books: dict[tuple[str, int], Counter[str]] = {}
    tenant_of: dict[int, int] = {}
    for lane, tenant, *counts in _all(db, f"SELECT id, tenant, {names} FROM lanes"):
        tenant_of[lane] = tenant
        books["lane", lane] = Counter(dict(zip(STATES, counts, strict=True)))
    for what in ("tenant", "queue"):
        for number, *counts in _all(db, f"SELECT id, {names} FROM {what}s"):
            books[what, number] = Counter(dict(zip(STATES, counts, strict=True)))
    for queue, lane, *counts in _all(db, f"SELECT queue, lane, {names} FROM news"):
        for book in (("lane", lane), ("tenant", tenant_of.get(lane, 0)), ("queue", queue)):
            if book in books:
                books[book].update(dict(zip(STATES, counts, strict=True)))
    found: dict[tuple[str, int], Counter[str]] = {book: Counter() for book in books}
    query = "SELECT queue, lane, state, count(*) FROM states GROUP BY 1, 2, 3"
    for queue, lane, code, n in _all(db, query):
        for book in (("lane", lane), ("tenant", tenant_of.get(lane, 0)), ("queue", queue)):
            found.setdefault(book, Counter())[STATES[code]] += n
    return [
        f"{book} counts {books.get(book)}, but there are {found[book]}"
        for book in found
        if books.get(book, Counter()) != found[book]
    ]


def _heads(db: Db) -> list[str]:
    """A head, as the news would have it, is not after the first ready job, or it would be lost."""
    return [
        f"lane {row[0]} has head {row[1]}, but its first job is {row[2]}"
        for row in _all(
            db,
            """
            SELECT l.id, h.head, f.first FROM lanes l CROSS JOIN LATERAL (
                SELECT min(x.head) AS head FROM (
                    SELECT ARRAY[l.head_priority::bigint, l.head_seq] AS head
                    WHERE l.head_seq IS NOT NULL
                    UNION ALL SELECT ARRAY[n.head_priority::bigint, n.head_seq] FROM news n
                    WHERE n.lane = l.id AND n.head_seq IS NOT NULL) x) h
            CROSS JOIN LATERAL (
                SELECT min(ARRAY[s.priority::bigint, s.seq]) AS first FROM states s
                WHERE s.lane = l.id AND s.state = 2) f
            WHERE f.first IS NOT NULL AND (h.head IS NULL OR h.head > f.first)
            """,
        )
    ]


def _open(db: Db) -> list[str]:
    room = "({0}.max_leased IS NULL OR {0}.leased < {0}.max_leased)"
    return [
        f"{row[0]} {row[1]}: {row[2]}"
        for row in _all(
            db,
            f"""
            SELECT 'lane', id, 'wrongly open or closed' FROM lanes l
                WHERE open <> (head_seq IS NOT NULL AND {room.format("l")})
            UNION ALL SELECT 'tenant', id, 'wrongly open or closed' FROM tenants t
                WHERE open <> (open_lanes > 0 AND {room.format("t")})
            UNION ALL SELECT 'tenant', id, 'counts its open lanes wrongly' FROM tenants t
                WHERE open_lanes <> (SELECT count(*) FROM lanes l WHERE l.tenant = t.id AND l.open)
            UNION ALL SELECT 'lane', id, 'stands in line elsewhere than its head' FROM lanes
                WHERE (line_priority, line_seq) IS DISTINCT FROM (
                    CASE WHEN open AND grp <> '' THEN head_priority END,
                    CASE WHEN open AND grp <> '' THEN head_seq END)
            UNION ALL SELECT 'tenant', t.id, 'has an earlier turn than the first' FROM tenants t
                JOIN queues q ON q.id = t.queue WHERE t.open AND t.turn < q.first_turn
            UNION ALL SELECT 'lane', id, 'is wrongly empty or not' FROM lanes
                WHERE empty <> ({" + ".join(STATES)} = 0)
            UNION ALL SELECT 'tenant', id, 'is wrongly empty or not' FROM tenants
                WHERE empty <> ({" + ".join(STATES)} = 0)
            UNION ALL SELECT 'lane', l.id, 'has another bound than its limit' FROM lanes l
                JOIN tenants t ON t.id = l.tenant JOIN queues q ON q.id = t.queue
                WHERE l.max_leased IS DISTINCT FROM group_bound(q.queue, t.tenant, l.grp)
            UNION ALL SELECT 'tenant', t.id, 'has another bound than its limit' FROM tenants t
                JOIN queues q ON q.id = t.queue
                WHERE t.max_leased IS DISTINCT FROM tenant_bound(q.queue, t.tenant)
                    OR t.stride <> tenant_stride(q.queue, t.tenant)
            UNION ALL SELECT 'news', lane, 'is of no lane' FROM news
                WHERE lane NOT IN (SELECT id FROM lanes)
            """,
        )
    ]


def _jobs(db: Db) -> list[str]:
    return [
        f"job {row[0]}: {row[1]}"
        for row in _all(
            db,
            """
            WITH all_jobs AS (
                SELECT j.id, j.seq, j.lane, j.max_attempts, j.priority, s.lane AS stated_lane,
                    s.priority AS stated_priority, s.queue AS stated_queue, l.queue, s.state,
                    s.attempts, s.worker, s.token
                FROM jobs j JOIN states s ON s.seq = j.seq JOIN lanes l ON l.id = j.lane)
            SELECT id, 'attempts above max_attempts' FROM all_jobs
                WHERE attempts > max_attempts OR attempts < 0
            UNION ALL SELECT id, 'pending with its attempts used up' FROM all_jobs
                WHERE state IN (1, 2) AND attempts >= max_attempts
            UNION ALL SELECT id, 'leased without a worker or token' FROM all_jobs
                WHERE state = 3 AND (worker = '' OR token = 0)
            UNION ALL SELECT id, 'waits for nothing' FROM all_jobs j WHERE state = 0
                AND NOT EXISTS (SELECT FROM deps WHERE child = j.seq)
            UNION ALL SELECT id, 'waits, but is not waiting' FROM all_jobs j WHERE state <> 0
                AND EXISTS (SELECT FROM deps WHERE child = j.seq)
            UNION ALL SELECT id, 'stands elsewhere than it says' FROM all_jobs
                WHERE (lane, priority, queue) <> (stated_lane, stated_priority, stated_queue)
            UNION ALL SELECT seq::text, 'is gone, but its state is not' FROM states
                WHERE seq NOT IN (SELECT seq FROM jobs)
            UNION ALL SELECT seq::text, 'has no state, or no lane' FROM jobs
                WHERE seq NOT IN (SELECT seq FROM all_jobs)
            UNION ALL SELECT parent::text, 'is gone or done, but a child waits for it' FROM deps
                WHERE parent NOT IN (SELECT seq FROM all_jobs WHERE state <> 4)
            """,
        )
    ]


def _keys(db: Db) -> list[str]:
    held = set(_all(db, "SELECT tenant, unique_key, seq FROM keys"))
    live = set(
        _all(
            db,
            "SELECT l.tenant, j.unique_key, j.seq FROM jobs j JOIN states s ON s.seq = j.seq "
            "JOIN lanes l ON l.id = j.lane WHERE j.unique_key IS NOT NULL AND s.state <= 3",
        )
    )
    return [f"unique key {key} is not held as it should" for key in held ^ live]


def _slots(db: Db) -> list[str]:
    counted = set(_all(db, "SELECT scope, key, count FROM slot_counts"))
    found = set(_all(db, "SELECT scope, key, count(*) FROM slots GROUP BY scope, key"))
    return [f"slots {row} do not add up" for row in counted ^ found]
