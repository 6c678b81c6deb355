"""A job with many children tells them in steps, so that nobody waits long for the file."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure import Job, NewJob, Queue, State
from tenure.features.why import data as why
from tenure.model import ops, queries
from tenure.model.job import IfParentFails
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.support.audit import audit
from tests.support.sizes import let

STEP = 3


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, children_told_in_a_step=STEP)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=ManualClock()) as queue:
        yield queue
        assert audit(tmp_path / "jobs.db") == []


def take_parent(queue: Queue, children: int, fails: IfParentFails = "cancel") -> Job:
    """A leased job `p` that children of another queue wait for: c0, c1, ..."""
    queue.enqueue("p", id="p")
    for n in range(children):
        queue.enqueue("c", id=f"c{n}", after=["p"], if_parent_fails=fails)
    (job,) = queue.claim("p", lease=3600)
    return job


def states(queue: Queue) -> dict[str, str]:
    return {job.id: job.state.value for job in queue.jobs(limit=1000).jobs}


def counts(queue: Queue) -> tuple[int, int]:
    """How many children wait, and how many are ready."""
    found = queue.stats("c")
    return found.waiting, found.ready


def untold(path: Path) -> int:
    with closing(sqlite3.connect(path / "jobs.db")) as db:
        return int(db.execute("SELECT count(*) FROM tenure_untold").fetchone()[0])


def test_an_ack_releases_the_first_children_and_each_claim_the_next(queue: Queue) -> None:
    job = take_parent(queue, 10)
    queue.ack(job)
    assert queue.get("p").state is State.DONE
    assert counts(queue) == (7, 3)
    taken = []
    while jobs := queue.claim("c", limit=4):
        taken += [job.id for job in jobs]
        assert counts(queue)[0] == max(0, 7 - STEP * ((len(taken) + 3) // 4))
    assert taken == [f"c{n}" for n in range(10)]


def test_a_claim_of_another_queue_goes_on_too(queue: Queue, tmp_path: Path) -> None:
    queue.ack(take_parent(queue, 10))
    queue.enqueue("else")
    for waiting in (4, 1, 0, 0):
        queue.claim("else")
        assert counts(queue)[0] == waiting
    assert untold(tmp_path) == 0


def test_all_operations_of_a_transaction_share_a_step(queue: Queue) -> None:
    for parent in ("a", "b"):
        queue.enqueue("p", id=parent)
        for n in range(4):
            queue.enqueue("c", id=f"{parent}{n}", after=[parent])
    queue.ack_many(queue.claim("p", limit=2))
    assert counts(queue) == (8 - STEP, STEP)
    queue.maintain()
    assert counts(queue) == (0, 8)


def test_maintenance_tells_all_of_them_in_several_commits(queue: Queue, tmp_path: Path) -> None:
    queue.ack(take_parent(queue, 20))
    assert queue.maintain().total == 0
    assert counts(queue) == (0, 20)
    assert untold(tmp_path) == 0


def test_a_parent_that_is_not_kept_releases_all_its_children(queue: Queue) -> None:
    queue.ack(take_parent(queue, 10), keep=False)
    assert counts(queue) == (7, 3)
    queue.maintain()
    assert counts(queue) == (0, 10)


def test_the_number_of_a_parent_that_is_gone_is_not_used_again(
    queue: Queue, tmp_path: Path
) -> None:
    """It has the highest number if its children come first in the call."""
    news = [NewJob(queue="c", id=f"c{n}", after=["p"]) for n in range(6)]
    queue.enqueue_many([*news, NewJob(queue="p", id="p")])
    queue.ack(queue.claim("p")[0], keep=False)
    # A handle without books in memory:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=queue.clock) as second:
        second.enqueue("p", id="another")
    (reason,) = (one for one in queue.explain("c5").reasons if isinstance(one, why.WaitsFor))
    assert (reason.parents, reason.count) == ([], 0)
    assert reason.text == "The jobs that it waited for have ended; it learns of that in a moment."
    queue.maintain()
    assert counts(queue) == (0, 6)


def test_the_number_of_a_child_that_is_gone_is_not_used_again(queue: Queue, tmp_path: Path) -> None:
    """A job with that number would be told what happened before it was enqueued."""
    queue.fail(take_parent(queue, 10), "boom", fatal=True)
    queue.delete("c9")
    queue.replay("p")
    # A handle without books in memory:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=queue.clock) as second:
        second.enqueue("c", id="new", after=["p"], if_parent_fails="cancel")
    queue.maintain()
    assert states(queue)["new"] == "waiting"


def test_a_worker_need_not_wait_for_its_next_poll_to_go_on(queue: Queue) -> None:
    """The children of its queue may come after those of others, so that a claim finds nothing."""
    job = take_parent(queue, 10)
    queue.enqueue("late", id="late", after=["p"])
    assert queue.next_due(["late"]) is None
    queue.ack(job)
    assert queue.next_due(["no such queue"]) is None  # its claims tell nobody
    found: list[Job] = []
    while not found:
        assert queue.next_due(["late"]) == queue.clock.now_ms()
        found = queue.claim("late")
    assert found[0].id == "late"


def test_a_child_that_was_not_told_yet_says_what_it_waits_for(queue: Queue) -> None:
    job = take_parent(queue, 6)
    queue.enqueue("p", id="a")
    queue.enqueue("c", id="both", after=["a", "p"])
    queue.ack(job)
    (reason,) = queue.explain("c5").reasons
    assert isinstance(reason, why.WaitsFor)
    assert reason.text == "The jobs that it waited for have ended; it learns of that in a moment."
    (reason,) = queue.explain("both").reasons
    assert reason.text == "It waits for a, which is pending, and 1 more."
    queue.maintain()
    (reason,) = queue.explain("both").reasons
    assert reason.text == "It waits for a, which is pending."


def test_children_of_a_failed_parent_learn_of_it_although_it_was_replayed(queue: Queue) -> None:
    queue.fail(take_parent(queue, 10), "boom", fatal=True)
    assert list(states(queue).values()).count("cancelled") == STEP
    queue.replay("p")
    queue.enqueue("c", id="new", after=["p"], if_parent_fails="cancel")
    queue.maintain()
    expected = {f"c{n}": "cancelled" for n in range(10)}
    assert states(queue) == {**expected, "p": "pending", "new": "waiting"}
    queue.ack(queue.claim("p")[0])
    assert states(queue)["new"] == "pending"


def test_children_learn_in_order_what_happened_to_their_parent(queue: Queue) -> None:
    """It fails, is replayed and done before all of them have learned of the first."""
    job = take_parent(queue, 10)
    for n in range(5):
        queue.enqueue("c", id=f"w{n}", after=["p"], if_parent_fails="wait")
    queue.fail(job, "boom", fatal=True)
    queue.replay("p")
    queue.ack(queue.claim("p")[0])
    found = states(queue)
    assert [found[f"c{n}"] for n in range(10)] == ["cancelled"] * 6 + ["waiting"] * 4
    queue.maintain()
    found = states(queue)
    assert [found[f"c{n}"] for n in range(10)] == ["cancelled"] * 10
    assert [found[f"w{n}"] for n in range(5)] == ["pending"] * 5


def test_children_of_a_failed_parent_learn_that_it_was_deleted_besides(queue: Queue) -> None:
    job = take_parent(queue, 5)
    for n in range(5):
        queue.enqueue("c", id=f"w{n}", after=["p"], if_parent_fails="wait")
    queue.fail(job, "boom", fatal=True)
    queue.delete("p")
    queue.maintain()
    found = states(queue)
    assert [found[f"c{n}"] for n in range(5)] == ["cancelled"] * 5
    assert [found[f"w{n}"] for n in range(5)] == ["dead"] * 5


def test_a_done_parent_may_be_deleted_before_all_have_learned_of_it(queue: Queue) -> None:
    queue.ack(take_parent(queue, 10))
    assert queue.delete("p") == 1
    queue.maintain()
    assert counts(queue) == (0, 10)


def test_a_child_that_ends_by_itself_is_not_told(queue: Queue, tmp_path: Path) -> None:
    queue.ack(take_parent(queue, 10))
    queue.cancel("c8")
    queue.delete("c9")
    queue.maintain()
    assert counts(queue) == (0, 8)
    assert queue.get("c8").state is State.CANCELLED
    assert untold(tmp_path) == 0


def test_children_of_children_are_told_in_steps(queue: Queue) -> None:
    queue.enqueue("c", id="j0")
    for n in range(1, 20):
        queue.enqueue("c", id=f"j{n}", after=[f"j{n - 1}"], if_parent_fails="cancel")
    queue.cancel("j0")
    assert list(states(queue).values()).count("cancelled") == 1 + STEP
    queue.maintain()
    assert set(states(queue).values()) == {"cancelled"}


def test_another_handle_goes_on(queue: Queue, tmp_path: Path) -> None:
    queue.ack(take_parent(queue, 10))
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=queue.clock) as second:
        assert [job.id for job in second.claim("c", limit=5)] == [f"c{n}" for n in range(5)]
        assert counts(queue) == (4, 1)
        assert len(queue.claim("c", limit=9)) == 4
        assert len(second.claim("c", limit=9)) == 1


DIES = """
import os, signal, sys, tenure
from tenure.engines.sqlite import transaction
transaction.TOLD_PER_STEP = 3
queue = tenure.connect(sys.argv[1])
queue.ack(queue.claim("p")[0])
queue.claim("else")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_between_two_steps_loses_no_child(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with tenure.connect(url) as queue:
        queue.enqueue("p", id="p")
        queue.enqueue("else", delay=3600)
        queue.enqueue_many([NewJob(queue="c", id=f"c{n}", after=["p"]) for n in range(10)])
    done = subprocess.run([sys.executable, "-c", DIES, url], check=False)
    assert done.returncode == -signal.SIGKILL
    with tenure.connect(url) as queue:
        assert counts(queue) == (4, 6)
        assert [len(queue.claim("c", limit=9)) for _ in range(3)] == [9, 1, 0]
    assert audit(tmp_path / "jobs.db") == []


def test_jobs_that_were_not_told_yet_can_be_copied_to_another_store(
    queue: Queue, tmp_path: Path
) -> None:
    queue.ack(take_parent(queue, 10), keep=False)
    with tenure.connect(f"sqlite:///{tmp_path}/copy.db", clock=queue.clock) as copy:
        store_of(copy).do([ops.Import(tuple(store_of(queue).do(queries.Export()).entries))])
        assert counts(copy) == (0, 10)
    assert audit(tmp_path / "copy.db") == []


@pytest.mark.parametrize("seed", range(8))
def test_once_all_have_been_told_everything_is_as_in_the_model(queue: Queue, seed: int) -> None:
    chance = random.Random(seed)
    with tenure.connect("memory://", clock=queue.clock) as model:
        for n in range(120):
            known = sorted(states(model))
            change(chance, n, known, (queue, model))
            assert queue.maintain().total == model.maintain().total
            assert states(queue) == states(model)


def change(chance: random.Random, n: int, known: list[str], stores: tuple[Queue, Queue]) -> None:
    """The same change of both."""
    kind = chance.choice(("enqueue",) * 3 + ("ack", "fail", "cancel", "delete", "replay"))
    some = chance.sample(known, min(len(known), 3))
    fails: IfParentFails = chance.choice(("wait", "cancel", "run"))
    hub = [one for one in known if one.startswith("hub")]
    for store in stores:
        if kind == "enqueue":
            name, after = (f"hub{n}", some[:1]) if n % 7 == 0 else (f"j{n}", some[:1] + hub[-1:])
            store.enqueue("q", id=name, after=sorted(set(after)), if_parent_fails=fails)
        elif kind in ("ack", "fail"):
            for job in store.claim("q", limit=2, lease=86_400):
                store.ack(job) if kind == "ack" else store.fail(job, "boom", fatal=True)
        elif some:
            getattr(store, kind)(some[0])
