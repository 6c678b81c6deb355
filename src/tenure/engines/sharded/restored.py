"""Using a shard again that was restored from a backup which is older than a move of tenants.

The backup has tenants that are on other shards by now, in an earlier state. They must go before
jobs of the shard can be claimed. Tenants that moved to the shard since then are lost.
"""

from __future__ import annotations

from tenure.engines.sharded import catalog, ring
from tenure.engines.sharded.carrying import Carrier, copy_common
from tenure.engines.sharded.catalog import Catalog
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.shard import Shard
from tenure.errors import Conflict, InvalidInput
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Limit, Schedule


def readmit(engine: ShardedEngine, name: str) -> tuple[int, int]:
    """Delete what belongs to other shards, and give the shard the mark of the others. Until then no
    process uses it, so this can be repeated after it was interrupted. Returns how many tenants and
    jobs were deleted."""
    cluster = engine.cluster
    names = [shard.name for shard in cluster.shards]
    if name not in names:
        raise InvalidInput("shard", f"there is no shard {name!r}; the shards are {' '.join(names)}")
    view = cluster.refresh(cluster.view)
    if view.ring.is_moving:
        raise Conflict("tenants are being moved: finish `tenure reshard` first")
    number, placing = names.index(name), view.placing
    store = cluster.shards[number].open()
    old = ring.ring_of(store)
    if old is None or not ring.is_outdated(old, view.ring, name):
        raise Conflict(f"shard {name!r} is not older than the last move of tenants")
    shard = Shard(name, lambda: store)  # the other one is away
    own = Carrier(shard, shard, old.text())

    def is_elsewhere(job: Job) -> bool:
        return placing.of_job(job) not in (None, number)

    def stays(limit: Limit) -> bool:
        return placing.of_scope(limit.queue, limit.tenant, limit.group) == number

    def is_common(limit: Limit) -> bool:
        return placing.of_scope(limit.queue, limit.tenant, limit.group) is None

    listed = Catalog(shard, is_elsewhere)
    listed.update()
    entries = own.entries(listed.every_id())
    own.remove_jobs(entries)
    gone: list[Schedule] = [
        one for one in catalog.schedules(shard) if placing.of_schedule(one.name, one.job) != number
    ]
    own.remove([ops.DropSchedule(one.name) for one in gone])
    other = next(one for one in cluster.shards if one.name in view.ring.names and one.name != name)
    copy_common(other, shard, old.text(), is_common, stays)
    ring.advance(store, old, view.ring)
    return len({entry.job.tenant for entry in entries if entry.job.tenant}), len(entries)
