"""Moving a store: jobs as they are, with all that it takes to have them elsewhere."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from tenure import ops, states
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb import upkeep
from tenure.engines.foundationdb.cursor import cursor_of, place_of
from tenure.engines.foundationdb.jobs import jobs_of
from tenure.engines.foundationdb.record import Body, encode, imported_record
from tenure.engines.foundationdb.tx import Held, Tx
from tenure.errors import DependencyNotFound, Duplicate, InvalidInput, TenureError
from tenure.job import FINAL, State
from tenure.ops import Answer, Entry, Found

_Place = tuple[tuple[int, ...], str]


def import_(tx: Tx, op: ops.Import) -> Answer:
    tx.prefetch(entry.job.id for entry in op.entries)
    tx.prefetch(parent for entry in op.entries for parent in entry.waits_for)
    new: dict[str, Entry] = {}
    created: list[bool] = []
    for entry in op.entries:
        created.append(tx.job(entry.job.id) is None and entry.job.id not in new)
        if created[-1]:
            new[entry.job.id] = entry
    problem = _held_key(tx, new) or _lost_parent(tx, new)
    if problem is not None:
        return problem
    for entry in new.values():
        _add(tx, entry)
    for entry in new.values():
        for parent in entry.waits_for:  # which may have ended here meanwhile
            _tell_end(tx, entry.job.id, parent)
    return ops.Enqueued([entry.job.id for entry in op.entries], created, tx.now)


def _held_key(tx: Tx, new: dict[str, Entry]) -> TenureError | None:
    held: dict[bytes, str] = {}
    for job in (entry.job for entry in new.values()):
        if job.unique_key is None or job.state in FINAL:
            continue
        key = tx.keys.pack(k.UNIQUE, job.queue, job.tenant, job.unique_key)
        if key not in held:
            found = tx.tr.get(key).value
            held[key] = job.id if found is None else bytes(found).decode()
        if held[key] != job.id:
            return Duplicate("unique_key", job.unique_key, held[key])
    return None


def _lost_parent(tx: Tx, new: dict[str, Entry]) -> TenureError | None:
    for entry in new.values():
        for parent in entry.waits_for:
            if parent not in new and tx.job(parent) is None:
                return DependencyNotFound(parent)
    return None


def _add(tx: Tx, entry: Entry) -> None:
    job = entry.job
    record = imported_record(job, tx.next_seq(), tx.version, tx.now, ready=entry.ready)
    body = Body(bytes(job.raw_payload), job.after, job.trace)
    tx.insert(job.id, record, body, entry.waits_for)
    if job.errors:
        tx.put_parts(encode(job.errors), k.ERRORS, job.id)
    if record.has_result:
        tx.put_parts(bytes(job.raw_result), k.RESULT, job.id)
    if record.state is State.LEASED:
        tx.take(record)


def _tell_end(tx: Tx, child_id: str, parent_id: str) -> None:
    child, parent = tx.job(child_id), tx.job(parent_id)
    assert child is not None
    assert parent is not None
    if parent.record.state in FINAL:
        done = parent.record.state is State.DONE
        tx.tell_child(child, parent_id, states.ParentsDone() if done else states.ParentFailed())


def export(tx: Tx, query: ops.Export) -> Found:
    start = None if query.cursor is None else place_of(query.cursor, 3)
    if isinstance(start, InvalidInput):
        return start
    places = heapq.merge(*(_listed(tx, queue, start) for queue in upkeep.queues(tx)))
    page = list(islice(places, query.limit))
    found = [held for held in tx.peek(job_id for _, job_id in page) if held is not None]
    waits = [_ask_waits(tx, held) for held in found]
    entries = [
        Entry(job, held.record.ready, tuple(one for one in job.after if one in waits_for))
        for held, job, waits_for in zip(found, jobs_of(tx, found), waits, strict=True)
    ]
    cursor = cursor_of(page[-1][0]) if page else query.cursor
    return ops.Exported(entries, cursor)


def _listed(tx: Tx, queue: str, start: tuple[int, ...] | None) -> Iterator[_Place]:
    begin, end = tx.keys.span(k.LISTED, queue)
    if start is not None:
        begin = tx.keys.pack(k.LISTED, queue, *start) + b"\xff"
    for _, *place, job_id in tx.scan(begin, end):
        yield tuple(place), job_id


def _ask_waits(tx: Tx, held: Held) -> set[str]:
    if held.record.state is not State.WAITING:
        return set()
    return {parent for _, parent in tx.scan(*tx.keys.span(k.WAITS, held.id))}
