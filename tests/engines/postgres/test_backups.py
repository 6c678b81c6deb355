"""A PostgreSQL server that is replaced by another: from a backup, or by a standby."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.crash import failover
from tests.crash.kill import everything
from tests.crash.watched import PATIENCE, start, until
from tests.support import audit_postgres, postgres
from tests.support.postgres import CARELESS, Server

BURN = "DO $$ BEGIN FOR n IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(**CARELESS)
    yield server
    server.stop()


def test_a_dump_that_is_restored_into_a_younger_server_works_at_once(server: Server) -> None:
    """Transaction ids start again there. Jobs are enqueued before the ids have caught up, and
    claimed afterwards."""
    server.execute(BURN.format(20_000))
    names = ["plain", "bound", "wide"]
    with tenure.connect(server.url) as queue:
        queue.limits.set("bound", concurrency=100)
        for name in names:
            for n in range(3):
                queue.enqueue(name, id=f"{name}-{n}", tenant=f"{n}" if name == "wide" else "")
                queue.ack(queue.claim(name)[0])
        assert queue.claim(names) == []  # the books are up to date
        queue.enqueue("left", id="left")
    young = Server(**CARELESS)
    try:
        postgres.restore(young.url, postgres.dump(server.url, "tenure"))
        with tenure.connect(young.url) as queue:
            for name in names:
                queue.enqueue(name, id=f"{name}-new")
            young.execute(BURN.format(30_000))
            for name in names:
                jobs = queue.claim(name, limit=5)
                assert [job.id for job in jobs] == [f"{name}-new"]
                assert queue.ack_many(jobs) == [None]
                assert queue.stats(name).done == 4
            assert [job.id for job in queue.claim("left")] == ["left"]
        assert audit_postgres.audit(young.url, "tenure") == []
    finally:
        young.stop()


def replace(schema: str, backup: str) -> None:
    """Replace the schema by a backup, even while it is in use."""
    postgres.restore(postgres.shared_url(), f"DROP SCHEMA {schema} CASCADE;\n{backup}")


def test_a_worker_whose_claim_is_not_in_the_backup_cannot_ack_for_the_next_holder(
    schema: str, tmp_path: Path
) -> None:
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(5)])
        queue.claim("q")
        backup = postgres.dump(postgres.shared_url(), schema)
        stale = queue.claim("q", limit=4)
        replace(schema, backup)
        held = queue.claim("q", limit=4)
        assert [job.id for job in held] == [job.id for job in stale]
        lost = queue.ack_many(stale)
        assert [type(error) for error in lost] == [tenure.LeaseLost] * 4
        assert queue.ack_many(held) == [None] * 4


def test_workers_go_on_when_a_backup_is_restored_under_them(schema: str, tmp_path: Path) -> None:
    """They get only documented errors, and everything in the backup is done in the end."""
    over = threading.Event()

    def work(queue: tenure.Queue) -> None:
        while not over.is_set():
            try:
                queue.enqueue("noise")
                jobs = queue.claim(["mail", "noise"], limit=3)
                for error in queue.ack_many(jobs):
                    if error is not None:
                        raise error
            except (tenure.LeaseLost, tenure.JobNotFound, tenure.StoreError, tenure.Busy):
                time.sleep(0.02)

    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        queue.limits.set("mail", concurrency=10)
        ids = queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(200)])
        backup = postgres.dump(postgres.shared_url(), schema)
        working = [start(work, queue) for _ in range(3)]
        until(lambda: queue.stats("mail").done > 50)
        replace(schema, backup)
        until(lambda: queue.stats("mail").done == len(ids))
        over.set()
        for one in working:
            one.result(PATIENCE)


def test_a_standby_that_takes_over_has_all_that_was_acknowledged() -> None:
    found, counted = failover.fail_over(2.0)
    assert found == []
    assert counted["acked"] > 10


def test_a_standby_that_lagged_behind_loses_what_it_had_not_received_and_nothing_else() -> None:
    """As documented for asynchronous replication in docs/postgresql.md."""
    primary = Server(**failover.SETTINGS)
    standby = Server.standby(primary, **failover.SETTINGS)
    try:
        with tenure.connect(failover.url_of(primary, standby)) as queue:
            queue.enqueue_many([tenure.NewJob(queue="q", id=f"kept-{n}") for n in range(4)])
            (held,) = queue.claim("q")
            query = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
            until(lambda: bool(primary.execute(query)))
            standby.shut_down()
            queue.enqueue("q", id="lost")
            stale = queue.claim("q", limit=2)
            primary.kill_all()
            standby.start()
            standby.promote()
            with pytest.raises(tenure.JobNotFound):
                queue.get("lost")
            again = queue.claim("q", limit=2)
            assert [job.id for job in again] == [job.id for job in stale]
            assert [type(e) for e in queue.ack_many(stale)] == [tenure.LeaseLost] * 2
            assert queue.ack_many([held, *again]) == [None] * 3
        assert audit_postgres.audit(standby.url, "tenure") == []
    finally:
        primary.stop()
        standby.stop()


def test_a_url_may_name_hosts_of_which_one_is_a_standby_or_away() -> None:
    """It always connects to the primary."""
    primary = Server(**CARELESS)
    standby = Server.standby(primary, **CARELESS)
    try:
        for hosts in ((standby, primary), (primary, standby)):
            with tenure.connect(failover.url_of(*hosts)) as queue:
                queue.enqueue("q")
        standby.shut_down()
        with tenure.connect(failover.url_of(standby, primary)) as queue:
            assert queue.stats("q").ready == 2
    finally:
        standby.stop()
        primary.stop()


# A full disk ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A folder with room for 24 MB."""
    with postgres.small_disk(megabytes=24) as folder:
        yield folder


