"""A move of tenants meets a call, a new tenant or another move at its worst moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import tenure
from tenure import Busy, Conflict, Job, NewJob, Queue
from tenure.engines.sharded.carrying import Carrier
from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.placing import position
from tenure.engines.sharded.reshard import Reshard
from tenure.engines.sharded.ring import Ring
from tenure.model.ops import Entry
from tenure.queue import store_of
from tests.engines.sharded.test_reshard import check, reshard, resharding, url_of
from tests.support.sizes import let

TENANTS = [f"t{n}" for n in range(12)]


def cluster_of(queue: Queue) -> Cluster:
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    return engine.cluster


def meanwhile(queue: Queue, happens: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """It happens between the moment when the next call knows its shards and when it is sent."""
    cluster = cluster_of(queue)
    send = cluster.send

    def sent(*given: object) -> object:
        patch.setattr(cluster, "send", send)
        happens()
        return send(*given)  # type: ignore[arg-type]

    patch.setattr(cluster, "send", sent)


CALLS: dict[str, Callable[[Queue, list[str]], object]] = {
    "cancel": lambda queue, ids: queue.cancel(ids),
    "delete": lambda queue, ids: queue.delete(ids),
    "wait for": lambda queue, ids: len(
        [queue.enqueue("q", tenant=t, after=[i]) for t, i in zip(TENANTS, ids, strict=True)]
    ),
    "schedules": lambda queue, ids: len([queue.schedules.drop(f"of {t}") for t in TENANTS]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_was_on_its_way_when_tenants_moved_reaches_all_of_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 2)
    tenure.connect(before).close()
    with tenure.connect(after) as queue:
        ids = [queue.enqueue("q", tenant=tenant).id for tenant in TENANTS]
        for tenant in TENANTS:
            queue.schedules.put(f"of {tenant}", "0 3 * * *", NewJob(queue="q", tenant=tenant))
        meanwhile(queue, lambda: reshard(before, after), monkeypatch)
        assert CALLS[call](queue, ids) == len(TENANTS)
        assert len(cluster_of(queue).view.ring.names) == 3
    check(tmp_path)


def test_a_tenant_that_appears_after_a_step_was_planned_is_frozen_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an ack would be stored on the old shard after the job has been copied."""
    let(monkeypatch, tenants_moved_in_a_step=1)
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 4)
    tenure.connect(before).close()
    with tenure.connect(after) as queue, resharding(before, after) as work:
        old = cluster_of(queue).placing
        moves = {
            tenant: (old.of_tenant(tenant), work._new.of_tenant(tenant))
            for tenant in sorted((f"t{n}" for n in range(200)), key=position)
        }
        # The first appears late, between shards that have no part in the step of the other.
        late, known = next(
            (one, other)
            for one in moves
            for other in moves
            if position(one) < position(other) and len({*moves[one], *moves[other]}) == 4
        )
        last = next(one for one, (source, target) in reversed(moves.items()) if source != target)
        for tenant in (known, last):  # two steps: the last one freezes everything
            queue.enqueue("q", tenant=tenant)
        acked: list[str] = []
        leased: list[Job] = []
        mark, copy = Reshard._mark, Carrier.copy_jobs

        def marked(self: Reshard, new: Ring) -> None:
            if new.upto and not leased:
                queue.enqueue("q", tenant=late)
                leased.extend(queue.claim("q", tenant=late, lease=600))
            mark(self, new)

        def copied(self: Carrier, entries: Sequence[Entry]) -> None:
            copy(self, entries)
            if late not in [entry.job.tenant for entry in entries]:
                return
            cluster_of(queue).refresh(cluster_of(queue).view)
            with monkeypatch.context() as patch:
                patch.setattr("tenure.engines.sharded.cluster.PATIENCE", 0.0)
                let(patch, seconds_for_the_ring_to_settle=0.0)
                try:
                    queue.ack(leased[0])
                    acked.append("at once")
                except Busy:
                    acked.append("later")

        monkeypatch.setattr(Reshard, "_mark", marked)
        monkeypatch.setattr(Carrier, "copy_jobs", copied)
        assert work.run()
        assert acked
        if acked == ["later"]:
            queue.ack(leased[0])
        assert queue.get(leased[0].id).state == "done"
        assert queue.stats().ready == 2
    check(tmp_path)


class Died(BaseException):
    """The process was killed."""


def test_a_move_that_was_taken_over_by_another_run_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had stopped for a while between two of its writes."""
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        for tenant in TENANTS:
            queue.enqueue("q", tenant=tenant)
    copy = Carrier.copy_jobs

    def die(*given: object, **named: object) -> None:
        raise Died

    def taken_over(self: Carrier, entries: Sequence[Entry]) -> None:
        monkeypatch.setattr(Carrier, "copy_jobs", copy)
        with resharding(before, after) as other, monkeypatch.context() as patch:
            patch.setattr(Reshard, "_finish_step", die)
            with pytest.raises(Died):
                other.run()
            assert other.resumed
        copy(self, entries)

    monkeypatch.setattr(Carrier, "copy_jobs", taken_over)
    with resharding(before, after) as work, pytest.raises(Conflict, match="another `tenure"):
        work.run()
    assert reshard(before, after).resumed
    with tenure.connect(after) as queue:
        assert queue.stats().ready == len(TENANTS)
    check(tmp_path)
