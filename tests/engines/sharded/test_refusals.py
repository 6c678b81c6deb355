"""What would need two shards in one transaction is refused with a clear error, and changes
nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

import tenure
from tenure import Conflict, Duplicate, InvalidInput, NewJob, Queue, State
from tenure.model import ops, queries
from tenure.model.job import JobSpec, null
from tenure.queue import store_of
from tests.conformance.state import nothing_changes
from tests.engines.sharded.conftest import Tenants
from tests.support import shards

Single = Callable[[int], Queue]


def test_everything_of_a_tenant_is_on_one_shard(
    queue: Queue, tenants: Tenants, single: Single
) -> None:
    for tenant in tenants:
        for n in range(3):
            queue.enqueue(f"q{n}", tenant=tenant)
    for number, mine in enumerate((tenants[:2], tenants[2:])):
        found = {job.tenant for job in single(number).jobs().jobs}
        assert found == set(mine)


def test_jobs_of_two_shards_are_not_added_together(queue: Queue, tenants: Tenants) -> None:
    jobs = [NewJob(queue="q", tenant=one) for one in (tenants.here, tenants.there)]
    with nothing_changes(queue), pytest.raises(InvalidInput, match="use a call for each tenant"):
        queue.enqueue_many(jobs)
    queue.enqueue_many(NewJob(queue="q", tenant=one) for one in tenants[:2])
    assert queue.stats().ready == 2


def test_a_job_does_not_wait_for_one_on_another_shard(queue: Queue, tenants: Tenants) -> None:
    parent = queue.enqueue("q", id="parent", tenant=tenants.here)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="on another shard"):
        queue.enqueue("q", tenant=tenants.there, after=[parent])
    queue.enqueue("q", tenant=tenants.here_too, after=[parent])


def test_a_follow_up_is_of_the_same_shard(queue: Queue, tenants: Tenants) -> None:
    queue.enqueue("q", tenant=tenants.here)
    (job,) = queue.claim("q")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="on another shard"):
        queue.ack(job, then=[NewJob(queue="q", tenant=tenants.there)])
    queue.ack(job, then=[NewJob(queue="q", tenant=tenants.here_too), NewJob(queue="q")])
    assert queue.stats().ready == 2


@pytest.mark.parametrize("bounds", [{"concurrency": 2}, {"rate": 2, "per": 1}], ids=str)
def test_a_limit_of_a_whole_queue_is_refused(queue: Queue, bounds: dict[str, int]) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="do not share a count"):
        queue.limits.set("q", **bounds)  # type: ignore[arg-type]
    queue.limits.set("q", tenant="*", concurrency=1)


def test_an_id_that_another_shard_has_is_taken(queue: Queue, tenants: Tenants) -> None:
    queue.enqueue("q", id="order-7", tenant=tenants.here)
    with nothing_changes(queue):
        with pytest.raises(Duplicate):
            queue.enqueue("q", id="order-7", tenant=tenants.there)
        job = queue.enqueue("q", id="order-7", tenant=tenants.there, if_exists="skip")
    assert job.tenant == tenants.here
    added = queue.enqueue_many(
        [NewJob(queue="q", id=one, tenant=tenants.there) for one in ("a", "order-7", "b")],
        if_exists="skip",
    )
    assert (list(added), added.created) == (["a", "order-7", "b"], [True, False, True])


def test_an_id_is_not_skipped_because_of_a_job_that_a_grant_hides(
    queue: Queue, tenants: Tenants
) -> None:
    queue.enqueue("q", id="x", tenant=tenants.there)
    spec = JobSpec("x", "q", null(), tenant=tenants.here)
    for seen, answer in (
        (tenants.here, Duplicate("id", "x", "x")),
        (tenants.there, ops.Enqueued),
    ):
        grant = ops.Grant(("q",), (tenants.here, seen))
        (found,) = store_of(queue).engine.apply([ops.Enqueue((spec,), "skip", grant=grant)])
        assert answer in (found, type(found))
    assert queue.stats().ready == 1


def test_an_edited_replay_cannot_have_an_id_that_another_shard_has(
    queue: Queue, tenants: Tenants
) -> None:
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("q", id=tenant, tenant=tenant)
    queue.cancel(tenants.here)
    with nothing_changes(queue):
        (answer,) = store_of(queue).engine.apply([ops.ReplayEdited(tenants.here, tenants.there)])
        assert isinstance(answer, Duplicate)
    (answer,) = store_of(queue).engine.apply([ops.ReplayEdited(tenants.here, "new")])
    assert isinstance(answer, ops.Enqueued)
    assert queue.get("new").tenant == tenants.here


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("second", ["enqueue", "follow-up", "edited replay"])
def test_an_id_that_an_earlier_operation_of_the_batch_adds_on_another_shard_is_taken(
    queue: Queue, url: str, tenants: Tenants, single: Single, second: str, keyed: bool
) -> None:
    """Other operations of the batch find what they name."""
    for n in range(3):
        queue.enqueue("q", id=f"old{n}", tenant=tenants.there, max_attempts=1)
    running, dead = queue.claim("q", limit=2)
    queue.fail(dead, "broken")
    with tenure.connect(url) as other:  # which does not know where jobs are
        x = {t: JobSpec("x", "q", null(), tenant=t) for t in (tenants.here, tenants.there)}
        taken: dict[str, ops.Op] = {
            "enqueue": ops.Enqueue((x[tenants.there],)),
            "follow-up": ops.Ack(running.id, running.token, then=(x[tenants.there],)),
            "edited replay": ops.ReplayEdited(dead.id, "x"),
        }
        y = ops.Enqueue((JobSpec("old2", "q", null(), tenant=tenants.here),))
        batch = [ops.Enqueue((x[tenants.here],)), taken[second], ops.Cancel(("old2", "x")), y]
        answers = store_of(other).engine.apply([ops.Once("key", tuple(batch))] if keyed else batch)
        if isinstance(answers[0], ops.Answers):
            answers = list(answers[0].answers)
        added, refused, cancelled, also_refused = answers
        assert isinstance(added, ops.Enqueued)
        assert refused == Duplicate("id", "x", "x")
        assert cancelled == ops.Changed(2)
        assert also_refused == Duplicate("id", "old2", "old2")
    ids = [{job.id for job in single(number).jobs().jobs} for number in (0, 1)]
    assert ids == [{"x"}, {"old0", "old1", "old2"}]


def test_an_id_that_two_shards_have_is_used_for_neither(
    queue: Queue, tenants: Tenants, single: Single
) -> None:
    """It takes two callers at the same moment, here played by one that passes the engine by."""
    for number, tenant in enumerate((tenants.here, tenants.there)):
        single(number).enqueue("q", id="order-7", tenant=tenant)
    with nothing_changes(queue):
        for call in (queue.get, queue.cancel):
            with pytest.raises(Conflict, match="different tenants have the id 'order-7'"):
                call("order-7")
    assert single(0).delete("order-7") == 1
    assert queue.get("order-7").tenant == tenants.there


def test_an_id_that_two_shards_have_is_finished_on_none_by_mistake(
    queue: Queue, tenants: Tenants, single: Single
) -> None:
    for number, tenant in enumerate((tenants.here, tenants.there)):
        single(number).enqueue("q", id="order-7", tenant=tenant)
    first, second = queue.claim("q", limit=2)
    assert first.id == second.id
    with nothing_changes(queue), pytest.raises(Conflict):
        queue.ack(first)


def test_the_same_schedule_for_a_tenant_of_another_shard_is_refused(
    queue: Queue, tenants: Tenants
) -> None:
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q", tenant=tenants.here))
    with nothing_changes(queue), pytest.raises(Conflict, match="drop it before"):
        queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q", tenant=tenants.there))
    queue.schedules.drop("nightly")
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q", tenant=tenants.there))


def test_a_transaction_of_the_callers_own_is_on_the_shard_of_the_tenant(
    queue: Queue, tenants: Tenants, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(shards.files_of(tmp_path)[0])) as connection:
        with connection:
            queue.enqueue("q", tenant=tenants.here, connection=connection)
        with pytest.raises(InvalidInput, match=r"jobs-1\.db \(shard '1'\)"):
            queue.enqueue("q", tenant=tenants.there, connection=connection)
    assert queue.stats().ready == 1


def test_a_transaction_of_the_caller_changes_one_shard_only(
    queue: Queue, tenants: Tenants, tmp_path: Path
) -> None:
    def enqueue(tenant: str) -> ops.Enqueue:
        return ops.Enqueue((JobSpec(id=tenant, queue="q", payload=null(), tenant=tenant),))

    apply_within = store_of(queue).engine.apply_within
    with closing(sqlite3.connect(shards.files_of(tmp_path)[0])) as connection:
        for batch in ([enqueue(tenants.here), enqueue(tenants.there)], []):
            with connection, pytest.raises(InvalidInput, match="one shard only"):
                apply_within(connection, batch)
        with connection:
            apply_within(connection, [enqueue(tenants.here), enqueue(tenants.here_too)])
    assert sorted(job.id for job in queue.jobs().jobs) == sorted(tenants[:2])


@pytest.mark.parametrize("parent_is_here", [True, False])
def test_an_imported_job_does_not_wait_for_one_on_another_shard(
    queue: Queue, tenants: Tenants, parent_is_here: bool
) -> None:
    parent, other = tenants.here, tenants.there
    if not parent_is_here:
        parent, other = other, parent
    for tenant in (parent, other):
        queue.enqueue("q", id=tenant, tenant=tenant)
    found = store_of(queue).engine.read(queries.Export(2, ids=(parent, other)))
    assert isinstance(found, queries.Exported)
    plain, child = [
        replace(entry, job=replace(entry.job, id=f"new-{entry.job.id}")) for entry in found.entries
    ]
    child = replace(child, job=replace(child.job, state=State.WAITING), waits_for=(parent,))
    (answer,) = store_of(queue).engine.apply([ops.Import((plain, child))])
    assert isinstance(answer, InvalidInput)
    assert "on another shard" in answer.message


def test_a_store_that_was_used_alone_is_no_shard(tmp_path: Path, url: str) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs-0.db") as alone:
        alone.enqueue("q")
    with pytest.raises(InvalidInput, match="tenure copy"):
        tenure.connect(url)


def test_a_url_that_lacks_a_shard_or_spreads_jobs_otherwise_is_refused(
    url: str, queue: Queue
) -> None:
    with pytest.raises(InvalidInput, match="does not name 1: open the queue again"):
        tenure.connect(url.replace("..1", "..0"))
    with pytest.raises(InvalidInput, match="use the same URL as before"):
        tenure.connect(f"{url}?without_tenant=together")


def test_shards_that_a_url_names_besides_are_not_used_before_a_reshard(
    url: str, queue: Queue, tmp_path: Path
) -> None:
    with tenure.connect(url.replace("..1", "..3")) as other:
        for n in range(40):
            job = other.enqueue("q", tenant=f"t{n}")
            assert queue.get(job.id).tenant == f"t{n}"
        other.pause("q")
        assert len(queue.claim("q", limit=40)) == 0
        other.resume("q")
        assert len(other.claim("q", limit=40)) == 40
    for number in (2, 3):
        with tenure.connect(f"sqlite:///{tmp_path}/jobs-{number}.db") as idle:
            assert idle.stats().queues == {}


def test_shards_of_two_queues_are_not_mixed(tmp_path: Path) -> None:
    tenure.connect(f"sqlite:///{tmp_path}/jobs-{{0..1}}.db").close()
    tenure.connect(f"sqlite:///{tmp_path}/jobs-{{2..3}}.db").close()
    with pytest.raises(InvalidInput, match="different shards"):
        tenure.connect(f"sqlite:///{tmp_path}/jobs-{{0..3}}.db")


def test_files_that_were_swapped_are_refused(tmp_path: Path, url: str) -> None:
    tenure.connect(url).close()
    one, other = shards.files_of(tmp_path)
    one.rename(tmp_path / "x")
    other.rename(one)
    (tmp_path / "x").rename(other)
    with pytest.raises(InvalidInput, match="use the same URL as before"):
        tenure.connect(url)