def fill_up(folder: Path, but: int = 0) -> Path:
    """Fill the disk, except for so many bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while shutil.disk_usage(folder).free > but:
            file.write(b"x" * 4096)
    return ballast


def enqueue_on_and_on(queue: tenure.Queue, enqueued: list[str]) -> None:
    while True:
        new = [tenure.NewJob(queue="q", payload="x" * 1000) for _ in range(50)]
        enqueued += queue.enqueue_many(new)


def test_a_full_disk_under_the_tables_is_said_and_costs_nothing(
    server: Server, small_disk: Path
) -> None:
    server.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    server.execute("CREATE DATABASE jobs TABLESPACE small")
    url = server.url.replace("/postgres?", "/jobs?")
    with tenure.connect(url) as queue:
        queue.enqueue("q", id="first")
        ballast = fill_up(small_disk)
        enqueued: list[str] = ["first"]
        with pytest.raises(tenure.StoreFull):
            enqueue_on_and_on(queue, enqueued)
        assert queue.stats("q").ready == len(enqueued)
        ballast.unlink()
        enqueued.append(queue.enqueue("q").id)
        jobs = [job for _ in range(len(enqueued)) for job in queue.claim("q", limit=1000)]
        assert [job.id for job in jobs] == enqueued
        assert queue.ack_many(jobs) == [None] * len(jobs)
    assert audit_postgres.audit(url, "tenure") == []


def test_a_full_disk_under_the_log_costs_nothing_that_was_acknowledged(small_disk: Path) -> None:
    settings = {"fsync": "off", "min_wal_size": "2MB", "max_wal_size": "1GB"}  # none is removed
    server = Server.with_wal(small_disk / "wal", **settings)
    try:
        options = tenure.Settings(url=server.url, busy_timeout=0.5)
        with tenure.connect(settings=options) as queue:
            enqueued = [queue.enqueue("q").id]
            ballast = fill_up(small_disk, but=2**20)
            with pytest.raises(tenure.StoreError):
                enqueue_on_and_on(queue, enqueued)
            ballast.unlink()
            server.kill()  # if it has not ended by itself
            server.start()
            known = {job.id for job in everything(queue).values()}
            assert set(enqueued) <= known
            enqueued.append(queue.enqueue("q").id)
            assert len(queue.claim("q", limit=1000)) >= 1
        assert audit_postgres.audit(server.url, "tenure") == []
    finally:
        server.stop()
