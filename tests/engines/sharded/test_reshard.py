"""Tenants move to more or fewer shards, and nothing is lost, doubled or claimable twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure import Busy, Conflict, Duplicate, InvalidInput, Job, NewJob, Queue
from tenure.clock import SystemClock
from tenure.engines import open_shard
from tenure.engines.sharded.carrying import Carrier
from tenure.engines.sharded.catalog import Catalog
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.members import both, members_of
from tenure.engines.sharded.reshard import Plan, Reshard
from tenure.engines.sharded.shard import Shard
from tenure.model import queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Enqueue, Enqueued, Entry
from tenure.queue import store_of
from tenure.settings import Settings
from tests.support import audit_postgres, postgres
from tests.support.audit import audit
from tests.support.sizes import let


def url_of(folder: Path, last: int, together: bool = False) -> str:
    rest = "?without_tenant=together" if together else ""
    return f"sqlite:///{folder}/jobs-{{0..{last}}}.db{rest}"


@contextmanager
def resharding(old: str, new: str) -> Iterator[Reshard]:
    members, target = both(members_of(old), members_of(new)), members_of(new)
    with closing(ShardedEngine.of(members, Settings(url=old), SystemClock(), open_shard)) as engine:
        yield Reshard(engine, target.urls, SystemClock())


def reshard(old: str, new: str) -> Reshard:
    with resharding(old, new) as work:
        assert work.run()
        return work


def check(folder: Path) -> None:
    for path in folder.glob("jobs-*.db"):
        assert audit(path) == []


def everything(queue: Queue) -> dict[str, object]:
    """All jobs with all that they have."""
    found: dict[str, object] = {}
    cursor = None
    while True:
        page = store_of(queue).engine.read(queries.Export(1000, cursor))
        assert isinstance(page, queries.Exported)
        for entry in page.entries:
            assert entry.job.id not in found
            found[entry.job.id] = entry
        cursor = page.cursor
        if len(page.entries) < 1000:
            return found


def fill(queue: Queue, tenants: int = 30) -> None:
    """Jobs in every state, with limits, schedules and errors."""
    for n in range(tenants):
        tenant = f"t{n}"
        queue.limits.set("mail", tenant=tenant, concurrency=2, weight=n % 3 + 1)
        queue.enqueue_many(
            NewJob(queue="mail", id=f"{tenant}/{i}", payload=i, tenant=tenant, priority=i % 2)
            for i in range(8)
        )
        parent = queue.enqueue("mail", tenant=tenant, delay=600, id=f"{tenant}/parent")
        queue.enqueue("mail", tenant=tenant, after=[parent], id=f"{tenant}/child")
        queue.enqueue("mail", tenant=tenant, group="g", unique_key="once", id=f"{tenant}/unique")
        queue.schedules.put(f"nightly-{n}", "0 3 * * *", NewJob(queue="mail", tenant=tenant))
        if n % 5 == 0:
            queue.pause("mail", tenant=tenant)
    for n, job in enumerate(queue.claim("mail", limit=tenants, lease=600)):
        if n % 3 == 0:
            queue.ack(job, result=n)
        elif n % 3 == 1:
            queue.fail(job, "broken", retry_in=600)


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 1), (0, 2), (3, 0)])
def test_everything_is_there_afterwards_and_on_the_right_shard(
    tmp_path: Path, old: int, new: int
) -> None:
    before, after = url_of(tmp_path, old), url_of(tmp_path, new)
    with tenure.connect(before) as queue:
        fill(queue)
        there, limits = everything(queue), queue.limits.list()
        stats, schedules = queue.stats(), queue.schedules.list()
        errors = [(one.group, one.count) for one in queue.errors.list().errors]
    work = reshard(before, after)
    assert 0 < work.tenants <= 30
    with tenure.connect(after) as queue:
        assert everything(queue) == there
        assert queue.limits.list() == limits
        assert queue.stats().queues == stats.queues
        assert queue.schedules.list() == schedules
        assert [(one.group, one.count) for one in queue.errors.list().errors] == errors
        for n in range(30):
            assert len(queue.jobs(tenant=f"t{n}", limit=50).jobs) == 11
            assert queue.get(f"t{n}/child").tenant == f"t{n}"
    assert reshard(before, after).tenants == 0
    check(tmp_path)


@pytest.mark.parametrize("page", [1, 4, 10])
def test_the_jobs_and_tenants_of_a_shard_are_read_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    let(monkeypatch, tenants_of_a_page_of_shards=page)
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(before) as queue:
        for n in range(20):
            queue.enqueue("q", tenant=f"t{n % 10}")
        there = everything(queue)
    monkeypatch.setattr(Catalog, "read_again", None)  # nothing is missed the first time
    read, reads = Shard.read, Counter[str]()

    def counted(shard: Shard, query: queries.Query) -> queries.Found:
        reads["all"] += 1
        assert reads["all"] < 1000
        return read(shard, query)

    monkeypatch.setattr(Shard, "read", counted)
    work = reshard(before, after)
    assert 2 < work.tenants < 10
    assert work.jobs == 2 * work.tenants
    with tenure.connect(after) as queue:
        assert everything(queue) == there
        for n in range(10):
            assert len(queue.jobs(tenant=f"t{n}").jobs) == 2
    check(tmp_path)


def test_only_tenants_that_a_new_shard_takes_are_moved(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 2)
    with tenure.connect(before) as queue:
        for n in range(300):
            queue.enqueue("q", tenant=f"t{n}")
    with resharding(before, after) as work:
        plan = work.plan()
        assert plan == Plan(plan.tenants, plan.tenants, 300, 300, plan.largest)
        assert 70 < plan.tenants < 130
        assert work.plan() == plan  # nothing was changed
        assert work.run()
        assert (work.tenants, work.jobs) == (plan.tenants, plan.jobs)
        assert work.plan().tenants == 0
    with tenure.connect(f"sqlite:///{tmp_path}/jobs-2.db") as added:
        assert added.stats().ready == plan.jobs
    check(tmp_path)


def test_a_job_that_runs_keeps_its_lease_and_its_token(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    tenure.connect(before).close()
    with tenure.connect(after) as early:
        for n in range(20):
            early.enqueue("q", n, tenant=f"t{n}")
        jobs = early.claim("q", limit=20, lease=600)
        reshard(before, after)
        for job in jobs[::2]:
            early.ack(job, result="done")
        with tenure.connect(after) as late:
            for job in jobs[1::2]:
                late.extend(job)
                late.ack(job, result="done")
            assert late.stats().done == 20
            late.enqueue("q", tenant="t3")
            (again,) = late.claim("q")
            mine = next(job for job in jobs if job.tenant == "t3")
            assert again.token > mine.token
    check(tmp_path)


def test_the_order_in_a_lane_the_limits_and_unique_keys_stay(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        for n in range(20):
            queue.limits.set("q", tenant=f"t{n}", concurrency=1)
            for i in range(5):
                queue.enqueue("q", i, tenant=f"t{n}", unique_key=str(i))
        queue.limits.set("q", tenant="*", concurrency=3)
        queue.pause("other")
    reshard(before, after)
    with tenure.connect(after) as queue:
        with pytest.raises(Duplicate):
            queue.enqueue("q", tenant="t3", unique_key="4")
        for round_ in range(5):
            jobs = queue.claim("q", limit=100)
            assert Counter(job.tenant for job in jobs) == {f"t{n}": 1 for n in range(20)}
            assert {job.payload for job in jobs} == {round_}
            for job in jobs:
                queue.ack(job)
        for n in range(100, 120):  # the limit for every tenant reached the new shards
            queue.enqueue_many(NewJob(queue="q", tenant=f"t{n}") for _ in range(5))
        assert len(queue.claim("q", limit=1000)) == 60
        queue.enqueue_many(NewJob(queue="other", tenant="t0") for _ in range(2))
        assert queue.claim("other", limit=10) == []
    check(tmp_path)


def test_a_process_that_knows_the_new_shards_follows(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        fill(queue, 10)
    with tenure.connect(after) as early:
        reshard(before, after)
        for n in range(10):
            assert len(early.jobs(tenant=f"t{n}", limit=50).jobs) == 11
            early.enqueue("late", tenant=f"t{n}", after=[f"t{n}/parent"])
            early.limits.set("late", tenant=f"t{n}", concurrency=1)
    with tenure.connect(after) as late:
        for n in range(10):
            assert len(late.jobs(tenant=f"t{n}", limit=50).jobs) == 12
    check(tmp_path)


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1)])
def test_a_batch_that_was_routed_before_a_move_is_applied_where_the_tenants_are_now(
    tmp_path: Path, old: int, new: int
) -> None:
    before, after = url_of(tmp_path, old), url_of(tmp_path, new)
    tenure.connect(before).close()
    specs = [JobSpec(f"j{n}", "q", NULL, tenant=f"t{n}") for n in range(20)]
    with tenure.connect(url_of(tmp_path, 3)) as early:
        reshard(before, after)
        answers = store_of(early).engine.apply([Enqueue((spec,)) for spec in specs])
        assert {type(one) for one in answers} == {Enqueued}
    with tenure.connect(after) as late:
        for spec in specs:
            assert [job.id for job in late.jobs(tenant=spec.tenant).jobs] == [spec.id]
    check(tmp_path)


def test_a_process_that_does_not_know_the_new_shards_is_told_and_changes_nothing(
    tmp_path: Path,
) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as old:
        for n in range(20):
            old.enqueue("q", tenant=f"t{n}")
        reshard(before, after)
        for n in range(20):
            with pytest.raises(InvalidInput, match="does not name 2 3: open the queue again"):
                old.enqueue("q", tenant=f"t{n}")
    with pytest.raises(InvalidInput, match="does not name 2 3"):
        tenure.connect(before)
    with tenure.connect(after) as queue:
        assert queue.stats().ready == 20


def test_a_process_that_does_not_know_the_new_shards_is_told_during_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, tenants_moved_in_a_step=1)
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as old, tenure.connect(after) as new:
        for n in range(20):
            old.enqueue("q", tenant=f"t{n}")
        (job,) = old.claim("q")
        seen: list[int] = []

        def look() -> None:
            for call in (
                lambda: old.enqueue("q", tenant="t0"),
                lambda: old.claim("q"),
                lambda: old.ack(job),
                lambda: old.pause("q"),
            ):
                with pytest.raises(InvalidInput, match="tenants are being moved"):
                    call()
            for n in range(20):  # a process that knows them does not notice
                assert len(new.jobs(tenant=f"t{n}").jobs) == 1 + len(seen)
                new.enqueue("q", tenant=f"t{n}")
            seen.append(1)

        with resharding(before, after) as work:
            while not work.run(lambda: setattr(work, "stop", True)):
                if len(seen) < 3:
                    look()
                work.stop = False
        new.ack(job)
        assert new.stats().ready == 19 + 20 * 3
        assert new.stats().done == 1
    check(tmp_path)


def count(queue: Queue, tenant: str) -> int:
    return len(queue.jobs(tenant=tenant).jobs)


def test_who_looks_for_a_job_in_the_middle_of_a_step_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are removed from the old shard, and nobody was told that the new one has them."""
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    remove = Carrier.remove_jobs
    with (
        tenure.connect(before) as queue,
        tenure.connect(after) as knows,
        tenure.connect(after) as knows_not,
        ThreadPoolExecutor(8) as pool,
    ):
        for n in range(20):
            for i in range(3):
                queue.enqueue("q", tenant=f"t{n}", id=f"t{n}/{i}")
        calls: list[Future[object]] = []

        def remove_and_look(carrier: Carrier, entries: list[Entry]) -> None:
            remove(carrier, entries)
            if calls:
                return
            job = entries[0].job
            with monkeypatch.context() as patch:
                patch.setattr("tenure.engines.sharded.cluster.PATIENCE", 0.1)
                with pytest.raises(Busy):  # it learns of the step
                    knows.enqueue("q", tenant=job.tenant)
            for other in (knows, knows_not):
                calls.append(pool.submit(count, other, job.tenant))
                calls.append(pool.submit(lambda of: of.get(job.id).tenant == job.tenant, other))
            calls.append(pool.submit(knows.cancel, entries[1].job.id))
            calls.append(pool.submit(knows_not.cancel, entries[2].job.id))
            time.sleep(0.3)

        monkeypatch.setattr(Carrier, "remove_jobs", remove_and_look)
        reshard(before, after)
        assert [call.result(10) for call in calls] == [3, True, 3, True, 1, 1]
        assert knows.stats().cancelled == 2
    check(tmp_path)


