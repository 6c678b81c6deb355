"""Import: add jobs from another store unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.core.moves import PARENTS_DONE, move, news_of, settle, tell
from tenure.core.transaction import Existing, J, Transaction
from tenure.errors import DependencyNotFound, Duplicate, TenureError
from tenure.model import ops
from tenure.model.job import FINAL, State
from tenure.model.ops import Answer, Entry


def import_(tx: Transaction[J], batch: Sequence[ops.Import]) -> list[Answer]:
    return [_import(tx, op) for op in batch]


# path: an import
def _import(tx: Transaction[J], op: ops.Import) -> Answer:
    ids = [entry.job.id for entry in op.entries]
    existing = _existing(tx, op.entries)
    new: dict[str, Entry] = {}
    created: list[bool] = []
    for entry in op.entries:
        created.append(entry.job.id not in existing.ids and entry.job.id not in new)
        if created[-1]:
            new[entry.job.id] = entry
    problem = _held_key(new, existing) or _lost_parent(new, existing)
    if problem is not None:
        return problem
    if new:
        tx.insert_entries(list(new.values()))
        beside = {key: text for entry in new.values() for key, text in entry.beside.items()}
        if beside:
            tx.put_records("step", {key: text.encode() for key, text in beside.items()})
        _tell_of_ended(tx, new, existing)
    return ops.Enqueued(ids, created, tx.now)


def _existing(tx: Transaction[J], entries: Sequence[Entry]) -> Existing:
    keys = [
        (entry.job.queue, entry.job.tenant, entry.job.unique_key)
        for entry in entries
        if entry.job.unique_key is not None and entry.job.state not in FINAL
    ]
    parents = dict.fromkeys(parent for entry in entries for parent in entry.waits_for)
    return tx.existing([entry.job.id for entry in entries], keys, list(parents))


def _held_key(new: Mapping[str, Entry], existing: Existing) -> TenureError | None:
    holders = dict(existing.holders)
    for job in (entry.job for entry in new.values()):
        if job.unique_key is not None and job.state not in FINAL:
            holder = holders.setdefault((job.queue, job.tenant, job.unique_key), job.id)
            if holder != job.id:
                return Duplicate("unique_key", job.unique_key, holder)
    return None


def _lost_parent(new: Mapping[str, Entry], existing: Existing) -> TenureError | None:
    for entry in new.values():
        for parent in entry.waits_for:
            if parent not in new and parent not in existing.parents:
                return DependencyNotFound(parent)
    return None


def _tell_of_ended(tx: Transaction[J], new: Mapping[str, Entry], existing: Existing) -> None:
    """Notify jobs whose parent has ended, here or in this import."""
    states = {**existing.parents, **{id: entry.job.state for id, entry in new.items()}}
    ended = [
        (entry.job.id, parent)
        for entry in new.values()
        for parent in entry.waits_for
        if states[parent] in FINAL
    ]
    # The last parent of these was done and removed, but they had not been told yet.
    free = [id for id, one in new.items() if one.job.state is State.WAITING and not one.waits_for]
    tx.load([*(child for child, _ in ended), *free])
    for child_id, parent in ended:
        child = tx.job(child_id)
        assert child is not None
        tell(tx, child, parent, news_of(states[parent]))
    for child_id in free:
        child = tx.job(child_id)
        assert child is not None
        move(tx, child, PARENTS_DONE)
    settle(tx)
