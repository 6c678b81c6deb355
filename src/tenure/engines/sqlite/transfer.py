"""Import: jobs of another store, as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tenure import ops, states
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.rows import (
    CANCELLED,
    DEAD,
    DONE,
    LEASED,
    READY,
    Row,
    at_of,
    code_of_entry,
    errors_text,
    options_of,
)
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import DependencyNotFound, Duplicate, TenureError
from tenure.job import FINAL, NULL, Job
from tenure.ops import Answer, Entry

Place = tuple[int, int]  # seq and state code of a job


def import_(tx: Transaction, batch: Sequence[ops.Import]) -> list[Answer]:
    return [_import(tx, op) for op in batch]


def _import(tx: Transaction, op: ops.Import) -> Answer:
    ids = [entry.job.id for entry in op.entries]
    known = _places(tx, ids)
    new: dict[str, Entry] = {}
    created = []
    for entry in op.entries:
        created.append(entry.job.id not in known and entry.job.id not in new)
        if created[-1]:
            new[entry.job.id] = entry
    entries = list(new.values())
    parents = _places(tx, {id for entry in entries for id in entry.waits_for if id not in new})
    problem = _held_key(tx, entries) or _lost_parent(entries, parents.keys() | new.keys())
    if problem is not None:
        return problem
    _insert(tx, entries, parents)
    return ops.Enqueued(ids, created, tx.now)


def _places(tx: Transaction, ids: Iterable[str]) -> dict[str, Place]:
    return {id: (seq, code) for id, seq, code in tx.db.all("known_ids", listed(ids))}


def _held_key(tx: Transaction, entries: list[Entry]) -> TenureError | None:
    keys: dict[tuple[str, str, str], str] = {}
    for job in (entry.job for entry in entries):
        if job.unique_key is not None and job.state not in FINAL:
            key = (job.queue, job.tenant, job.unique_key)
            row = tx.db.one("key_holder", *key)
            holder = keys.setdefault(key, job.id if row is None else row[0])
            if holder != job.id:
                return Duplicate("unique_key", job.unique_key, holder)
    return None


def _lost_parent(entries: list[Entry], known: set[str]) -> TenureError | None:
    for entry in entries:
        for parent in entry.waits_for:
            if parent not in known:
                return DependencyNotFound(parent)
    return None


def _insert(tx: Transaction, entries: list[Entry], parents: dict[str, Place]) -> None:
    first = tx.last_seq() + 1
    places = parents | {
        entry.job.id: (seq, code_of_entry(entry)) for seq, entry in enumerate(entries, first)
    }
    jobs: list[tuple[Any, ...]] = []
    changing: list[tuple[Any, ...]] = []
    ready: list[tuple[int, int, int]] = []
    keys: list[tuple[int, str, int]] = []
    tx.books.load_names({_names(entry.job): None for entry in entries})
    for entry in entries:
        job, (seq, code) = entry.job, places[entry.job.id]
        lane = tx.books.lane(*_names(job))
        jobs.append(
            (seq, job.id, lane.id, job.priority, job.created_at, job.max_attempts, job.kind,
             str(job.raw_payload, "utf-8"), job.unique_key, options_of(job))
        )  # fmt: skip
        changing.append(
            (seq, lane.tenant.queue.id, code, at_of(job), job.attempts, job.token, job.worker,
             job.started_at, job.updated_at, job.run_at, job.expires_at, job.progress, job.note,
             errors_text(job.errors), _result(job))
        )  # fmt: skip
        tx.books.move(lane, None, code)
        if code == READY:
            ready.append((lane.id, job.priority, seq))
            lane.joined(job.priority, seq)
        if code <= LEASED and job.unique_key is not None:
            keys.append((lane.tenant.id, job.unique_key, seq))
    tx.db.insert("insert_job", jobs)
    tx.db.insert("import_state", changing)
    tx.db.insert("insert_ready", ready)
    tx.db.many("insert_key", keys)
    tx.tokens_from(max((entry.job.token for entry in entries), default=0))
    _wait(tx, [entry for entry in entries if entry.waits_for], places)


def _wait(tx: Transaction, entries: list[Entry], places: dict[str, Place]) -> None:
    """Note who waits for whom, and tell those whose parent has ended here meanwhile."""
    pairs = [(places[id], places[entry.job.id][0]) for entry in entries for id in entry.waits_for]
    tx.db.many("insert_dep", [(parent[0], child) for parent, child in pairs])
    for (parent, code), child in pairs:
        if code in (DONE, DEAD, CANCELLED):
            (row,) = tx.db.all("rows_by_seq", listed([child]))
            done = code == DONE
            event = states.ParentsDone() if done else states.ParentFailed()
            tx.tell_child(Row(*row), parent, event)
    tx.settle()


def _names(job: Job) -> tuple[str, str, str]:
    return job.queue, job.tenant, job.group


def _result(job: Job) -> str | None:
    return None if job.raw_result == NULL else str(job.raw_result, "utf-8")
