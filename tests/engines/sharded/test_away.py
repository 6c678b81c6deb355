"""A shard that is away stops only its own tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tenure
from tenure import NewJob, Queue, StoreError
from tenure.errors import StoreRejected, TenureError
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer
from tenure.model.queries import Query
from tenure.model.record_queries import ListRecords
from tenure.queue import store_of
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.support.sizes import let


@contextmanager
def away(queue: Queue, number: int = 1) -> Iterator[None]:
    """One of the shards fails, and is back afterwards."""
    one = shards_of(queue)[number]
    store = one.store
    assert store is not None
    works, reads = store.apply, store.read

    def fails(*given: object) -> list[Answer]:
        raise StoreError("no route to the disk")

    store.apply = store.read = fails  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        store.apply, store.read = works, reads  # type: ignore[method-assign]
        assert one.is_back()


@pytest.fixture(autouse=True)
def _try_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)


def test_only_the_tenants_of_a_shard_meet_its_error(queue: Queue, tenants: Tenants) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)
    with away(queue):
        with pytest.raises(StoreError, match="shard '1'"):
            queue.enqueue("q", tenant=tenants.there)
        queue.enqueue("q", tenant=tenants.here)
        jobs = queue.claim("q", limit=10)
        assert {job.tenant for job in jobs} == set(tenants[:2])
        assert queue.ack_many(jobs) == [None] * 3
        assert queue.oldest_ready("q") is None
    assert len(queue.claim("q", limit=10)) == 2


def test_operations_of_one_batch_fail_only_on_their_own_shard(
    queue: Queue, tenants: Tenants
) -> None:
    with away(queue):
        specs = [store_of(queue).prepare([NewJob(queue="q", tenant=tenant)]) for tenant in tenants]
        answers = store_of(queue).committer.run([ops.Enqueue(tuple(one)) for one in specs])
    kinds = [type(one) for one in answers]
    assert kinds == [ops.Enqueued, ops.Enqueued, StoreError, StoreError]
    assert queue.stats().ready == 2


def test_stats_count_the_others_and_say_who_is_away(queue: Queue, tenants: Tenants) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)
    with away(queue):
        stats = queue.stats()
        stats = queue.stats()
        assert (stats.ready, stats.away) == (2, ("1",))
    assert (queue.stats().ready, queue.stats().away) == (4, ())


def test_a_list_that_would_lack_jobs_fails(queue: Queue, tenants: Tenants) -> None:
    for tenant in tenants:
        queue.enqueue("q", id=tenant, tenant=tenant)
    with away(queue):
        with pytest.raises(StoreError, match="shard '1'"):
            queue.jobs()
        assert len(queue.jobs(tenant=tenants.here).jobs) == 1
        assert queue.get(tenants.here).tenant == tenants.here
        with pytest.raises(StoreError, match="shard '1'"):
            queue.get(tenants.there)  # it may exist


LISTS: dict[str, Query] = {
    "tenants": queries.ListTenants("q"),
    "limits": queries.ListLimits(),
    "schedules": queries.ListSchedules(),
    "jobs by id": queries.GetJobs(("a", "b")),
    "jobs by prefix": queries.FindByPrefix("a"),
    "records": ListRecords("audit", "", "z", 10),
}


@pytest.mark.parametrize("query", LISTS)
def test_every_list_that_would_lack_something_fails(queue: Queue, query: str) -> None:
    queue.enqueue_many(NewJob(queue="q") for _ in range(20))
    assert not isinstance(store_of(queue).engine.read(LISTS[query]), TenureError)
    with away(queue):
        assert isinstance(store_of(queue).engine.read(LISTS[query]), StoreError)


def test_counts_fail_only_if_no_shard_is_there(queue: Queue) -> None:
    queue.enqueue("q")
    with away(queue, 0):
        assert queue.next_due("q") is None
        with away(queue, 1), pytest.raises(StoreError, match="no route to the disk"):
            queue.next_due("q")


def test_a_schedule_is_changed_if_the_shard_that_has_it_is_there(
    queue: Queue, tenants: Tenants
) -> None:
    job = NewJob(queue="q", tenant=tenants.here)
    for name in ("kept", "dropped"):
        queue.schedules.put(name, "0 3 * * *", job)
    with away(queue):
        queue.schedules.put("kept", "0 4 * * *", job)
        queue.schedules.drop("dropped")
        with pytest.raises(StoreError, match="shard '1'"):
            queue.schedules.put("new", "0 3 * * *", job)  # the other shard may have one
        with pytest.raises(StoreError, match="shard '1'"):
            queue.schedules.drop("unknown")
    assert [(one.name, one.cron) for one in queue.schedules.list()] == [("kept", "0 4 * * *")]


def test_a_pause_that_did_not_reach_all_shards_says_so(queue: Queue, tenants: Tenants) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)
    with away(queue), pytest.raises(StoreError, match="repeat it when this one is back"):
        queue.pause("q")
    assert not queue.stats().queues["q"].paused
    queue.pause("q")
    assert queue.stats().queues["q"].paused
    assert queue.claim("q", limit=10) == []


def test_after_the_first_error_nobody_waits_for_the_shard(queue: Queue, tenants: Tenants) -> None:
    calls = []
    with away(queue):
        store = shards_of(queue)[1].store
        assert store is not None
        fails = store.apply

        def counted(*given: object) -> list[Answer]:
            calls.append(given)
            return fails(*given)  # type: ignore[arg-type]

        store.apply = counted  # type: ignore[method-assign, assignment]
        for _ in range(5):
            with pytest.raises(StoreError):
                queue.enqueue("q", tenant=tenants.there)
    assert len(calls) == 1


def test_a_shard_that_cannot_be_opened_is_opened_when_it_can(
    tmp_path: Path, tenants: Tenants
) -> None:
    folder = tmp_path / "disk-1"
    folder.mkdir()
    for name in ("disk-0", "disk-2"):
        (tmp_path / name).mkdir()
    url = f"sqlite:///{tmp_path}/disk-{{0..1}}/jobs.db"
    tenure.connect(url).close()
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("in the way")
    with tenure.connect(url) as queue:
        assert queue.stats().away == ("1",)
        queue.enqueue("q", tenant=tenants.here)
        with pytest.raises(StoreError):
            queue.enqueue("q", tenant=tenants.there)
        folder.unlink()
        (tmp_path / "elsewhere").rename(folder)
        assert shards_of(queue)[1].is_back()
        queue.enqueue("q", tenant=tenants.there)
        assert (queue.stats().ready, queue.stats().away) == (2, ())


def test_the_first_time_all_shards_must_be_there(tmp_path: Path) -> None:
    """Those that are away may belong to a queue with fewer shards."""
    (tmp_path / "disk-0").mkdir()
    (tmp_path / "disk-1").write_text("in the way")
    with pytest.raises(StoreError, match="the first time, all shards must be there"):
        tenure.connect(f"sqlite:///{tmp_path}/disk-{{0..1}}/jobs.db")


def test_no_shard_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "disk-0").write_text("")
    (tmp_path / "disk-1").write_text("")
    with pytest.raises(StoreError):
        tenure.connect(f"sqlite:///{tmp_path}/disk-{{0..1}}/jobs.db")


@pytest.mark.parametrize("key", [f"key-{n}" for n in range(6)])
def test_a_keyed_call_is_finished_when_the_shard_is_back(
    queue: Queue, url: str, tenants: Tenants, key: str
) -> None:
    queue.enqueue("q", tenant=tenants.there)
    (job,) = queue.claim("q")
    enqueue = ops.Enqueue((JobSpec("new", "q", NULL, tenant=tenants.here),))
    call = ops.Once(key, (ops.Ack(job.id, job.token), enqueue))
    with tenure.connect(url) as other:  # which does not know where the job is
        with away(other):
            store_of(other).engine.apply([call])
        (answer,) = store_of(other).engine.apply([call])
        assert isinstance(answer, ops.Answers)
        assert answer.answers[0] == ops.Ok()
        assert isinstance(answer.answers[1], ops.Enqueued)
        assert store_of(other).engine.apply([call]) == [answer]
    assert (queue.stats().ready, queue.stats().done) == (1, 1)


def test_an_operation_that_a_store_rejects_fails_alone(queue: Queue, tenants: Tenants) -> None:
    store = shards_of(queue)[0].store
    assert store is not None
    works = store.apply

    def rejects(batch: list[ops.Op], *given: object) -> list[Answer]:
        if any(isinstance(op, ops.Enqueue) and op.jobs[0].id == "bad" for op in batch):
            raise StoreRejected("too big")
        return works(batch, *given)  # type: ignore[arg-type]

    store.apply = rejects  # type: ignore[method-assign, assignment]
    names = ["a", "b", "bad", "c", "d"]
    specs = [
        store_of(queue).prepare([NewJob(queue="q", id=id, tenant=tenants.here)]) for id in names
    ]
    answers = store_of(queue).engine.apply([ops.Enqueue(tuple(one)) for one in specs])
    assert [isinstance(one, StoreRejected) for one in answers] == [id == "bad" for id in names]
    assert sorted(job.id for job in queue.jobs().jobs) == ["a", "b", "c", "d"]
