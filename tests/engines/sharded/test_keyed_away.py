"""Keyed calls, as every client of a service makes them, while a shard is away or comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations

import pytest

import tenure
from tenure import Job, Queue, StoreError, StoreFull
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_away import away
from tests.engines.sharded.test_once import run
from tests.support.sizes import let

KEYS = [f"key {n}" for n in range(8)]  # of which some prefer one shard, some the other
CLAIM = ops.Claim(("q",), "w", 600_000, 1)


@pytest.fixture(autouse=True)
def _try_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)


@pytest.fixture
def other(url: str, queue: Queue) -> Iterator[Queue]:
    """Another process, which claimed nothing."""
    with tenure.connect(url) as other:
        yield other


@contextmanager
def both_away(queue: Queue, other: Queue, number: int) -> Iterator[None]:
    with away(queue, number), away(other, number):
        yield


def good(answer: Answer) -> list[Answer]:
    assert isinstance(answer, ops.Answers), answer
    return answer.answers


def claimed(answer: Answer) -> list[Job]:
    (leased,) = good(answer)
    assert isinstance(leased, ops.Leased)
    return leased.jobs


def on(tenants: Tenants, number: int) -> str:
    return tenants.there if number == 1 else tenants.here


@pytest.mark.parametrize("absent", [0, 1])
def test_no_call_of_another_tenant_fails(
    queue: Queue, other: Queue, tenants: Tenants, absent: int
) -> None:
    for _ in KEYS:
        queue.enqueue("q", tenant=on(tenants, 1 - absent))
        queue.enqueue("q", tenant=on(tenants, absent))
    with both_away(queue, other, absent):
        for key in KEYS:
            (job,) = claimed(run(queue, f"claim {key}", CLAIM))
            acks = ops.Ack(job.id, job.token)
            process = queue if KEYS.index(key) % 2 else other
            assert good(run(process, f"ack {key}", acks)) == [ops.Ok()]
            cancel = ops.Cancel((job.id,))
            assert good(run(other, f"cancel {key}", cancel)) == [ops.Changed(0)]
    assert (queue.stats().done, queue.stats().ready) == (len(KEYS), len(KEYS))


@pytest.mark.parametrize("full", [0, 1])
def test_a_shard_that_can_only_be_read_is_home_to_no_call_of_another_tenant(
    queue: Queue, tenants: Tenants, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full. It is not away, so it is asked first."""

    def no_space(*given: object) -> list[Answer]:
        raise StoreFull("no space left on device")

    for _ in KEYS:
        queue.enqueue("q", tenant=on(tenants, 1 - full))
    monkeypatch.setattr(shards_of(queue)[full].store, "apply", no_space)
    for key in KEYS:
        (job,) = claimed(run(queue, f"claim {key}", CLAIM))
        assert good(run(queue, f"ack {key}", ops.Ack(job.id, job.token))) == [ops.Ok()]


@pytest.mark.parametrize("absent", [0, 1])
def test_of_a_batch_only_the_operations_on_the_absent_shard_fail(
    queue: Queue, other: Queue, tenants: Tenants, absent: int
) -> None:
    for _ in KEYS:
        for tenant in (tenants.here, tenants.there):
            queue.enqueue("q", tenant=tenant)
    jobs = queue.claim("q", limit=2 * len(KEYS))
    here = [job for job in jobs if job.tenant == on(tenants, 1 - absent)]
    there = [job for job in jobs if job.tenant == on(tenants, absent)]
    for process in (queue, other):  # one knows where they are, one does not
        for key in KEYS[:4]:
            one, two = here.pop(), there.pop()
            new = ops.Enqueue((JobSpec(f"{key} {id(process)}", "new", NULL, tenant=one.tenant),))
            batch = (ops.Ack(two.id, two.token), ops.Ack(one.id, one.token), new)
            with away(process, absent):
                failed, ack, enqueued = good(run(process, f"{key} {id(process)}", *batch))
                assert isinstance(failed, StoreError)
                assert ack == ops.Ok()
                assert isinstance(enqueued, ops.Enqueued)
            again = run(process, f"{key} {id(process)}", *batch)
            assert good(again) == [ops.Ok(), ops.Ok(), enqueued]
    assert queue.stats().done == 16


@pytest.mark.parametrize("absent", [0, 1])
def test_a_claim_is_found_again_when_the_shard_is_back(
    queue: Queue, other: Queue, tenants: Tenants, absent: int
) -> None:
    for _ in KEYS:
        for tenant in (tenants.here, tenants.there):
            queue.enqueue("q", tenant=tenant)
    for key in KEYS:
        with away(queue, absent):
            jobs = claimed(run(queue, key, CLAIM))
        assert len(jobs) == 1
        assert claimed(run(other, key, CLAIM)) == jobs
        assert claimed(run(queue, key, CLAIM)) == jobs
    assert queue.stats().leased == len(KEYS)


def test_a_claim_that_meets_the_failing_shard_finds_nothing_and_is_not_repeated_elsewhere(
    queue: Queue, other: Queue, tenants: Tenants
) -> None:
    """Its routes are stored, but the shard that it goes to does not respond."""
    job = queue.enqueue("q", tenant=tenants.there)
    key = next(
        f"key {n}"
        for n in range(20)
        if store_of(queue).engine.placing.order_of_call(f"key {n}")[0] == 0  # type: ignore[attr-defined]
    )
    assert claimed(run(queue, key, CLAIM))[0].id == job.id
    queue.enqueue("q", tenant=tenants.here)
    with away(other):
        assert claimed(run(other, key, CLAIM)) == []
    assert claimed(run(other, key, CLAIM))[0].id == job.id
    assert queue.stats().leased == 1


ABSENCES = [*permutations([0, 1, None]), (0, 1, 0), (1, 0, 1), (0, 0, None), (1, None, 1)]


@pytest.mark.parametrize("absences", ABSENCES, ids=str)
def test_a_call_is_applied_once_whichever_shard_is_away_at_each_try(
    queue: Queue, other: Queue, tenants: Tenants, absences: tuple[int | None, ...]
) -> None:
    """A replay that is applied twice runs the job again."""

    runs: Counter[str] = Counter()

    def die(process: Queue) -> None:
        for job in process.claim("q", limit=10):
            runs[job.id] += 1
            process.fail(job, "no", fatal=True)

    for key in KEYS[:2]:
        ids = [queue.enqueue("q", tenant=t, id=f"{t} {key}").id for t in tenants[1:3]]
        die(queue)
        batch: tuple[Op, ...] = (*[ops.Replay((id,)) for id in ids], ops.Replay(tuple(ids)))
        for absent, process in zip((*absences, None), (queue, other, queue, other), strict=True):
            with ExitStack() as stack:
                if absent is not None:
                    stack.enter_context(both_away(queue, other, absent))
                run(process, key, *batch)
            die(queue)
        final = good(run(queue, key, *batch))
        assert not any(isinstance(one, StoreError) for one in final)
        for id in ids:
            assert queue.get(id).state == "dead"
            assert 2 <= runs[id] <= 3  # one of the call's two replays may have come later
