"""The books that are kept between transactions: used only while nobody else writes to the file."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.engines.sqlite import counters
from tenure.engines.sqlite.disk import Disk
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.errors import StoreError, TenureError
from tenure.model import ops
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.support.audit import audit
from tests.support.sizes import let


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{path}") as queue:
        yield queue
    assert audit(path) == []


@pytest.fixture
def other(path: Path, queue: tenure.Queue) -> Iterator[tenure.Queue]:
    """A second handle, as another process has it: with connections of its own."""
    with tenure.connect(f"sqlite:///{path}") as other:
        yield other


def engine_of(queue: tenure.Queue) -> SqliteEngine:
    engine = store_of(queue).engine
    assert isinstance(engine, SqliteEngine)
    return engine


def books_of(queue: tenure.Queue) -> counters.Books:
    books = engine_of(queue)._books
    assert books is not None
    return books


def enqueue(queue: tenure.Queue, *tenants: str, **options: Any) -> None:
    queue.enqueue_many([tenure.NewJob(queue="mail", tenant=t, **options) for t in tenants])


def claimed(queue: tenure.Queue, limit: int) -> str:
    """The tenants of the claimed jobs, in order."""
    return "".join(job.tenant for job in queue.claim("mail", limit=limit))


def statements(queue: tenure.Queue, call: Callable[[], object]) -> list[str]:
    """The SQL that the writer runs."""
    seen: list[str] = []
    writer = engine_of(queue)._writer
    assert writer is not None
    writer.set_trace_callback(seen.append)
    call()
    writer.set_trace_callback(None)
    return seen


def test_a_handle_that_writes_alone_reads_no_books_again(queue: tenure.Queue) -> None:
    enqueue(queue, *"abc" * 3)

    def cycle() -> None:
        enqueue(queue, *"abc")
        queue.ack_many(queue.claim("mail", limit=3))

    cycle()
    tables = ("FROM tenure_lanes", "JOIN tenure_lanes", "FROM tenure_queues")
    assert not [sql for sql in statements(queue, cycle) if any(one in sql for one in tables)]


def test_jobs_of_the_same_handle_are_acknowledged_without_reading_them(
    queue: tenure.Queue,
) -> None:
    enqueue(queue, *"abc")
    jobs = queue.claim("mail", limit=3)
    seen = statements(queue, lambda: queue.ack_many(jobs))
    assert not [sql for sql in seen if sql.startswith("SELECT") and "tenure_jobs" in sql]
    assert queue.stats("mail").done == 3


@pytest.mark.parametrize("by", ["queue", "other"])
@pytest.mark.parametrize("how", ["ack", "cancel", "release", "expire", "delete", "replace"])
def test_a_lease_that_ended_is_lost_whatever_the_books_know(path: Path, how: str, by: str) -> None:
    clock = ManualClock()
    with (
        tenure.connect(f"sqlite:///{path}", clock=clock) as queue,
        tenure.connect(f"sqlite:///{path}", clock=clock) as other,
    ):
        enqueue(queue, *"abc")
        first, second, third = queue.claim("mail", limit=3, lease=60)
        who = queue if by == "queue" else other
        if how == "ack":
            who.ack(second, then=[tenure.NewJob(queue="next")])
        elif how == "cancel":
            who.cancel([second.id])
        elif how == "release":
            who.release(second)
        elif how == "expire":
            who.extend(first, 600)
            who.extend(third, 600)
            clock.advance(61)
            who.claim("none-of-it")
            who.maintain()
        elif how == "delete":
            who.cancel([second.id])
            who.delete([second.id])
        else:
            who.release(second)
            (again,) = who.claim("mail", limit=1)
            assert again.id == second.id
        problems = queue.ack_many([first, second, third])
        is_repeated = how == "ack"  # by the same lease, which is no problem
        assert [problem is None for problem in problems] == [True, is_repeated, True]
        if is_repeated:
            assert (queue.stats("mail").done, queue.stats("next").ready) == (3, 1)
        if how == "replace":
            assert queue.ack_many([again]) == [None]
            assert queue.stats("mail").done == 3
    assert audit(path) == []


def test_one_lease_that_is_acknowledged_twice_in_a_call_counts_once(queue: tenure.Queue) -> None:
    enqueue(queue, *"ab")
    first, second = queue.claim("mail", limit=2)
    assert queue.ack_many([first, second, first]) == [None, None, None]
    assert queue.stats("mail").done == 2


def test_jobs_of_several_claims_are_acknowledged_with_their_results(queue: tenure.Queue) -> None:
    enqueue(queue, *"abcdef")
    queue.enqueue("mail", unique_key="one")
    jobs = [job for n in (3, 2, 2) for job in queue.claim("mail", limit=n)]
    results: list[Any] = [{"n": 1}, None, "text", None, [], None, 0]
    assert queue.ack_many(jobs, results) == [None] * 7
    assert [queue.get(job.id).result for job in jobs] == results
    queue.enqueue("mail", unique_key="one")  # the key is free again


@pytest.mark.parametrize("limit", [1, 3, 8, 20, 30])
def test_a_lane_is_claimed_in_order_whatever_the_sizes_of_claims(
    queue: tenure.Queue, path: Path, limit: int
) -> None:
    for priority in (2, 0, 1, 0):
        queue.enqueue_many(
            [tenure.NewJob(queue="mail", payload=n, priority=priority) for n in range(15)]
        )
    order: list[tuple[int, int]] = []
    while jobs := queue.claim("mail", limit=limit):
        order += [(job.priority, job.payload) for job in jobs]
        assert audit(path) == []
    assert [priority for priority, _ in order] == [0] * 30 + [1] * 15 + [2] * 15
    assert [n for _, n in order] == [*range(15)] * 4


def test_two_handles_that_write_in_turns_see_each_others_jobs(
    queue: tenure.Queue, other: tenure.Queue
) -> None:
    for _ in range(3):
        enqueue(queue, "a", "b")
        enqueue(other, "a", "c")
        assert sorted(claimed(queue, 2) + claimed(other, 2)) == ["a", "a", "b", "c"]


def test_a_limit_that_another_handle_sets_holds_at_once(
    queue: tenure.Queue, other: tenure.Queue
) -> None:
    enqueue(queue, *"aaab")
    assert claimed(queue, 1) == "a"
    other.limits.set("mail", tenant="a", concurrency=1)
    assert claimed(queue, 4) == "b"
    other.limits.clear("mail", tenant="a")
    other.pause("mail")
    assert claimed(queue, 4) == ""
    other.resume("mail")
    assert claimed(queue, 4) == "aa"


def test_limits_of_the_same_handle_hold_at_once(queue: tenure.Queue) -> None:
    enqueue(queue, *"aaabbb")
    queue.limits.set("mail", tenant="*", concurrency=1)
    assert claimed(queue, 6) == "ab"
    queue.limits.set("mail", tenant="b", concurrency=2)
    assert claimed(queue, 6) == "b"


def test_jobs_of_a_users_own_transaction_are_seen_after_its_commit(
    queue: tenure.Queue, path: Path
) -> None:
    enqueue(queue, "a", "b")
    with closing(sqlite3.connect(path)) as mine:
        for end in (mine.rollback, mine.commit):
            queue.enqueue("mail", tenant="a", priority=-1, connection=mine)
            end()
    assert claimed(queue, 5) == "aba"
    assert queue.stats().ready == 0


@contextmanager
def failing(target: Any, name: str, error: Exception) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, fail)
        yield


def test_what_was_rolled_back_is_not_in_the_books(queue: tenure.Queue) -> None:
    enqueue(queue, *"aabb")
    (held,) = queue.claim("mail")
    calls: list[Callable[[], object]] = [
        lambda: enqueue(queue, "c", priority=-9),
        lambda: queue.claim("mail", limit=3),
        lambda: queue.ack(held),
        lambda: queue.pause("mail", tenant="b"),
        lambda: queue.reconcile("mail"),
        lambda: queue.maintain(),
    ]
    for call in calls:
        with failing(Disk, "check", StoreError("no")), pytest.raises(StoreError):
            call()
        assert engine_of(queue)._books is None
        queue.slots.take("scope", "key", "me", 1)  # a commit, which keeps books again
    assert claimed(queue, 9) == "bab"
    queue.ack(held)


class FullDisk:
    """A connection whose next commit finds the disk full, which rolls the transaction back."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self._inner = inner
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, *params: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.full:
            self._inner.execute("ROLLBACK")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._inner.execute(sql, *params)


