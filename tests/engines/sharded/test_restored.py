"""A shard that was restored from a backup made before tenants moved has them once more."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tenure
from tenure import Conflict, InvalidInput, NewJob, Queue, StoreError
from tenure.clock import SystemClock
from tenure.engines import open_shard
from tenure.engines.sharded import cluster, ring
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.restored import readmit
from tenure.queue import store_of
from tenure.settings import Settings
from tests.engines.sharded.conftest import shards_of
from tests.engines.sharded.test_reshard import check, reshard, url_of

TENANTS = [f"t{n}" for n in range(30)]
T = TypeVar("T")
OLDER = "older than the last move of tenants"


def backup(folder: Path, name: str = "jobs-0.db") -> Path:
    copy = folder / "copy.db"
    with closing(sqlite3.connect(folder / name)) as one, closing(sqlite3.connect(copy)) as other:
        one.backup(other)
    return copy


def restore(folder: Path, copy: Path, name: str = "jobs-0.db") -> None:
    with closing(sqlite3.connect(copy)) as one, closing(sqlite3.connect(folder / name)) as other:
        one.backup(other)


def fill(queue: Queue) -> None:
    for tenant in TENANTS:
        queue.limits.set("mail", tenant=tenant, concurrency=5)
        queue.enqueue_many(
            NewJob(queue="mail", id=f"{tenant}/{n}", tenant=tenant) for n in range(3)
        )


@pytest.fixture
def old(tmp_path: Path) -> str:
    return url_of(tmp_path, 1)


@pytest.fixture
def new(tmp_path: Path, old: str) -> str:
    """Three shards, of which the first was restored from a backup of the time of two."""
    with tenure.connect(old) as queue:
        fill(queue)
        queue.pause("mail", tenant=TENANTS[0])
        for n in range(20):
            queue.enqueue("loose", id=f"loose/{n}")
            queue.enqueue("grouped", id=f"grouped/{n}", group=f"g{n}")
        copy = backup(tmp_path)
    new = url_of(tmp_path, 2)
    reshard(old, new)
    with tenure.connect(new) as queue:
        queue.limits.set("mail", tenant="*", concurrency=7)
        for job in queue.claim("mail", limit=5):
            queue.ack(job)
    restore(tmp_path, copy)
    return new


def readmitted(url: str, name: str = "0") -> tuple[int, int]:
    engine = ShardedEngine.open(Settings(url=url), SystemClock(), open_shard)
    with closing(engine):
        return readmit(engine, name)


def away(queue: Queue) -> dict[str, str]:
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    return engine.away()


def of(queue: Queue, name: str) -> list[str]:
    """The tenants of a shard."""
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    names = [shard.name for shard in shards_of(queue)]
    return [one for one in TENANTS if engine.placing.of_tenant(one) == names.index(name)]


def test_a_process_does_not_use_a_shard_that_was_restored_from_an_old_backup(new: str) -> None:
    with tenure.connect(new) as queue:
        assert OLDER in away(queue)["0"]
        with pytest.raises(StoreError, match=OLDER):
            queue.enqueue("mail", tenant=of(queue, "0")[0])
        queue.enqueue("mail", tenant=of(queue, "1")[0])
        claimed = queue.claim("mail", limit=1000)
        assert {job.tenant for job in claimed}.isdisjoint(of(queue, "0"))
        assert len({job.id for job in claimed}) == len(claimed)


def test_a_shard_that_is_restored_under_a_running_process_is_not_used_either(
    tmp_path: Path, old: str
) -> None:
    with tenure.connect(old) as queue:
        fill(queue)
        copy = backup(tmp_path)
    new = url_of(tmp_path, 2)
    reshard(old, new)
    with tenure.connect(new) as queue:
        assert away(queue) == {}
        restore(tmp_path, copy)
        claimed = queue.claim("mail", limit=1000)
        assert OLDER in away(queue)["0"]
        assert len({job.id for job in claimed}) == len(claimed)
        (shard, *_) = shards_of(queue)
        assert not shard.is_back()
        assert OLDER in away(queue)["0"]
        readmitted(new)
        assert shard.is_back()
        assert away(queue) == {}
        more = queue.claim("mail", limit=1000)
        assert {job.id for job in more}.isdisjoint(job.id for job in claimed)
        assert len(more) + len(claimed) == 3 * len(TENANTS)
    check(tmp_path)


def test_a_restored_shard_is_used_again_without_what_has_moved_away(
    tmp_path: Path, new: str
) -> None:
    tenants, jobs = readmitted(new)
    with tenure.connect(new) as queue:
        assert away(queue) == {}
        assert tenants > 0
        assert jobs >= 3 * tenants
        ids = [job.id for job in queue.jobs(limit=1000).jobs]
        assert len(set(ids)) == len(ids)
        for name in ("loose", "grouped"):
            assert {job.id for job in queue.jobs(queue=name, limit=100).jobs} == {
                f"{name}/{n}" for n in range(20)
            }
        everywhere = [one for one in queue.limits.list("mail") if one.tenant == "*"]
        assert [one.concurrency for one in everywhere] == [7]
        own = {one.tenant: one.concurrency for one in queue.limits.list("mail")}
        assert all(own[tenant] == 5 for tenant in TENANTS)
    check(tmp_path)
    with pytest.raises(Conflict, match="is not older"):
        readmitted(new)


def test_a_backup_from_after_the_move_is_used_at_once(tmp_path: Path, old: str) -> None:
    with tenure.connect(old) as queue:
        fill(queue)
    new = url_of(tmp_path, 2)
    reshard(old, new)
    copy = backup(tmp_path)
    with tenure.connect(new) as queue:
        restore(tmp_path, copy)
        assert len(queue.claim("mail", limit=1000)) == 3 * len(TENANTS)
        assert away(queue) == {}


def test_an_unknown_shard_cannot_be_readmitted(new: str) -> None:
    with pytest.raises(InvalidInput, match="there is no shard 'x'; the shards are 0 1 2"):
        readmitted(new, "x")


def test_schedules_that_have_moved_away_are_dropped(tmp_path: Path, old: str) -> None:
    with tenure.connect(old) as queue:
        for tenant in TENANTS:
            queue.schedules.put(
                f"nightly of {tenant}", "0 3 * * *", NewJob(queue="mail", tenant=tenant)
            )
        copy = backup(tmp_path)
    new = url_of(tmp_path, 2)
    reshard(old, new)
    restore(tmp_path, copy)
    readmitted(new)
    with tenure.connect(new) as queue:
        assert sorted(one.name for one in queue.schedules.list()) == sorted(
            f"nightly of {tenant}" for tenant in TENANTS
        )


def test_a_shard_that_was_not_used_for_a_while_is_not_taken_for_a_restored_one(
    tmp_path: Path, old: str
) -> None:
    three = url_of(tmp_path, 2)
    with tenure.connect(old) as queue:
        fill(queue)
    for _ in range(2):
        reshard(old, three)
        reshard(three, old)
    reshard(old, three)
    with tenure.connect(three) as queue:
        assert away(queue) == {}
        assert len(queue.claim("mail", limit=1000)) == 3 * len(TENANTS)


def moves_twice_after_reading(
    shard: str, read: Callable[[Any], T], name_of: Callable[[Any], str], stores: Callable[[], Any]
) -> Callable[[Any], T]:
    """A function that reads a mark. All shards get two more marks right after it has read that of
    this shard for the first time, and before it reads the others."""
    moved, turn = threading.Event(), threading.Lock()

    def reads(store: Any) -> T:
        if name_of(store) != shard:
            assert moved.wait(20)
        with turn:
            found = read(store)
            if not moved.is_set():
                for _ in range(2):
                    for one in stores():
                        mark = ring.ring_of(one)
                        assert mark is not None
                        ring.advance(one, mark, mark.next())
                moved.set()
        return found

    return reads


def test_a_mark_that_was_read_before_the_others_does_not_make_its_shard_old(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.connect(old) as queue:
        engine = store_of(queue).engine
        assert isinstance(engine, ShardedEngine)
        shards = engine.cluster.shards
        reads = moves_twice_after_reading("0", ring.ring_of, attrgetter("name"), lambda: shards)
        monkeypatch.setattr(cluster, "ring_of", reads)
        assert engine.cluster.refresh(engine.cluster.view).ring.epoch == 2
        assert away(queue) == {}


def test_nor_does_one_that_was_read_when_the_shards_were_opened(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.connect(old) as other, monkeypatch.context() as patched:
        reads = moves_twice_after_reading(
            "jobs-0.db", ring.read, lambda store: store.path.name, lambda: shards_of(other)
        )
        patched.setattr(ring, "read", reads)
        with tenure.connect(old) as queue:
            assert away(queue) == {}
            queue.enqueue("mail", tenant=of(queue, "0")[0])
