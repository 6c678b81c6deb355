"""Inserting jobs in bulk: new ones, and imported ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from tenure.engines.sql.rows import (
    DELAYED,
    LEASED,
    READY,
    WAITING,
    at_of,
    code_of_entry,
    errors_text,
    options_of,
    result_text,
)
from tenure.engines.sqlite.counters import Books, LaneBook
from tenure.engines.sqlite.db import Db
from tenure.model.job import JobSpec
from tenure.model.ops import Entry

Rows = list[tuple[Any, ...]]

# A job with only these fields is ready at once, and needs no row for changing values.
_COMMON = JobSpec.__struct_fields__.index("delay_ms")
_PLAIN = astuple(JobSpec("", "", msgspec.Raw(b"")))[_COMMON:]


def _last_seq(db: Db) -> int:
    """The number of the most recently enqueued job."""
    row = db.one("last_seq")
    assert row is not None
    return int(row[0])


def insert_jobs(
    db: Db,
    books: Books,
    now: int,
    specs: Sequence[JobSpec],
    waits: Sequence[Sequence[str]] | None,
    parents: Mapping[str, int],
) -> dict[str, int]:
    """Insert jobs and their dependencies. Returns their numbers, if any of them waits."""
    before = _last_seq(db)
    seqs: dict[str, int] = {}
    waiting: frozenset[int] = frozenset()
    if waits is not None:
        seqs = {spec.id: seq for seq, spec in enumerate(specs, before + 1)}
        pairs = [
            (seqs.get(parent) or parents[parent], seqs[spec.id])
            for spec, mine in zip(specs, waits, strict=True)
            for parent in mine
        ]
        db.many("insert_dep", pairs)
        waiting = frozenset(child for _, child in pairs)
    _insert(db, books, now, specs, before, waiting)
    return seqs


def _insert(
    db: Db,
    books: Books,
    now: int,
    specs: Sequence[JobSpec],
    before: int,
    waiting: frozenset[int],
) -> None:
    plain: Rows = []
    others: Rows = []
    changing: Rows = []
    keys: list[tuple[int, str, int]] = []
    codes: dict[int, dict[LaneBook, int]] = {READY: {}, DELAYED: {}, WAITING: {}}
    ready_in = codes[READY]
    for seq, (spec, lane) in enumerate(zip(specs, books.lanes(specs), strict=True), before + 1):
        priority, code = spec.priority, READY
        row = (seq, spec.id, lane.id, priority, now, spec.max_attempts, spec.kind,
               str(spec.payload, "utf-8"))  # fmt: skip
        if astuple(spec)[_COMMON:] == _PLAIN:
            plain.append(row)
        else:
            key, run_at, ttl = spec.unique_key, spec.starts_at(now), spec.expires_in_ms
            code = WAITING if seq in waiting else DELAYED if run_at > now else READY
            expires_at = None if ttl is None else now + ttl
            others.append((*row, key, options_of(spec)))
            changing.append((seq, lane.tenant.queue.id, code, run_at, now, run_at, expires_at))
            if key is not None:
                keys.append((lane.tenant.id, key, seq))
        if code == READY:
            ready_in[lane] = ready_in.get(lane, 0) + 1
            if lane.whole or (lane.line and priority < lane.line[-1][0]):
                lane.joined(priority, seq)
        else:
            codes[code][lane] = codes[code].get(lane, 0) + 1
    for code, lanes in codes.items():
        books.move_all(lanes.items(), None, code)
    db.insert("insert_plain_job", plain)
    db.run("ready_since", before)
    db.insert("insert_job", others)
    db.insert("insert_state", changing)
    ready = {row[0] for row in changing if row[2] == READY}
    db.insert("insert_ready", [(row[2], row[3], row[0]) for row in others if row[0] in ready])
    db.many("insert_key", keys)


def insert_entries(
    db: Db, books: Books, entries: Sequence[Entry], parents: Mapping[str, int]
) -> dict[str, int]:
    """Insert jobs from another store and their dependencies. Returns their numbers."""
    seqs = {entry.job.id: seq for seq, entry in enumerate(entries, _last_seq(db) + 1)}
    jobs: Rows = []
    changing: Rows = []
    ready: list[tuple[Any, ...]] = []
    keys: list[tuple[int, str, int]] = []
    lanes = books.lanes([entry.job for entry in entries])
    for entry, lane in zip(entries, lanes, strict=True):
        job, seq, code = entry.job, seqs[entry.job.id], code_of_entry(entry)
        jobs.append(
            (seq, job.id, lane.id, job.priority, job.created_at, job.max_attempts, job.kind,
             str(job.raw_payload, "utf-8"), job.unique_key, options_of(job))
        )  # fmt: skip
        changing.append(
            (seq, lane.tenant.queue.id, code, at_of(job), job.attempts, job.token, job.worker,
             job.started_at, job.updated_at, job.run_at, job.expires_at, job.progress, job.note,
             errors_text(job.errors), result_text(job.raw_result))
        )  # fmt: skip
        books.move(lane, None, code)
        if code == READY:
            ready.append((lane.id, job.priority, seq))
            lane.joined(job.priority, seq)
        if code <= LEASED and job.unique_key is not None:
            keys.append((lane.tenant.id, job.unique_key, seq))
    db.insert("insert_job", jobs)
    db.insert("import_state", changing)
    db.insert("insert_ready", ready)
    db.many("insert_key", keys)
    pairs = [(p, seqs[entry.job.id]) for entry in entries for p in entry.waits_for]
    db.many("insert_dep", [(seqs.get(p) or parents[p], child) for p, child in pairs])
    return seqs