def test_a_commit_that_found_the_disk_full_is_not_in_the_books(queue: tenure.Queue) -> None:
    enqueue(queue, *"ab")
    engine = engine_of(queue)
    assert engine._writer is not None
    disk = FullDisk(engine._writer)
    engine._writer = disk  # type: ignore[assignment]
    disk.full = True
    for call in (lambda: enqueue(queue, "c"), lambda: queue.claim("mail", limit=2)):
        with pytest.raises(tenure.StoreFull):
            call()
    disk.full = False
    assert claimed(queue, 3) == "ab"


def test_an_operation_that_fails_within_a_batch_leaves_nothing_in_the_books(
    queue: tenure.Queue,
) -> None:
    enqueue(queue, *"ab")
    broken = failing(counters.Books, "flush", RuntimeError("in the middle"))
    with broken, pytest.raises(RuntimeError):
        enqueue(queue, "c")
    assert claimed(queue, 3) == "ab"


def test_counts_that_were_wrong_are_right_after_reconcile(queue: tenure.Queue, path: Path) -> None:
    enqueue(queue, *"aab")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE tenure_lanes SET ready = 0, open = 0, head_priority = NULL")
        db.execute("UPDATE tenure_tenants SET ready = 0, open = 0, open_lanes = 0")
    assert claimed(queue, 3) == ""
    queue.reconcile("mail")
    assert claimed(queue, 3) == "aba"


