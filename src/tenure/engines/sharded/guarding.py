"""Whether an operation may be applied on a shard: what it names must belong there.

A batch is routed by what this process knows. If the shard has another mark by then, the process
reads the new one and asks here whether the operations may stay; the others are routed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.engines.sharded.locating import jobs_on
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.shard import SCOPE, Shard
from tenure.errors import Busy, InvalidInput
from tenure.model import ops
from tenure.model.job import JobSpec
from tenure.model.ops import Op
from tenure.model.records import PutRecords

SCOPED = (ops.SetLimit, ops.ClearLimit, ops.Pause, ops.Resume, ops.Reconcile)
SLOTTED = (ops.TakeSlot, ops.DropSlot, ops.ReconcileSlots)
BY_ID = (ops.LeaseOp, ops.JobsOp, ops.ReplayEdited)


class Misplaced(Busy):
    """A tenant is being moved to another shard, or just was. The operation was not applied."""


def misplaced(op: Op, number: int, placing: Placing) -> Misplaced | None:
    """Why an operation is not applied on this shard."""
    if number not in placing.used:
        return Misplaced("tenants have just been moved between the shards: try again")
    for one in ops.flat([op]):
        tenant = _elsewhere(one, number, placing)
        if tenant is not None:
            return Misplaced(
                f"tenant {tenant!r} is being moved to another shard, or just was: try again"
            )
    return None


def _elsewhere(op: Op, number: int, placing: Placing) -> str | None:
    """A tenant that does not belong on this shard, or is being moved."""
    for tenant, place in _named(op, placing):
        if place is not None and (place != number or placing.is_moving(tenant)):
            return tenant
    return None


def _named(op: Op, placing: Placing) -> Iterable[tuple[str, int | None]]:
    """The tenants that an operation names, and the shards of what it names."""
    yield from _specs(op.adds, placing)
    if isinstance(op, ops.Import):
        for entry in op.entries:
            yield entry.job.tenant, placing.of_job(entry.job)
    elif isinstance(op, SCOPED):
        yield op.tenant or "", placing.of_scope(op.queue, op.tenant, op.group)
    elif isinstance(op, ops.PutSchedule):
        schedule = op.schedule
        yield schedule.job.tenant, placing.of_schedule(schedule.name, schedule.job)
    elif isinstance(op, ops.Claim) and op.tenant is not None:
        yield op.tenant, placing.of_tenant(op.tenant)
    elif isinstance(op, SLOTTED) and op.scope != SCOPE:  # each shard has its own of that one
        yield "", placing.of_slots(op.scope)
    elif isinstance(op, PutRecords):
        for record in op.records:
            if record.space not in ("pause", "ring"):  # each shard has those
                yield "", placing.of_record(record.space, record.key)


def _specs(specs: Sequence[JobSpec], placing: Placing) -> Iterable[tuple[str, int | None]]:
    for spec in specs:
        try:
            yield spec.tenant, placing.of_job(spec)
        except InvalidInput:
            continue  # the router refuses it


def not_for_all(op: Op, routed: Placing, placing: Placing) -> Misplaced | None:
    """For an operation that all shards must get: whether some were added since it was routed."""
    if set(placing.used) <= set(routed.used):
        return None
    for one in ops.flat([op]):
        scoped = isinstance(one, SCOPED) and (
            placing.of_scope(one.queue, one.tenant, one.group) is None
        )
        if scoped or one.for_all == "in_turn":
            return Misplaced("shards have just been added: try again")
    return None


def moved_away(op: Op, shard: Shard) -> Misplaced | None:
    """For an operation that was routed before tenants were moved: whether what it names by id may
    be on another shard by now."""
    ids: list[str] = []
    for one in ops.flat([op]):
        if isinstance(one, ops.Fire | ops.DropSchedule):
            return Misplaced(f"the schedule {one.name!r} may just have been moved: try again")
        if isinstance(one, BY_ID):
            ids += one.ids if isinstance(one, ops.JobsOp) else (one.id,)
        if isinstance(one, ops.Enqueue):
            own = {spec.id for spec in one.jobs}
            ids += [parent for spec in one.jobs for parent in spec.after if parent not in own]
    if not ids:
        return None
    there = {job.id for job in jobs_on(shard, list(dict.fromkeys(ids)), None)}
    lost = next((job_id for job_id in ids if job_id not in there), None)
    return None if lost is None else being_moved(lost)


def being_moved(job_id: str) -> Misplaced:
    return Misplaced(f"job {job_id!r} may just have been moved to another shard: try again")
