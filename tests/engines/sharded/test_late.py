"""A claim waits only for a moment for a shard that does not respond; what it leases late is handed
on to the next claim."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import tenure
from tenure import Job, Queue, StoreError
from tenure.engines.sharded import shard
from tenure.engines.sharded.engine import ShardedEngine
from tenure.features.live_workers.data import Beat
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.crash.watched import PATIENCE, start, until
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_keyed_away import KEYS, claimed, good
from tests.engines.sharded.test_once import run
from tests.support.sizes import let

CLAIM = ops.Claim(("q",), "w", 60_000, 5)
Answered = Callable[[], None]  # lets the late answers arrive


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can wait until a shard is away, and what is kept stays so until a test says else."""
    let(monkeypatch, seconds_until_a_shard_is_away=600.0)
    let(monkeypatch, seconds_that_late_jobs_are_kept=600.0)
    let(monkeypatch, seconds_until_a_shard_is_silent=0.1)
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)
    monkeypatch.setattr(shard.Shard, "may_hang", True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(url: str, clock: ManualClock) -> Iterator[Queue]:
    with tenure.connect(url, clock=clock) as queue:
        yield queue


@contextmanager
def silent(queue: Queue, number: int, *names: str) -> Iterator[Answered]:
    """Calls of a shard's store are made, but do not return before they are told to."""
    store: Any = shards_of(queue)[number].store
    real = {name: getattr(store, name) for name in names}
    goes_on = threading.Event()

    def slow(name: str, *given: object) -> object:
        found = real[name](*given)
        assert goes_on.wait(2 * PATIENCE)
        return found

    def answered() -> None:
        goes_on.set()
        late_ = cluster_of(queue).late
        until(lambda: all(call.done() for call, _ in late_._unanswered.values()))

    for name in names:
        setattr(store, name, lambda *given, name=name: slow(name, *given))
    try:
        yield answered
    finally:
        for name in names:
            setattr(store, name, real[name])
        answered()


def cluster_of(queue: Queue) -> Any:
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    return engine.cluster


def soon(queue: Queue, claim: ops.Claim = CLAIM) -> list[Job]:
    """What a claim finds, within a moment."""
    (answer,) = start(store_of(queue).do, [claim]).result(PATIENCE)
    assert isinstance(answer, ops.Leased), answer
    return answer.jobs


def enqueue(queue: Queue, *tenants: str) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)


def of(tenants: Tenants, number: int) -> tuple[str, str]:
    return (tenants.there, tenants.there_too) if number else (tenants.here, tenants.here_too)


def both(queue: Queue) -> list[Job]:
    """Claim twice, so that every shard was asked first once."""
    return [job for _ in range(2) for job in soon(queue)]


def claim_all(queue: Queue, count: int) -> list[Job]:
    """Claim until there are so many jobs: on a busy machine, any shard may be late."""
    jobs: list[Job] = []

    def enough() -> bool:
        jobs.extend(soon(queue))
        return len(jobs) >= count

    until(enough)
    return jobs


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("names", [("apply",), ("apply", "read")])
def test_claims_go_on_without_a_silent_shard_which_is_not_away(
    queue: Queue, tenants: Tenants, number: int, names: tuple[str, ...]
) -> None:
    with silent(queue, number, *names):
        for _ in range(3):
            enqueue(queue, *of(tenants, 1 - number))
            assert {job.tenant for job in soon(queue)} == set(of(tenants, 1 - number))
        assert store_of(queue).away() == ()


def test_a_silent_shard_is_asked_only_once(queue: Queue, tenants: Tenants) -> None:
    asked: list[object] = []
    store: Any = shards_of(queue)[0].store
    apply = store.apply

    def noted(*given: object) -> object:
        asked.append(given)
        return apply(*given)

    store.apply = noted
    with silent(queue, 0, "apply"):
        for _ in range(6):
            soon(queue)
        assert len(asked) == 1
    both(queue)
    assert len(asked) == 3