def test_lanes_that_maintenance_deleted_are_made_again(queue: tenure.Queue) -> None:
    enqueue(queue, *"ab")
    queue.delete(queue="mail")
    queue.maintain()
    enqueue(queue, *"ab")
    assert claimed(queue, 3) == "ab"


def test_a_backup_restored_into_the_open_file_replaces_the_books(
    queue: tenure.Queue, path: Path
) -> None:
    enqueue(queue, *"ab")
    backup = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    taken = queue.claim("mail", limit=2)
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)
    with pytest.raises(tenure.LeaseLost):
        queue.ack(taken[0])
    assert claimed(queue, 3) == "ab"


def test_an_ack_of_a_job_that_was_deleted_and_made_again_is_refused(queue: tenure.Queue) -> None:
    """Where a claimed job was stored, there may be another one by now."""
    queue.enqueue("mail", id="job")
    (old,) = queue.claim("mail")
    queue.delete("job")
    queue.enqueue("mail", id="other")  # gets the place of the first
    (new,) = queue.claim("mail")
    with pytest.raises(tenure.JobNotFound):
        queue.ack(old)
    queue.enqueue("mail", id="job")
    with pytest.raises(tenure.LeaseLost):
        queue.ack(old)
    queue.ack(new)


def test_an_ack_does_not_end_a_job_of_the_same_claim_that_was_imported(
    queue: tenure.Queue,
) -> None:
    """The jobs of a claim have one token, and an imported one may get the place of another."""
    enqueue(queue, *"ab")
    first, second = queue.claim("mail", limit=2)
    queue.delete(first.id)
    queue.delete(second.id)
    store_of(queue).do([ops.Import((ops.Entry(second),))])
    with pytest.raises(tenure.JobNotFound):
        queue.ack(first)
    assert queue.get(second.id).state is tenure.State.LEASED


def test_a_job_that_was_deleted_and_imported_with_its_lease_can_be_acked(
    queue: tenure.Queue,
) -> None:
    enqueue(queue, "a")
    (held,) = queue.claim("mail")
    queue.delete(held.id)
    enqueue(queue, "b")  # gets the place of the first
    store_of(queue).do([ops.Import((ops.Entry(held),))])
    queue.ack(held)
    assert queue.get(held.id).state is tenure.State.DONE


def test_few_books_are_kept(queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, books_kept=20)
    for n in range(50):
        enqueue(queue, *(f"{n}-{i}" for i in range(5)))
        queue.claim("mail", limit=3)
        books = books_of(queue)
        assert max(len(books._lanes), len(books._tenants), len(books.places)) <= 20 + 5


def test_a_lane_knows_few_of_its_jobs(queue: tenure.Queue) -> None:
    enqueue(queue, *"a" * 50, priority=5)
    enqueue(queue, *"a" * 50, priority=-5)
    for n in (1, 3, 40):
        claimed(queue, n)
        (lane,) = books_of(queue)._lanes.values()
        assert len(lane.line) <= counters.LINE
    assert [job.priority for job in queue.claim("mail", limit=7)] == [-5] * 6 + [5]


