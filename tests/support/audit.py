"""Look into a SQLite file, past the engine, for anything that its own books do not bear out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

STATES = ("waiting", "delayed", "ready", "leased", "done", "dead", "cancelled")


def audit(path: Path) -> list[str]:
    """What is wrong with the file; nothing, if the engine keeps its promises."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TEMP VIEW jobs AS SELECT j.*, ifnull(s.state, 2) AS state, "
            "ifnull(s.attempts, 0) AS attempts, s.token, s.worker, t.queue AS queue, "
            "s.queue AS stated_queue "
            "FROM tenure_jobs j JOIN tenure_lanes l ON l.id = j.lane "
            "JOIN tenure_tenants t ON t.id = l.tenant LEFT JOIN tenure_states s ON s.seq = j.seq"
        )
        return [
            *_counters(db),
            *_heads(db),
            *_open_lanes(db),
            *_jobs(db),
            *_keys(db),
            *_slots(db),
            *(
                f"integrity: {row[0]}"
                for row in db.execute("PRAGMA integrity_check")
                if row[0] != "ok"
            ),
        ]


def _counters(db: sqlite3.Connection) -> list[str]:
    wrong = []
    sources = {
        "tenure_lanes": "SELECT count(*) FROM jobs WHERE lane = b.id AND state = {}",
        "tenure_tenants": "SELECT count(*) FROM jobs j JOIN tenure_lanes l ON l.id = j.lane "
        "WHERE l.tenant = b.id AND j.state = {}",
        "tenure_queues": "SELECT count(*) FROM jobs WHERE queue = b.id AND state = {}",
    }
    for table, source in sources.items():
        for code, state in enumerate(STATES):
            found = f"({source.format(code)})"
            for row in db.execute(
                f"SELECT b.id, b.{state}, {found} FROM {table} b WHERE b.{state} <> {found}"
            ):
                wrong.append(f"{table} {row[0]} counts {row[1]} {state}, but there are {row[2]}")
    return wrong


def _heads(db: sqlite3.Connection) -> list[str]:
    wrong = []
    for lane, priority, seq in db.execute("SELECT id, head_priority, head_seq FROM tenure_lanes"):
        head = db.execute(
            "SELECT priority, seq FROM jobs WHERE lane = ? AND state = 2 "
            "ORDER BY priority, seq LIMIT 1",
            (lane,),
        ).fetchone() or (None, None)
        if head != (priority, seq):
            wrong.append(f"lane {lane} has head {(priority, seq)}, but it is {head}")
    return wrong


def _open_lanes(db: sqlite3.Connection) -> list[str]:
    room = "({0}.max_leased IS NULL OR {0}.leased < {0}.max_leased)"
    wrong = [
        f"lane {row[0]} is wrongly {'open' if row[1] else 'closed'}"
        for row in db.execute(
            f"SELECT id, open FROM tenure_lanes l WHERE open <> (ready > 0 AND {room.format('l')})"
        )
    ]
    wrong += [
        f"tenant {row[0]} is wrongly {'open' if row[1] else 'closed'}"
        for row in db.execute(
            "SELECT id, open FROM tenure_tenants t "
            f"WHERE open <> (open_lanes > 0 AND {room.format('t')})"
        )
    ]
    wrong += [
        f"tenant {row[0]} has {row[1]} open lanes, but there are {row[2]}"
        for row in db.execute(
            "SELECT * FROM (SELECT t.id, t.open_lanes, (SELECT count(*) FROM tenure_lanes l "
            "WHERE l.tenant = t.id AND l.open) AS found FROM tenure_tenants t) "
            "WHERE open_lanes <> found"
        )
    ]
    return wrong


def _jobs(db: sqlite3.Connection) -> list[str]:
    return [
        f"job {row[0]}: {row[1]}"
        for row in db.execute(
            """
            SELECT id, 'attempts above max_attempts' FROM jobs
                WHERE attempts > max_attempts OR attempts < 0
            UNION ALL SELECT id, 'pending with its attempts used up' FROM jobs
                WHERE state IN (1, 2) AND attempts >= max_attempts
            UNION ALL SELECT id, 'leased without a worker or token' FROM jobs
                WHERE state = 3 AND (worker = '' OR token = 0)
            UNION ALL SELECT id, 'waits for nothing' FROM jobs j WHERE state = 0
                AND NOT EXISTS (SELECT 1 FROM tenure_deps WHERE child = j.seq)
            UNION ALL SELECT id, 'waits, but is not waiting' FROM jobs j WHERE state <> 0
                AND EXISTS (SELECT 1 FROM tenure_deps WHERE child = j.seq)
            UNION ALL SELECT seq, 'is gone, but its state is not' FROM tenure_states
                WHERE seq NOT IN (SELECT seq FROM tenure_jobs)
            UNION ALL SELECT id, 'is ready, but not in line' FROM jobs j WHERE state = 2
                AND NOT EXISTS (SELECT 1 FROM tenure_ready r WHERE r.seq = j.seq
                    AND r.lane = j.lane AND r.priority = j.priority)
            UNION ALL SELECT seq, 'is in line, but not ready' FROM tenure_ready
                WHERE seq NOT IN (SELECT seq FROM jobs WHERE state = 2)
            UNION ALL SELECT parent, 'is gone or done, but a child waits for it' FROM tenure_deps d
                WHERE parent NOT IN (SELECT seq FROM jobs WHERE state <> 4)
                AND NOT EXISTS (SELECT 1 FROM tenure_untold u WHERE u.parent = d.parent
                    AND d.child > u.after AND d.child <= u.last)
            UNION ALL SELECT id, 'in the wrong queue' FROM jobs WHERE queue <> stated_queue
            UNION ALL SELECT seq, 'in no lane' FROM tenure_jobs
                WHERE seq NOT IN (SELECT seq FROM jobs)
            """
        )
    ]


def _keys(db: sqlite3.Connection) -> list[str]:
    held = set(db.execute("SELECT unique_key, seq FROM tenure_keys"))
    live = set(
        db.execute("SELECT unique_key, seq FROM jobs WHERE unique_key IS NOT NULL AND state <= 3")
    )
    return [f"unique key {key} is not held as it should" for key in held ^ live]


def _slots(db: sqlite3.Connection) -> list[str]:
    counted = set(db.execute("SELECT scope, key, count FROM tenure_slot_counts"))
    found = set(db.execute("SELECT scope, key, count(*) FROM tenure_slots GROUP BY scope, key"))
    return [f"slots {row} do not add up" for row in counted ^ found]
