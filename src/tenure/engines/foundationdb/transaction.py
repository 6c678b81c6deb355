"""The core's transaction on FoundationDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.core import features
from tenure.core.transaction import Edit, Existing, Owner, Scope, UniqueKey
from tenure.engines.foundationdb import (
    bucket,
    clocks,
    due,
    jobs,
    jumps,
    keyed_calls,
    parking,
    side_records,
)
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.record import (
    Held,
    acked,
    body_of,
    changed,
    encode,
    imported_record,
    new_record,
)
from tenure.engines.foundationdb.store import Store
from tenure.engines.foundationdb.tx import Tx
from tenure.model import states
from tenure.model.job import NULL, Job, JobSpec, State
from tenure.model.ops import Entry, Limit, Schedule
from tenure.model.records import Space
from tenure.settings import Settings

_WRITERS = 16
_decode_schedule = msgspec.json.Decoder(Schedule).decode


class Transaction(Tx):
    """Implements tenure.core.transaction.Transaction, as one try of a transaction. Everything it
    has read is kept up to date, so only slots are forgotten between operations."""

    def __init__(self, store: Store, tr: Any, now: int) -> None:
        super().__init__(store, tr, now)
        self.news: list[tuple[Held, states.Event]] = []
        self.settings: Settings = store.settings
        self.kept: dict[type, Any] = {}
        self._slots: dict[tuple[str, str], dict[str, int]] = {}  # holder: expiry

    @cached_property
    def writer(self) -> str:
        """One of a few names, in turn: transactions with the same one conflict."""
        return f"{(self.store.client + next(self.store.writers)) % _WRITERS:x}"

    def forget(self) -> None:
        self._slots.clear()

    def finish(self) -> None:
        features.end(self)
        jumps.note_found(self)
        super().finish()

    # Jobs ---------------------------------------------------------------------------------------

    def save(self, job: Held, change: states.Change) -> None:
        if change.errors != job.errors:
            self.put_errors(job, change.errors)
        waited = job.state is State.WAITING
        self.put(job, changed(job.record, change, self.now))
        if waited and change.final:
            self.drop_waits(job.id)
        self.tells: bool = True

    def end(self, job: Held, result: msgspec.Raw) -> None:
        """Store that a leased job is done, with its result. Does what `save` and `put_result` do
        for an ack, without reading the failures, and writes the record once."""
        has_result = result != NULL
        if has_result:
            self.put_parts(bytes(result), k.RESULT, job.id)
        self.put(job, acked(job.record, self.now, has_result=has_result))
        self.tells = True

    def edit(self, job: Held, edit: Edit) -> None:
        record = replace(job.record, updated_at=self.now)
        if edit.priority is not None:
            record = replace(record, priority=edit.priority)
        if edit.run_at is not None:
            ready = record.state is State.PENDING and edit.run_at <= self.now
            record = replace(record, run_at=edit.run_at, ready=ready)
        if edit.payload is not None:
            body = replace(self.body(job.id), payload=bytes(edit.payload))
            self.clear_span(k.BODY, job.id)
            self.put_parts(encode(body), k.BODY, job.id)
        self.put(job, record)
        self.tells = True

    def remove(self, job: Held) -> None:
        self.drop_job(job)
        if job.state is State.WAITING:
            self.drop_waits(job.id)

    def put_result(self, job: Held, result: msgspec.Raw) -> None:
        self.put_parts(bytes(result), k.RESULT, job.id)
        self.put(job, replace(job.record, has_result=True))

    def existing(
        self, ids: Sequence[str], keys: Sequence[UniqueKey], parents: Sequence[str]
    ) -> Existing:
        self.load(ids)
        self.load(parents)
        asked = {key: self.tr.get(self.keys.pack(k.UNIQUE, *key)) for key in dict.fromkeys(keys)}
        found = {key: one.value for key, one in asked.items()}
        return Existing(
            {held.id for held in self.jobs(ids)},
            {key: bytes(value).decode() for key, value in found.items() if value is not None},
            {held.id: held.state for held in self.jobs(parents)},
        )

    def owners(self, ids: Sequence[str]) -> dict[str, Owner]:
        return {held.id: (held.record.queue, held.record.tenant) for held in self.jobs(ids)}

    def queue_of(self, job: Held) -> str:
        return job.record.queue

    def insert(self, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None) -> None:
        for spec, mine in zip(specs, waits or [()] * len(specs), strict=True):
            record = new_record(spec, self.next_seq(), self.now, waits=bool(mine))
            self.add_job(spec.id, record, body_of(spec), mine)

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            job, seq = entry.job, self.next_seq()
            record = imported_record(job, seq, self.version, self.now, ready=entry.ready)
            self.add_job(job.id, record, body_of(job), entry.waits_for)
            if job.errors:
                self.put_parts(encode(job.errors), k.ERRORS, job.id)
            if record.has_result:
                self.put_parts(bytes(job.raw_result), k.RESULT, job.id)
            if record.state is State.LEASED:
                self.take(record)

    def key_holder(self, job: Held) -> str | None:
        record = job.record
        key = self.keys.pack(k.UNIQUE, record.queue, record.tenant, record.unique_key)
        holder = self.tr.get(key).value
        return None if holder is None else bytes(holder).decode()

    # Dependencies -------------------------------------------------------------------------------

    def children(self, news: Sequence[tuple[Held, states.Event]]) -> list[tuple[Held, str]]:
        found = self.child_ids([parent.id for parent, _ in news])
        for _, ids in found:
            self.load(ids)
        return [(child, parent_id) for parent_id, ids in found for child in self.jobs(ids)]

    def strike(self, child: Held, parent_id: str) -> None:
        self.drop_wait(child.id, parent_id)

    def waits(self, child: Held) -> bool:
        """If so, adds a conflict range on one parent: if another transaction strikes that parent,
        only one of the two commits."""
        parents = self.parents(child.id)
        if parents:
            last = next(reversed(parents))
            self.tr.add_read_conflict_key(self.keys.pack(k.WAITS, child.id, last))
        return bool(parents)

    def await_jobs(self, job: Held, ids: Sequence[str]) -> None:
        self.add_waits(job.id, ids)

    # Leases -------------------------------------------------------------------------------------

    def hold(self, leases: Sequence[tuple[str, int]]) -> Mapping[str, Held]:
        return {held.id: held for held in self.jobs([job_id for job_id, _ in leases])}

    def extend(self, lease_ms: Mapping[str, int]) -> None:
        for job_id, ms in lease_ms.items():
            end = self.now + ms
            self._keep(job_id, lease_until=end, lease_ms=ms, lease_version=self.version)

    def report(self, progress: Mapping[str, tuple[int | None, str | None]]) -> None:
        for job_id, (percent, note) in progress.items():
            self._keep(job_id, progress=percent, note=note)

    def _keep(self, job_id: str, **fields: Any) -> None:
        held = self.job(job_id)
        assert held is not None
        self.put(held, replace(held.record, updated_at=self.now, **fields))

    # Limits -------------------------------------------------------------------------------------

    def lock_queue(self, queue: str, *, create: bool) -> bool:
        """Nothing is locked: claims under limits conflict with changes of the limits."""
        if create:
            self.mark(self.keys.pack(k.QUEUE, queue))
        return create or self.knows(queue)

    def limit(self, scope: Scope) -> Limit:
        queue, tenant, group = scope
        return self.rules(queue).of(tenant, group)

    def put_limit(self, old: Limit, new: Limit) -> None:
        key = self.keys.pack(k.LIMIT, new.queue, new.tenant, new.group)
        if new.is_default:
            self.clear(key)
        else:
            self.set(key, msgspec.json.encode(new))
        parking.put_back(self, new.queue, new.tenant)
        self.tells = True
        if new.concurrency != old.concurrency:
            self.recount_leases(new.queue)

    def fill_bucket(self, queue: str, tokens: int) -> None:
        bucket.fill(self, queue, tokens)

    # Slots --------------------------------------------------------------------------------------

    def count_slots(self, scope: str, key: str) -> int:
        slots = self._slots_of(scope, key)
        for holder in [one for one, expires_at in slots.items() if expires_at <= self.now]:
            self.drop_slot(scope, key, holder)
        return len(slots)

    def has_slot(self, scope: str, key: str, holder: str) -> bool:
        return holder in self._slots_of(scope, key)

    def put_slot(self, scope: str, key: str, holder: str, expires_at: int) -> None:
        self.drop_slot(scope, key, holder)
        self._slots_of(scope, key)[holder] = expires_at
        self.set(self.keys.pack(k.SLOT, scope, key, holder), str(expires_at).encode())
        self.set(self.keys.pack(k.SLOT_END, expires_at, scope, key, holder))

    def drop_slot(self, scope: str, key: str, holder: str) -> bool:
        expires_at = self._slots_of(scope, key).pop(holder, None)
        if expires_at is None:
            return False
        self.clear(self.keys.pack(k.SLOT, scope, key, holder))
        self.clear(self.keys.pack(k.SLOT_END, expires_at, scope, key, holder))
        return True

    def _slots_of(self, scope: str, key: str) -> dict[str, int]:
        """The holders of slots, read once for adjacent operations."""
        if (scope, key) not in self._slots:
            self._slots[scope, key] = read_slots(self, scope, key, self.tr)
        return self._slots[scope, key]

    # Schedules and idempotency keys -------------------------------------------------------------

    def by_store_time(self) -> AbstractContextManager[None]:
        return clocks.by_the_store(self)

    def schedule(self, name: str) -> Schedule | None:
        rows = list(self.tr.get_range(*self.keys.span(k.SCHEDULE, name)))
        return schedule_of(bytes(row.value) for row in rows) if rows else None

    def put_schedule(self, schedule: Schedule) -> None:
        self.tells = True
        self.clear_span(k.SCHEDULE, schedule.name)
        self.put_parts(msgspec.json.encode(schedule), k.SCHEDULE, schedule.name)

    def drop_schedule(self, name: str) -> bool:
        known = self.schedule(name) is not None
        if known:
            self.clear_span(k.SCHEDULE, name)
        return known

    def answers_of(self, key: str) -> bytes | None:
        return keyed_calls.answers_of(self, key)

    def put_answers(self, key: str, answers: bytes) -> None:
        keyed_calls.put_answers(self, key, answers)

    def read_jobs(self, ids: Sequence[str]) -> Mapping[str, Job]:
        return jobs.read_jobs(self, ids)

    # Records ------------------------------------------------------------------------------------

    def record(self, space: Space, key: str) -> bytes | None:
        return side_records.get(self, space, key)

    def put_record(self, space: Space, key: str, value: bytes, expires_at: int | None) -> None:
        side_records.put(self, space, key, value, expires_at)

    def drop_record(self, space: Space, key: str) -> None:
        side_records.drop(self, space, key)

    def free_record(self, space: Space, first: str, last: str) -> tuple[str, bytes] | None:
        value = side_records.get(self, space, first + self.writer)
        return None if value is None else (first + self.writer, value)

    def count_records(self, space: Space, first: str, last: str, most: int) -> int:
        return side_records.count(self, space, first, last, most)

    def records(self, space: Space, keys: Sequence[str]) -> dict[str, bytes]:
        return side_records.get_several(self, space, keys)

    def list_records(self, space: Space, first: str, last: str) -> list[tuple[str, bytes]]:
        return side_records.between(self, space, first, last)

    def put_records(self, space: Space, values: Mapping[str, bytes]) -> None:
        for key, value in values.items():
            side_records.put_forever(self, space, key, value)

    def drop_records(self, space: Space, first: str, last: str) -> None:
        side_records.drop_between(self, space, first, last)

    def note_steps(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            held = self.job(job_id)
            assert held is not None
            self.put(held, replace(held.record, has_steps=True))

    # Time ---------------------------------------------------------------------------------------

    def overdue(self, queue: str, limit: int) -> list[Held]:
        return due.overdue(self, queue, limit)

    def promote(self, queue: str, limit: int) -> int:
        delayed = [
            job
            for job in self._due(k.DELAYED, queue, limit)
            if job.state is State.PENDING and not job.record.ready
        ]
        for job in delayed:
            self.put(job, replace(job.record, ready=True))
        self.tells = self.tells or bool(delayed)
        return len(delayed)

    def expired(self, queue: str, limit: int) -> list[Held]:
        return self._due(k.EXPIRING, queue, limit)

    def _due(self, kind: int, queue: str, limit: int) -> list[Held]:
        return self.jobs([job_id for _, job_id in due.due(self, kind, queue, self.now, limit)])


def read_slots(tx: Tx, scope: str, key: str, reader: Any) -> dict[str, int]:
    """The holders of slots and their expiry, including expired ones."""
    rows = reader.get_range(*tx.keys.span(k.SLOT, scope, key))
    return {tx.keys.unpack(bytes(row.key))[-1]: int(bytes(row.value)) for row in rows}


def schedule_of(parts: Iterable[bytes]) -> Schedule:
    """Decode a stored schedule."""
    return _decode_schedule(b"".join(parts))
