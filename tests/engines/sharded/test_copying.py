"""A copy into shards, out of shards, and into more shards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure import Conflict, NewJob, Queue
from tenure.engines.sharded.shard import Shard
from tenure.model.queries import Exported, Found, Query
from tenure.queue import store_of
from tenure.queue.store_copy import Copy
from tests.conformance.moves import make_done
from tests.conformance.state import Dump, dump
from tests.engines.sharded.test_reshard import reshard
from tests.support.audit import audit
from tests.unit.test_copying import unpaused
from tests.workers.life import ROOT, until

JOBS = 6_000


def fill(queue: Queue) -> None:
    make_done(queue, "done")
    for n in range(20):
        parent = queue.enqueue("q", id=f"parent-{n}", tenant=f"t{n}", group="g")
        queue.enqueue("web", tenant=f"t{n}", after=[parent], unique_key="k")
        queue.enqueue("q", n, unique_key=f"k{n}")
    queue.limits.set("q", tenant="*", concurrency=2)
    queue.limits.set("q", tenant="t3", concurrency=3, weight=2)
    queue.pause("web", tenant="t4")
    for n in range(3):
        queue.schedules.put(f"nightly {n}", "0 3 * * *", NewJob(queue="q", tenant=f"t{n}"))


def known(queue: Queue) -> Dump:
    """What a copy keeps, whatever the order of shards is."""
    found = unpaused(dump(queue))
    return found._replace(jobs=sorted(found.jobs, key=lambda job: str(job["id"])))


@pytest.mark.parametrize(
    ("source", "target"),
    [("one.db", "jobs-{0..1}.db"), ("jobs-{0..1}.db", "one.db"), ("a-{0..1}.db", "b-{0..3}.db")],
)
def test_everything_arrives(tmp_path: Path, source: str, target: str) -> None:
    with (
        tenure.connect(f"sqlite:///{tmp_path}/{source}") as old,
        tenure.connect(f"sqlite:///{tmp_path}/{target}") as new,
    ):
        fill(old)
        before = known(old)
        Copy(store_of(old).engine, store_of(new).engine, old.clock).run()
        assert known(new) == before
        old.enqueue("q", id="late", tenant="t5")
        Copy(store_of(old).engine, store_of(new).engine, old.clock).run()
        assert new.get("late").tenant == "t5"
    assert [wrong for path in tmp_path.glob("*.db") for wrong in audit(path)] == []


def test_a_limit_of_a_whole_queue_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    with (
        tenure.connect(f"sqlite:///{tmp_path}/one.db") as old,
        tenure.connect(f"sqlite:///{tmp_path}/jobs-{{0..1}}.db") as new,
    ):
        old.enqueue("q")
        old.limits.set("q", concurrency=5)
        with pytest.raises(Conflict, match="limit each tenant"):
            Copy(store_of(old).engine, store_of(new).engine, old.clock).run()
        assert not old.stats().queues["q"].paused
        assert new.stats().queues == {}


def test_a_copy_into_more_shards_that_is_killed_is_continued(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in ("a-{0..1}", "b-{0..2}"))
    command = [sys.executable, "-m", "tenure", "copy", source, target, "--json"]
    with tenure.connect(source) as old, tenure.connect(target) as new:
        for n in range(20):
            old.enqueue_many(NewJob(queue="q", tenant=f"t{n}") for _ in range(JOBS // 20))
        copy = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        until(lambda: new.stats().ready > JOBS // 10)
        copy.send_signal(signal.SIGKILL)
        copy.wait()
        assert new.claim("q", limit=100) == []  # not from an incomplete copy
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        assert new.stats().ready == JOBS
        assert new.tenants("q") == old.tenants("q")
        assert len(new.claim("q", limit=100)) == 100


def test_a_copy_has_the_tenants_that_are_moved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, fewer = f"sqlite:///{tmp_path}/a-{{0..1}}.db", f"sqlite:///{tmp_path}/a-{{0..0}}.db"
    read = Shard.read

    def moved_after(shard: Shard, query: Query) -> Found:
        found = read(shard, query)
        if isinstance(found, Exported) and shard.name == "0" and not found.entries:
            monkeypatch.undo()
            reshard(more, fewer)
        return found

    with (
        tenure.connect(more) as old,
        tenure.connect(f"sqlite:///{tmp_path}/b-{{0..1}}.db") as new,
    ):
        for n in range(20):
            old.enqueue("q", id=f"job-{n}", tenant=f"t{n}")
        monkeypatch.setattr(Shard, "read", moved_after)
        Copy(store_of(old).engine, store_of(new).engine, old.clock).run()
        assert new.stats().unfinished == 20
