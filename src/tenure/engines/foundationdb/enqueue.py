"""Enqueue: all of a call, or none."""

from __future__ import annotations

from tenure import ops, states
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.record import Body, new_record
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.job import JobSpec, State, check_cycles
from tenure.ops import Answer

_Unique = tuple[str, str, str]


class Plan:
    """An Enqueue that was found possible."""

    def __init__(self) -> None:
        self.accepted: dict[str, JobSpec] = {}
        self.ids: list[str] = []
        self.created: list[bool] = []


def enqueue(tx: Tx, op: ops.Enqueue) -> Answer:
    planned = plan(tx, op)
    return planned if isinstance(planned, TenureError) else carry_out(tx, planned)


def plan(tx: Tx, op: ops.Enqueue, leaving: str = "") -> Plan | TenureError:
    """What an Enqueue would add. The job `leaving` is about to end: its key is free."""
    result = Plan()
    holders = _holders(tx, op)
    for spec in op.jobs:
        held = _held(tx, spec, result.accepted, holders, leaving)
        if held is not None and op.if_exists == "error":
            return held
        result.ids.append(spec.id if held is None else held.job_id)
        result.created.append(held is None)
        if held is None:
            result.accepted[spec.id] = spec
            if spec.unique_key is not None:
                holders[spec.queue, spec.tenant, spec.unique_key] = spec.id
    return _bad_parents(tx, result.accepted) or result


def _holders(tx: Tx, op: ops.Enqueue) -> dict[_Unique, str]:
    """Who holds the unique keys that are asked for."""
    asked = {}
    for spec in op.jobs:
        if not spec.made_up_id:
            tx.prefetch([spec.id])
        if spec.after:
            tx.prefetch(spec.after)
        if spec.unique_key is not None:
            key = (spec.queue, spec.tenant, spec.unique_key)
            if key not in asked:
                asked[key] = tx.tr.get(tx.keys.pack(k.UNIQUE, *key))
    found = {key: future.value for key, future in asked.items()}
    return {key: bytes(value).decode() for key, value in found.items() if value is not None}


def _held(
    tx: Tx,
    spec: JobSpec,
    accepted: dict[str, JobSpec],
    holders: dict[_Unique, str],
    leaving: str,
) -> Duplicate | None:
    if spec.id in accepted or (not spec.made_up_id and tx.job(spec.id) is not None):
        return Duplicate("id", spec.id, spec.id)
    if spec.unique_key is not None:
        holder = holders.get((spec.queue, spec.tenant, spec.unique_key))
        if holder is not None and holder != leaving:
            return Duplicate("unique_key", spec.unique_key, holder)
    return None


def _bad_parents(tx: Tx, accepted: dict[str, JobSpec]) -> TenureError | None:
    for spec in accepted.values():
        for parent in spec.after:
            if parent not in accepted and tx.job(parent) is None:
                return DependencyNotFound(parent)
    try:
        check_cycles(list(accepted.values()))
    except DependencyCycle as cycle:
        return cycle
    return None


def carry_out(tx: Tx, planned: Plan) -> Answer:
    """Add the jobs."""
    inserted: set[str] = set()
    for spec in planned.accepted.values():
        waits_for = {one for one in spec.after if not _is_done(tx, one, planned, inserted)}
        record = new_record(spec, tx.next_seq(), tx.now, waits=bool(waits_for))
        tx.insert(spec.id, record, Body(bytes(spec.payload), spec.after, spec.trace), waits_for)
        inserted.add(spec.id)
    for spec in planned.accepted.values():
        for parent in spec.after:
            held, child = tx.job(parent), tx.job(spec.id)
            assert held is not None
            assert child is not None
            if held.record.state in (State.DEAD, State.CANCELLED):
                tx.tell_child(child, parent, states.ParentFailed())
    return ops.Enqueued(planned.ids, planned.created, tx.now)


def _is_done(tx: Tx, parent: str, planned: Plan, inserted: set[str]) -> bool:
    if parent in planned.accepted and parent not in inserted:
        return False
    held = tx.job(parent)
    return held is not None and held.record.state is State.DONE