class Rig:
    """Two handles on one file, and the reference model, which do the same."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(1_800_000_000_000)
        self.path = path
        self.handles = [tenure.connect(f"sqlite:///{path}", clock=self.clock) for _ in range(2)]
        self.model = tenure.connect("memory://", clock=self.clock)
        self.held: dict[str, tuple[tenure.Job, tenure.Job]] = {}
        self.made = 0

    def both(self, call: Callable[[tenure.Queue], Any]) -> tuple[Any, Any]:
        """The results of a handle and of the model, or their errors."""
        return _result(call, self.random.choice(self.handles)), _result(call, self.model)

    def step(self) -> None:
        steps = (self.add, self.add, self.claim, self.claim, self.end, self.end, self.change,
                 self.keep_up, self.fail, self.within)  # fmt: skip
        self.random.choice(steps)()
        self.clock.advance(self.random.choice((0, 0.001, 1)))

    def new_jobs(self) -> list[tenure.NewJob]:
        choice = self.random.choice
        first, self.made = self.made, self.made + choice((1, 1, 4, 12))
        return [
            tenure.NewJob(
                queue=choice(("mail", "mail", "web")), id=f"job-{n}", tenant=choice("abcdef"),
                group=choice(("", "", "x", "y")), priority=choice((0, 0, 0, -1, 1)),
                delay=choice((0, 0, 0, 1)),
            )
            for n in range(first, self.made)
        ]  # fmt: skip

    def add(self) -> None:
        jobs = self.new_jobs()
        here, there = self.both(lambda queue: list(queue.enqueue_many(jobs)))
        assert here == there

    def within(self) -> None:
        """A user's own transaction, which is committed or not."""
        jobs, handle = self.new_jobs(), self.random.choice(self.handles)
        with closing(sqlite3.connect(self.path)) as mine:
            handle.enqueue_many(jobs, connection=mine)
            if self.random.random() < 0.5:
                mine.commit()
                self.model.enqueue_many(jobs)

    def fail(self) -> None:
        """A call that cannot be committed."""
        jobs, handle = self.new_jobs(), self.random.choice(self.handles)
        calls: list[Callable[[], object]] = [
            lambda: handle.enqueue_many(jobs),
            lambda: handle.claim(["mail", "web"], limit=5),
        ]
        with failing(Disk, "check", StoreError("no")), pytest.raises(StoreError):
            self.random.choice(calls)()

    def claim(self) -> None:
        limit, tenant = self.random.choice((1, 3, 10)), self.random.choice((None, None, "a"))
        queues = self.random.choice((["mail"], ["mail", "web"]))
        here, there = self.both(lambda queue: queue.claim(queues, limit=limit, tenant=tenant))
        assert [job.id for job in here] == [job.id for job in there]
        self.held |= {one.id: (one, two) for one, two in zip(here, there, strict=True)}

    def end(self) -> None:
        some = self.random.sample(sorted(self.held), min(len(self.held), self.random.randint(1, 6)))
        pairs = [self.held.pop(id) for id in some]
        handle, way = self.random.choice(self.handles), self.random.choice(("ack", "fail", "back"))
        for queue, jobs in ((handle, [p[0] for p in pairs]), (self.model, [p[1] for p in pairs])):
            if way == "ack":
                queue.ack_many(jobs)
                continue
            for job in jobs:
                with suppress(TenureError):  # it was cancelled, or deleted
                    if way == "fail":
                        queue.fail(job, "x", retry_in=0)
                    else:
                        queue.release(job)

    def change(self) -> None:
        choice = self.random.choice
        tenant, group = choice("abcdef*"), choice((None, None, "x", "*"))
        limit, weight = choice((1, 2, 5)), choice((1, 3))
        call = choice((
            lambda queue: queue.limits.set("mail", tenant=tenant, group=group, concurrency=limit),
            lambda queue: queue.limits.set("mail", tenant=tenant, weight=weight),
            lambda queue: queue.limits.clear("mail", tenant=tenant, group=group),
            lambda queue: queue.pause("mail", tenant=tenant.replace("*", "a")),
            lambda queue: queue.resume("mail", tenant=tenant.replace("*", "a")),
        ))  # fmt: skip
        self.both(call)

    def keep_up(self) -> None:
        job = f"job-{self.random.randrange(self.made + 1)}"
        here, there = self.both(self.random.choice((
            lambda queue: queue.maintain().total,
            lambda queue: queue.reconcile("mail"),
            lambda queue: queue.cancel(job),
            lambda queue: queue.delete(job),
        )))  # fmt: skip
        assert type(here) is type(there)

    def close(self) -> None:
        for queue in (*self.handles, self.model):
            queue.close()


def _result(call: Callable[[tenure.Queue], Any], queue: tenure.Queue) -> Any:
    try:
        return call(queue)
    except TenureError as error:
        return error


@pytest.mark.parametrize("kept", [3, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_two_handles_and_failing_calls_follow_the_model(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kept: int
) -> None:
    let(monkeypatch, books_kept=kept)
    rig = Rig(path, seed)
    for _ in range(150):
        rig.step()
    assert audit(path) == []
    assert rig.handles[0].stats().queues == rig.model.stats().queues
    rig.close()
    assert audit(path) == []
