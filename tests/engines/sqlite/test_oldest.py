"""The oldest ready job is found without looking at all lanes, and is the same as if all were."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

import tenure
from tenure import Job, NewJob
from tenure.engines.sqlite.db import Db
from tenure.engines.sqlite.oldest import OldestReady
from tenure.engines.sqlite.sqlite_statements import SQL
from tenure.testing import ManualClock
from tests.support.sizes import let


class Store:
    """A file that is read by one who remembers, and by one who does not."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.queue = tenure.connect(f"sqlite:///{path}", clock=clock)
        self.connection = sqlite3.connect(path)
        self.steps = self.looks = 0
        self.connection.set_progress_handler(self._step, 1)
        self.connection.set_trace_callback(self._statement)
        self._oldest = OldestReady()

    def _step(self) -> int:
        self.steps += 1
        return 0

    def _statement(self, text: str) -> None:
        self.looks += "WITH RECURSIVE heads" in text

    def remembered(self) -> int | None:
        return self._oldest.find(Db(self.connection), 1, self.clock.now_ms())

    def exact(self) -> int | None:
        with closing(self.connection.execute(SQL["oldest_in_lines"], {"queue": 1})) as rows:
            found: int | None = rows.fetchone()[0]
            return found

    def close(self) -> None:
        self.connection.close()
        self.queue.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "jobs.db", ManualClock())
    yield store
    store.close()


def random_step(store: Store, chance: Random, held: list[Job]) -> None:
    queue = store.queue

    def enqueue() -> None:
        new = [
            NewJob(
                queue="q",
                tenant=f"t{chance.randrange(6)}",
                group=f"g{chance.randrange(2)}",
                priority=chance.choice([0, 0, 5]),
                delay=chance.choice([0, 0, 0, 20]),
                unique_key=chance.choice([None, None, secrets.token_hex(8)]),
            )
            for _ in range(chance.randrange(1, 6))
        ]
        queue.enqueue_many(new)

    def claim() -> None:
        held.extend(queue.claim("q", limit=chance.randrange(1, 8), lease=chance.choice([5, 500])))

    def end() -> None:
        job = held.pop(chance.randrange(len(held)))
        how: list[Callable[[], object]] = [
            lambda: queue.ack(job),
            lambda: queue.ack(job),
            lambda: queue.release(job),
            lambda: queue.fail(job, "x", retry_in=chance.choice([0, 7])),
        ]
        try:
            chance.choice(how)()
        except (tenure.LeaseLost, tenure.JobNotFound):
            return
        if chance.random() < 0.5 and queue.get(job.id).state == "done":
            queue.delete(job.id)  # the newest seqs are used again

    def change() -> None:
        jobs = queue.jobs(queue="q", state="pending", limit=20).jobs
        if jobs:
            queue.update(chance.choice(jobs).id, priority=chance.choice([0, 5]))

    steps: list[Callable[[], object]] = [enqueue, claim, claim, change, queue.maintain]
    steps += [end] * 6 if held else []
    chance.choice(steps)()


@pytest.mark.parametrize("seed", range(12))
def test_what_is_remembered_is_what_all_lanes_say(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    if seed % 3:
        let(monkeypatch, lines_of_oldest_jobs=4)
        let(monkeypatch, lanes_changed_before_oldest_are_read_anew=3)
        let(monkeypatch, oldest_jobs_looked_up_at_once=chance.choice([1, 2, 100]))
        let(monkeypatch, rounds_for_oldest_jobs=chance.choice([2, 20]))
    let(monkeypatch, age_of_the_oldest_jobs_ms=chance.choice([0, 2_000]))
    if seed % 2:
        let(monkeypatch, oldest_jobs_remembered=5)
    held: list[Job] = []
    store.queue.enqueue("q")
    for _ in range(250):
        random_step(store, chance, held)
        if chance.random() < 0.7:
            store.clock.advance(chance.choice([0.001, 1, 3]))
        if chance.random() < 0.6:
            assert store.remembered() == store.exact()


def test_what_is_read_does_not_depend_on_the_number_of_lanes(store: Store) -> None:
    spent = {}
    for lanes in (200, 3_000):
        store.queue.enqueue_many(NewJob(queue="q", tenant=f"t{n}") for n in range(lanes))
        store.clock.advance(60)
        store.remembered()
        store.queue.ack_many(store.queue.claim("q", limit=1))
        assert store.remembered() == store.exact()
        store.steps = store.looks = 0
        store.remembered()
        assert store.looks == 0
        spent[lanes] = store.steps
    assert spent[3_000] < 1.1 * spent[200]


def test_all_lanes_are_looked_at_once_for_many_claims(store: Store) -> None:
    """Jobs that are claimed, and new ones, do not make it look at all again."""
    store.queue.enqueue_many(NewJob(queue="q", tenant=f"t{n % 200}") for n in range(1_000))
    store.clock.advance(60)
    store.remembered()
    store.looks = 0
    for _ in range(90):
        store.clock.advance(1)
        store.queue.ack_many(store.queue.claim("q", limit=10))
        store.queue.enqueue("q")
        assert store.remembered() is not None
    assert store.looks == 0
    assert store.remembered() == store.exact()


def test_a_reader_of_an_older_snapshot_does_not_use_what_a_newer_one_has_seen(
    store: Store, tmp_path: Path
) -> None:
    store.queue.enqueue("q", tenant="a")
    store.clock.advance(1)
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as older:
        older.execute("BEGIN")
        older.execute("SELECT count(*) FROM tenure_jobs").fetchall()
        store.queue.ack(store.queue.claim("q")[0])
        store.queue.enqueue("q", tenant="b")
        since = store.clock.now_ms()
        assert store.remembered() == since
        assert store._oldest.find(Db(older), 1, since) == since - 1_000
    assert store.remembered() == since


def test_a_new_job_with_the_seq_of_a_deleted_one_is_not_taken_for_it(store: Store) -> None:
    queue = store.queue
    queue.enqueue_many([NewJob(queue="q", tenant="z"), NewJob(queue="q", tenant="y")])
    assert store.remembered() == store.clock.now_ms()
    for job in queue.claim("q", limit=2):
        queue.ack(job)
        queue.delete(job.id)
    store.clock.advance(1)
    queue.enqueue("q", tenant="x")
    since = store.clock.now_ms()
    store.clock.advance(1)
    queue.enqueue("q", tenant="y")
    assert store.remembered() == since


def test_a_clock_that_was_set_back_is_noticed(store: Store) -> None:
    store.queue.enqueue("q", tenant="a")
    store.clock.advance(100)
    assert store.remembered() == store.clock.now_ms() - 100_000
    store.clock.advance(-160)
    store.queue.enqueue("q", tenant="b")
    assert store.remembered() == store.clock.now_ms()


def test_jobs_that_can_expire_are_not_in_the_index_of_changed_jobs(
    store: Store, tmp_path: Path
) -> None:
    def changed() -> int:
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            ((count,),) = db.execute(
                "SELECT count(*) FROM tenure_states INDEXED BY tenure_states_ready "
                "WHERE state = 2 AND at >= 0"
            )
        return int(count)

    store.queue.enqueue_many(NewJob(queue="q", expires_in=600) for _ in range(3))
    assert changed() == 0
    store.queue.release(store.queue.claim("q")[0])
    assert changed() == 1
    assert store.remembered() == store.exact()
