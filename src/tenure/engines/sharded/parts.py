"""Which one shard a batch concerns, as far as that is known without asking any of them."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.guarding import SLOTTED
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.routing import chosen_ids
from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.job import JobSpec
from tenure.model.ops import Op


def part_of(cluster: Cluster, batch: Sequence[Op]) -> int | None:
    """The shard; None if there are several, or if it is not known. It decides only what waits
    together: operations that go elsewhere after all, because tenants are moved, are applied."""
    placing = cluster.placing
    found: int | None = None
    for op in ops.flat(batch):
        part = _part(cluster, placing, op)
        if part is None or (found is not None and part != found):
            return None
        found = part
    return found


def _part(cluster: Cluster, placing: Placing, op: Op) -> int | None:
    # Two shards must not add one id at the same time: calls that choose theirs wait for each other.
    if any(chosen_ids(op)):
        return None
    if isinstance(op, ops.Enqueue):
        return _part_of_jobs(placing, op.jobs)
    if isinstance(op, ops.LeaseOp):
        return cluster.locator.hints.get(op.id)
    if isinstance(op, ops.JobsOp):
        places = {cluster.locator.hints.get(job_id) for job_id in op.ids}
        return places.pop() if len(places) == 1 else None
    return placing.of_slots(op.scope) if isinstance(op, SLOTTED) else None


def _part_of_jobs(placing: Placing, jobs: Sequence[JobSpec]) -> int | None:
    tenants = {job.tenant for job in jobs}
    if len(tenants) == 1 and (tenant := tenants.pop()):
        return placing.of_tenant(tenant)
    try:
        places = {placing.of_job(job) for job in jobs}
    except InvalidInput:  # it is rejected when it is routed
        return None
    return places.pop() if len(places) == 1 else None