def test_nothing_is_changed_on_a_shard_in_the_middle_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its tenants move or not."""
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    copy = Carrier.copy_jobs
    claimed: list[Job] = []
    with tenure.connect(before) as queue, tenure.connect(after) as knows:
        engine = store_of(knows).engine
        assert isinstance(engine, ShardedEngine)
        cluster = engine.cluster
        for n in range(20):
            queue.enqueue("q", tenant=f"t{n}")

        def copy_and_try(carrier: Carrier, entries: list[Entry]) -> None:
            copy(carrier, entries)
            cluster.refresh(cluster.view)
            with monkeypatch.context() as patch:
                patch.setattr("tenure.engines.sharded.cluster.PATIENCE", 0.0)
                let(patch, seconds_for_the_ring_to_settle=0.0)
                for n in range(20):
                    with pytest.raises(Busy):
                        knows.enqueue("q", tenant=f"t{n}")
                claimed.extend(knows.claim("q", limit=50))

        monkeypatch.setattr(Carrier, "copy_jobs", copy_and_try)
        reshard(before, after)
        assert claimed == []
        assert len(knows.claim("q", limit=50)) == 20  # the first claim sees that the step has ended
    check(tmp_path)


def test_after_shrinking_the_smaller_url_is_enough_and_the_larger_still_works(
    tmp_path: Path,
) -> None:
    before, after = url_of(tmp_path, 2), url_of(tmp_path, 1)
    with tenure.connect(before) as old:
        for n in range(20):
            old.enqueue("q", tenant=f"t{n}")
        reshard(before, after)
        for n in range(20):
            old.enqueue("q", tenant=f"t{n}")
        assert len(old.jobs(tenant="t3").jobs) == 2
    with tenure.connect(after) as queue:
        assert queue.stats().ready == 40
    with tenure.connect(f"sqlite:///{tmp_path}/jobs-2.db") as gone:
        assert (gone.stats().ready, gone.limits.list(), gone.schedules.list()) == (0, [], [])


@pytest.mark.parametrize("new", [3, 0])
def test_jobs_without_a_tenant_keep_their_groups_and_keys(tmp_path: Path, new: int) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, new)
    with tenure.connect(before) as queue:
        for n in range(30):
            queue.enqueue("q", n)
            queue.enqueue("q", n, group=f"g{n % 7}")
            queue.enqueue("q", n, unique_key=f"k{n}")
        for n in range(7):
            queue.limits.set("q", tenant="", group=f"g{n}", concurrency=1)
        queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q"))
        there, limits = everything(queue), queue.limits.list()
    reshard(before, after)
    with tenure.connect(after) as queue:
        assert everything(queue) == there
        assert queue.limits.list() == limits
        assert [one.name for one in queue.schedules.list()] == ["nightly"]
        for n in range(30):
            with pytest.raises(Duplicate):
                queue.enqueue("q", unique_key=f"k{n}")
        queue.schedules.put("nightly", "0 4 * * *", NewJob(queue="q"))
        jobs = queue.claim("q", limit=200)
        assert Counter(job.group for job in jobs if job.group) == {f"g{n}": 1 for n in range(7)}
        assert len(jobs) == 67
    check(tmp_path)


def test_a_list_of_a_tenant_that_has_moved_does_not_end_as_if_it_were_complete(
    tmp_path: Path,
) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 0)
    with tenure.connect(before) as queue:
        engine = store_of(queue).engine
        assert isinstance(engine, ShardedEngine)
        placing = engine.placing
        tenant = next(f"t{n}" for n in range(20) if placing.of_tenant(f"t{n}") == 1)
        for _ in range(3):
            queue.enqueue("q", tenant=tenant)
        page = queue.jobs(tenant=tenant, limit=2)
        reshard(before, after)
        with pytest.raises(InvalidInput, match="begin again"):
            queue.jobs(tenant=tenant, limit=2, cursor=page.cursor)
        assert len(queue.jobs(tenant=tenant).jobs) == 3


def test_jobs_that_wait_for_another_tenant_are_not_torn_apart(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue, resharding(before, after) as work:
        places = {f"t{n}": store_of(queue).engine.placing.of_tenant(f"t{n}") for n in range(40)}  # type: ignore
        moves = {f"t{n}": work._new.of_tenant(f"t{n}") for n in range(40)}
        stays = next(t for t in places if places[t] == moves[t] == 0)
        goes = next(t for t in places if places[t] == 0 and moves[t] != 0)
        parent = queue.enqueue("q", tenant=stays)
        child = queue.enqueue("q", tenant=goes, after=[parent])
        with pytest.raises(Conflict, match="would be on different shards"):
            work.run()
        with tenure.connect(after) as other:
            other.enqueue("q", tenant=goes)  # nothing is frozen
            other.cancel(child.id)
        assert work.run()
    with tenure.connect(after) as queue:
        assert queue.stats().ready == 2


def test_the_same_name_for_another_store_is_refused(tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/a-{{0..1}}.db", f"sqlite:///{tmp_path}/b-{{0..3}}.db"
    with pytest.raises(InvalidInput, match="use `tenure copy`"):
        both(members_of(old), members_of(new))


def test_both_urls_must_place_jobs_without_a_tenant_alike(tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/a-{{0..1}}.db", f"sqlite:///{tmp_path}/a-{{0..3}}.db"
    with pytest.raises(InvalidInput, match="must be the same in both URLs"):
        both(members_of(old), members_of(f"{new}?without_tenant=together"))


def test_old_and_new_names_together_must_fit_into_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = url_of(tmp_path, 1), url_of(tmp_path, 3)
    tenure.connect(old).close()
    with resharding(old, new) as work:
        let(monkeypatch, names_in_a_ring=len("0 1 2 3") - 1)
        with pytest.raises(InvalidInput, match="all names have more than 6 characters"):
            work.run()
        let(monkeypatch, names_in_a_ring=len("0 1 2 3"))
        assert work.run()


def test_another_move_must_be_finished_first(tmp_path: Path) -> None:
    with tenure.connect(url_of(tmp_path, 1)) as queue:
        for n in range(300):
            queue.enqueue("q", tenant=f"t{n}")
    with resharding(url_of(tmp_path, 1), url_of(tmp_path, 3)) as work:
        work.run(lambda: setattr(work, "stop", True))
    with (
        resharding(url_of(tmp_path, 3), url_of(tmp_path, 2)) as other,
        pytest.raises(Conflict, match="finish it first"),
    ):
        other.run()
    with resharding(url_of(tmp_path, 1), url_of(tmp_path, 3)) as work:
        assert work.run()
        assert work.resumed
    with tenure.connect(url_of(tmp_path, 3)) as queue:
        assert len(everything(queue)) == 300
    check(tmp_path)


def on_postgres(folder: Path, count: int) -> str:
    """The URL of shards in schemas of one server."""
    file = folder / f"{count}.toml"
    lines = [f's{n} = "{postgres.url_of(folder / str(n))}"\n' for n in range(count)]
    file.write_text(f"[shards]\n{''.join(lines)}")
    return f"shards:///{file}"


def test_on_postgresql_everything_is_there_afterwards(tmp_path: Path) -> None:
    stores = [tmp_path / str(n) for n in range(3)]
    url = partial(on_postgres, tmp_path)
    try:
        with tenure.connect(url(2)) as queue:
            fill(queue, 12)
            there, limits = everything(queue), queue.limits.list()
            stats, schedules = queue.stats(), queue.schedules.list()
        for old, new in ((2, 3), (3, 1)):
            assert reshard(url(old), url(new)).tenants > 0
            with tenure.connect(url(new)) as queue:
                assert everything(queue) == there
                assert (queue.limits.list(), queue.schedules.list()) == (limits, schedules)
                assert queue.stats().queues == stats.queues
        with tenure.connect(url(3)) as queue:  # names more shards than are used
            queue.enqueue("mail", tenant="t3")
            queue.resume("mail", tenant="t0")
            assert queue.claim("mail", limit=5)
        assert [
            wrong
            for one in stores
            for wrong in audit_postgres.audit(postgres.shared_url(), postgres.schema_of(one))
        ] == []
    finally:
        for one in stores:
            postgres.give_back(one)


def test_on_postgresql_an_open_transaction_keeps_a_move_from_freezing_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, tries_to_wait_for_a_lock=1)
    let(monkeypatch, seconds_to_mark_the_shards=0.0)
    before, after = on_postgres(tmp_path, 2), on_postgres(tmp_path, 3)
    try:
        with tenure.connect(before) as queue, resharding(before, after) as work:
            engine = store_of(queue).engine
            assert isinstance(engine, ShardedEngine)
            placing = engine.placing
            tenants = [f"t{n}" for n in range(20)]
            for tenant in tenants:
                queue.enqueue("q", tenant=tenant)
            on_the_last = next(one for one in tenants if placing.of_tenant(one) == 1)
            with psycopg.connect(postgres.shared_url()) as connection:
                queue.enqueue("q", tenant=on_the_last, connection=connection)
                with pytest.raises(Busy):
                    work.run()
                for tenant in tenants:
                    queue.enqueue("q", tenant=tenant)
            assert work.run()
        with tenure.connect(after) as queue:
            assert queue.stats().ready == 41
    finally:
        for n in range(3):
            postgres.give_back(tmp_path / str(n))
