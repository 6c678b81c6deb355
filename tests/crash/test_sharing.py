"""Several processes on one file: nobody gets a lock error, and limits hold to the last job."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import tenure
from tenure.clock import SystemClock
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tests.crash.crowd import together
from tests.crash.watched import Watched, opened
from tests.support.audit import audit

SECONDS = 3.0


def connected(path: Path) -> tenure.Queue:
    return tenure.connect(f"sqlite:///{path}")


# Nobody meets a lock ----------------------------------------------------------------------------


def hammer(number: int, path: Path) -> int:
    """Enqueue, claim and ack without pause on one handle."""
    acked = 0
    end = time.monotonic() + SECONDS
    with connected(path) as queue:
        while time.monotonic() < end:
            queue.enqueue("mail", number, tenant=f"t{number}")
            for job in queue.claim("mail", limit=2):
                queue.ack(job)
                acked += 1
            queue.stats("mail")
    return acked


def come_and_go(number: int, path: Path) -> int:
    """The same, with a new handle for each job."""
    acked = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with connected(path) as queue:
            queue.enqueue("mail", number, tenant=f"t{number}")
            for job in queue.claim("mail", limit=2):
                queue.ack(job)
                acked += 1
            queue.stats("mail")
    return acked


def hammer_or_come_and_go(number: int, path: Path) -> int:
    return hammer(number, path) if number % 2 else come_and_go(number, path)


def test_eight_processes_hammer_one_file_and_nobody_meets_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    acked = together(8, hammer, path)
    with connected(path) as queue:
        assert queue.stats("mail").done == sum(acked)
    assert audit(path) == []


def test_eight_processes_open_and_close_one_file_and_nobody_meets_a_lock(tmp_path: Path) -> None:
    """Including when the last one closes, which cleans up, while the first opens."""
    path = tmp_path / "jobs.db"
    acked = together(8, come_and_go, path)
    with connected(path) as queue:
        assert queue.stats("mail").done == sum(acked)
    assert audit(path) == []


def test_some_come_and_go_while_others_stay_and_nobody_meets_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    acked = together(8, hammer_or_come_and_go, path)
    with connected(path) as queue:
        assert queue.stats("mail").done == sum(acked)
    assert audit(path) == []


def begin(number: int, folder: Path) -> None:
    for n in range(10):
        with connected(folder / f"{n}.db") as queue:
            queue.enqueue("mail", id=f"job-{number}")


def test_ten_processes_make_the_same_fresh_file_at_once(tmp_path: Path) -> None:
    together(10, begin, tmp_path)
    for n in range(10):
        with connected(tmp_path / f"{n}.db") as queue:
            assert {job.id for job in queue.jobs().jobs} == {f"job-{n}" for n in range(10)}
        assert audit(tmp_path / f"{n}.db") == []


# Others are quick -------------------------------------------------------------------------------


def removed_at_once(tmp_path: Path, id: str) -> tenure.Queue:
    """A queue on which a worker finishes and removes each job as soon as it is enqueued."""
    inner = SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock())
    engine = Watched(inner)
    engine.after = lambda _batch: inner.apply([ops.Delete((id,))])
    return opened(engine)


def test_a_job_with_parents_is_answered_though_it_has_ended_already(tmp_path: Path) -> None:
    with removed_at_once(tmp_path, "child") as queue:
        queue.enqueue("mail", id="parent")
        queue.ack(queue.claim("mail")[0])
        job = queue.enqueue("mail", id="child", after=["parent"])
        assert (job.id, job.after) == ("child", ("parent",))


def test_a_job_passed_over_is_answered_though_its_holder_has_ended_already(tmp_path: Path) -> None:
    with connected(tmp_path / "jobs.db") as queue:
        queue.enqueue("mail", id="holder", unique_key="k")
    with removed_at_once(tmp_path, "holder") as queue:
        job = queue.enqueue("mail", id="new", unique_key="k", if_exists="skip")
        assert job.id in ("holder", "new")


# Limits hold ------------------------------------------------------------------------------------


def grab(number: int, path: Path) -> list[tuple[str, str, str]]:
    """Claim until nothing is left, and keep the jobs. Returns their ids, tenants and groups."""
    got: list[tuple[str, str, str]] = []
    with connected(path) as queue:
        misses = 0
        while misses < 3:
            jobs = queue.claim("mail", limit=1 + number % 3, lease=3600)
            got += [(job.id, job.tenant, job.group) for job in jobs]
            misses = 0 if jobs else misses + 1
    return got


def filled(path: Path, jobs: list[tenure.NewJob]) -> tenure.Queue:
    queue = connected(path)
    queue.enqueue_many(jobs)
    return queue


def one_and_all(got: list[list[tuple[str, str, str]]]) -> list[tuple[str, str, str]]:
    """All claimed jobs together. Checks that none was claimed twice."""
    jobs = [job for one in got for job in one]
    assert len({id for id, _, _ in jobs}) == len(jobs)
    return jobs


def test_a_queues_concurrency_is_met_to_the_last_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = [tenure.NewJob(queue="mail", tenant=f"t{n % 5}") for n in range(100)]
    with filled(path, jobs) as queue:
        queue.limits.set("mail", concurrency=7)
    got = one_and_all(together(6, grab, path))
    assert len(got) == 7
    assert audit(path) == []


def test_a_tenants_concurrency_is_met_to_the_last_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = [tenure.NewJob(queue="mail", tenant=f"t{n % 4}") for n in range(100)]
    with filled(path, jobs) as queue:
        queue.limits.set("mail", tenant="*", concurrency=3)
        queue.limits.set("mail", tenant="t0", concurrency=5)
    got = one_and_all(together(6, grab, path))
    assert Counter(tenant for _, tenant, _ in got) == {"t0": 5, "t1": 3, "t2": 3, "t3": 3}
    assert audit(path) == []


def test_a_groups_concurrency_is_met_to_the_last_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = [
        tenure.NewJob(queue="mail", tenant=f"t{n % 2}", group=f"g{n // 2 % 3}") for n in range(120)
    ]
    with filled(path, jobs) as queue:
        queue.limits.set("mail", group="*", concurrency=2)
    got = one_and_all(together(6, grab, path))
    wanted = {(f"t{t}", f"g{g}"): 2 for t in range(2) for g in range(3)}
    assert Counter((tenant, group) for _, tenant, group in got) == wanted
    assert audit(path) == []


def test_limits_on_queue_tenant_and_group_are_met_together(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = [
        tenure.NewJob(queue="mail", tenant=f"t{n % 4}", group=f"g{n // 4 % 3}") for n in range(240)
    ]
    with filled(path, jobs) as queue:
        queue.limits.set("mail", concurrency=7)
        queue.limits.set("mail", tenant="*", concurrency=3)
        queue.limits.set("mail", group="*", concurrency=2)
    got = one_and_all(together(6, grab, path))
    assert len(got) == 7
    assert max(Counter(tenant for _, tenant, _ in got).values()) <= 3
    assert max(Counter((tenant, group) for _, tenant, group in got).values()) <= 2
    assert audit(path) == []


def test_a_rate_is_met_to_the_last_claim(tmp_path: Path) -> None:
    """The period is so long that nothing is refilled while the test runs."""
    path = tmp_path / "jobs.db"
    with filled(path, [tenure.NewJob(queue="mail") for _ in range(100)]) as queue:
        queue.limits.set("mail", rate=20, per=100_000)
    assert len(one_and_all(together(6, grab, path))) == 20
    assert audit(path) == []


def work_off(number: int, path: Path) -> list[tuple[str, str, str]]:
    """Claim and ack until all is done."""
    got: list[tuple[str, str, str]] = []
    with connected(path) as queue:
        while queue.stats("mail").unfinished:
            for job in queue.claim("mail", limit=3, lease=3600):
                leased = queue.stats("mail").leased
                assert leased <= 7, leased
                got.append((job.id, job.tenant, job.group))
                queue.ack(job)
    return got


def test_every_job_is_given_out_once_however_many_work(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    jobs = [tenure.NewJob(queue="mail", id=f"{n}", tenant=f"t{n % 3}") for n in range(300)]
    with filled(path, jobs) as queue:
        queue.limits.set("mail", concurrency=7)
    got = one_and_all(together(6, work_off, path))
    assert {id for id, _, _ in got} == {f"{n}" for n in range(300)}
    with connected(path) as queue:
        assert queue.stats("mail").done == 300
    assert audit(path) == []