@pytest.mark.parametrize("number", [0, 1])
def test_jobs_that_are_leased_late_go_to_the_next_equal_claim(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    enqueue(queue, *of(tenants, number), *of(tenants, number))
    woken = threading.Event()
    stop = queue.changes.listen(lambda queues: woken.set())
    with silent(queue, number, "apply") as answered:
        assert both(queue) == []
        woken.clear()
        answered()
        assert woken.wait(PATIENCE)
        first = soon(queue, ops.Claim(("q",), "w", 60_000, 3))
        assert len(first) == 3
    rest = soon(queue)
    stop()
    assert len({job.id for job in [*first, *rest]}) == 4
    assert {(job.attempts, job.token > 0) for job in [*first, *rest]} == {(1, True)}
    assert queue.ack_many([*first, *rest]) == [None] * 4


OTHERS = {
    "worker": ops.Claim(("q",), "other", 60_000, 5),
    "queues": ops.Claim(("q", "more"), "w", 60_000, 5),
    "lease": ops.Claim(("q",), "w", 61_000, 5),
    "groups": ops.Claim(("q",), "w", 60_000, 5, not_groups=("g",)),
    "tenant": ops.Claim(("q",), "w", 60_000, 5, tenant=""),
}


@pytest.mark.parametrize("other", OTHERS)
def test_no_other_claim_gets_them(queue: Queue, tenants: Tenants, other: str) -> None:
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        answered()
        until(lambda: len(cluster_of(queue).late._kept) == 1)
        assert soon(queue, OTHERS[other]) == []
        assert len(claim_all(queue, 1)) == 1


def test_the_order_of_the_queues_does_not_matter(queue: Queue, tenants: Tenants) -> None:
    """A worker asks for them in turns."""
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        for _ in range(2):
            assert soon(queue, ops.Claim(("q", "more"), "w", 60_000, 5)) == []
        answered()
        until(lambda: len(cluster_of(queue).late._kept) == 1)
        assert len(soon(queue, ops.Claim(("more", "q"), "w", 60_000, 5))) == 1


def test_jobs_that_nobody_claims_are_given_back_and_the_next_claim_waits_for_the_shard(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it always answers as late, nobody would ever get its jobs otherwise."""
    let(monkeypatch, seconds_that_late_jobs_are_kept=0.01)
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        answered()
        until(lambda: queue.stats().ready == 1)
    until(lambda: cluster_of(queue).late._unclaimed == {0})
    with silent(queue, 0, "apply") as answered:
        waits = start(store_of(queue).do, [OTHERS["worker"]])
        until(lambda: queue.stats().leased == 1)
        answered()
        assert len(waits.result(PATIENCE)[0].jobs) == 1
    assert cluster_of(queue).late._unclaimed == set()


def test_a_lease_that_has_lost_too_much_of_its_time_is_not_handed_on(
    queue: Queue, tenants: Tenants, clock: ManualClock
) -> None:
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        answered()
        until(lambda: len(cluster_of(queue).late._kept) == 1)
        clock.advance(16)
        assert soon(queue) == []


def test_close_gives_back_what_was_leased_late(url: str, tenants: Tenants) -> None:
    queue = tenure.connect(url)
    enqueue(queue, *of(tenants, 0))
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        closing = start(cluster_of(queue).late.close)  # without the counts that a handle stores
        until(lambda: cluster_of(queue).late._closed)
        assert not closing.done()
        answered()
        closing.result(PATIENCE)
        queue.close()
    with tenure.connect(url) as again:
        assert (again.stats().ready, again.stats().leased) == (2, 0)


def test_a_forked_process_does_not_hand_on_the_jobs_of_its_parent(
    queue: Queue, tenants: Tenants
) -> None:
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        answered()
        until(lambda: len(cluster_of(queue).late._kept) == 1)
    pid = os.fork()
    if pid == 0:
        os._exit(len(cluster_of(queue).late.take(CLAIM, 5)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(claim_all(queue, 1)) == 1


def test_a_shard_that_is_silent_for_long_is_away_and_its_late_jobs_are_given_back(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(queue, tenants.here)
    with silent(queue, 0, "apply") as answered:
        assert both(queue) == []
        let(monkeypatch, seconds_until_a_shard_is_away=0.05)
        until(lambda: soon(queue) == [] and store_of(queue).away() == ("0",))
        answered()
        until(lambda: queue.stats().leased == 0)
    assert shards_of(queue)[0].is_back()
    assert len(claim_all(queue, 1)) == 1


def test_a_shard_that_is_back_is_asked_although_an_old_call_still_hangs(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = shards_of(queue)[0].store
    works = store.apply
    with silent(queue, 0, "apply"):
        both(queue)
        let(monkeypatch, seconds_until_a_shard_is_away=0.05)
        until(lambda: soon(queue) == [] and store_of(queue).away() == ("0",))
        let(monkeypatch, seconds_until_a_shard_is_away=600.0)
        store.apply = works
        assert shards_of(queue)[0].is_back()
        enqueue(queue, tenants.here)
        assert len(claim_all(queue, 1)) == 1


def test_claims_get_all_jobs_if_every_shard_is_slow(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_until_a_shard_is_silent=0.01)
    enqueue(queue, *tenants, *tenants, *tenants)
    with ExitStack() as stack:
        for one in shards_of(queue):
            stack.callback(setattr, one.store, "apply", one.store.apply)  # type: ignore[union-attr]
            slow(one.store, 0.05)
        found: list[Job] = []

        def has_all() -> bool:
            found.extend(soon(queue))
            return len(found) >= 12

        until(has_all)
    assert len({job.id for job in found}) == len(found) == 12
    assert queue.ack_many(found) == [None] * 12


def slow(store: Any, seconds: float) -> None:
    apply = store.apply

    def later(*given: object) -> object:
        threading.Event().wait(seconds)
        return apply(*given)

    store.apply = later


@pytest.mark.parametrize("number", [0, 1])
def test_a_call_about_a_job_of_another_shard_does_not_wait_for_a_silent_one(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    enqueue(queue, of(tenants, 1 - number)[0])
    (job,) = claim_all(queue, 1)
    cluster_of(queue).locator.hints.clear()
    with silent(queue, number, "apply", "read"):
        assert start(queue.get, job.id).result(PATIENCE).id == job.id
        assert start(queue.ack, job).result(PATIENCE) is None
        assert store_of(queue).away() == ()


@pytest.mark.parametrize("number", [0, 1])
def test_a_live_worker_is_reported_to_the_shards_that_respond(
    queue: Queue, tenants: Tenants, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_until_a_shard_is_away=0.05)
    worker = tenure.LiveWorker("w", ("q",), "host", 1, "1", 1, (), 0, 0)
    with silent(queue, number, "apply"):
        beat = start(store_of(queue).do, [Beat(worker, 60_000)])
        assert beat.result(PATIENCE) == [ops.Ok()]
    assert [one.name for one in queue.workers()] == ["w"]


# Keyed calls, as every client of a service makes them --------------------------------------------


def keyed(queue: Queue, key: str, *batch: Any) -> Answer:
    return start(run, queue, key, *batch).result(PATIENCE)


@pytest.mark.parametrize("key", KEYS[:4])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("names", [("apply",), ("apply", "read")])
def test_keyed_claims_and_outcomes_go_on_without_a_silent_shard(
    queue: Queue, tenants: Tenants, key: str, number: int, names: tuple[str, ...]
) -> None:
    """The outcomes of its own jobs are sent again by the caller."""
    enqueue(queue, of(tenants, number)[0], of(tenants, 1 - number)[0])
    jobs = sorted(claim_all(queue, 2), key=lambda job: job.tenant == of(tenants, number)[0])
    other, mine = [ops.Ack(job.id, job.token) for job in jobs]
    enqueue(queue, *of(tenants, 1 - number))
    with silent(queue, number, *names) as answered:
        ack, failed, leased = good(keyed(queue, key, other, mine, CLAIM))
        assert ack == ops.Ok()
        assert isinstance(failed, tenure.OutcomeUnknown)
        assert isinstance(leased, ops.Leased)
        again = claimed(keyed(queue, f"{key} again", CLAIM))
        assert len([*leased.jobs, *again]) == 2
        assert store_of(queue).away() == ()
        answered()
    assert not isinstance(good(keyed(queue, "later", mine))[0], StoreError)
    assert queue.get(mine.id).state == "done"


def late_claim(queue: Queue, tenants: Tenants, answered: Answered) -> str:
    """A keyed claim finds nothing; its jobs are leased late. Returns its key."""
    for n in range(20):
        assert claimed(keyed(queue, f"late {n}", CLAIM)) == []
        if queue.stats().leased:
            answered()
            return f"late {n}"
    raise AssertionError("the shard was never asked")


def kept(queue: Queue) -> int:
    return len(cluster_of(queue).late._kept)


@pytest.mark.parametrize("number", [0, 1])
def test_late_jobs_of_a_keyed_claim_go_to_the_next_one_and_to_no_repetition(
    queue: Queue, url: str, clock: ManualClock, tenants: Tenants, number: int
) -> None:
    enqueue(queue, of(tenants, number)[0])
    with silent(queue, number, "apply") as answered:
        key = late_claim(queue, tenants, answered)
    until(lambda: kept(queue) == 1)
    assert claimed(keyed(queue, "other worker", OTHERS["worker"])) == []
    with tenure.connect(url, clock=clock) as other:
        assert claimed(run(other, key, CLAIM)) == []
        assert claimed(run(queue, key, CLAIM)) == []
        (job,) = claimed(keyed(queue, "next", CLAIM))
        assert claimed(run(other, key, CLAIM)) == []
    queue.ack(job)


@pytest.mark.parametrize("number", [0, 1])
def test_late_jobs_that_a_repetition_has_returned_are_not_handed_on(
    queue: Queue, url: str, clock: ManualClock, tenants: Tenants, number: int
) -> None:
    enqueue(queue, of(tenants, number)[0])
    with silent(queue, number, "apply") as answered, tenure.connect(url, clock=clock) as other:
        key = late_claim(queue, tenants, lambda: None)
        (job,) = claimed(run(other, key, CLAIM))
        assert claimed(run(other, key, CLAIM)) == [job]
        answered()
    assert claimed(keyed(queue, "next", CLAIM)) == []
    assert kept(queue) == 0
    queue.ack(job)
