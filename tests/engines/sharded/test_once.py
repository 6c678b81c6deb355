"""A Once over several shards is applied once, whatever dies in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import tenure
from tenure import Conflict, OutcomeUnknown, Queue, StoreError
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tests.engines.sharded.conftest import Tenants, shards_of


def enqueue(job_id: str, tenant: str) -> ops.Enqueue:
    return ops.Enqueue((JobSpec(job_id, "q", NULL, tenant=tenant),))


def run(queue: Queue, key: str, *batch: Op) -> Answer:
    (answer,) = store_of(queue).engine.apply([ops.Once(key, batch)])
    return answer


@pytest.fixture(params=range(6))
def key(request: pytest.FixtureRequest) -> str:
    """Keys of which some are at home on one shard, some on the other."""
    return f"key-{request.param}"


@pytest.fixture
def again(url: str) -> Iterator[Queue]:
    """Another process, later: it remembers nothing."""
    with tenure.connect(url) as queue:
        yield queue


def test_a_repetition_returns_what_was_returned(
    queue: Queue, again: Queue, tenants: Tenants, key: str
) -> None:
    batch = (enqueue("a", tenants.here), enqueue("b", tenants.there), ops.Pause("other"))
    first = run(queue, key, *batch)
    assert isinstance(first, ops.Answers)
    assert run(again, key, *batch) == first
    assert again.stats().ready == 2


def test_a_claim_is_repeated_with_the_jobs_it_still_holds(
    queue: Queue, again: Queue, tenants: Tenants, key: str
) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)
    claim = ops.Claim(("q",), "w", 60_000, limit=2)
    first = run(queue, key, claim)
    assert isinstance(first, ops.Answers)
    assert isinstance(first.answers[0], ops.Leased)
    assert len(first.answers[0].jobs) == 2
    assert run(again, key, claim) == first
    queue.ack_many(first.answers[0].jobs)
    assert run(again, key, claim) == ops.Answers([ops.Leased([])])
    assert again.stats().ready == 2


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_claim_finds_the_job_that_the_same_call_adds(
    queue: Queue, tenants: Tenants, key: str, where: str
) -> None:
    job = enqueue("a", getattr(tenants, where))
    answer = run(queue, key, job, ops.Claim(("q",), "w", 1000, 1))
    assert isinstance(answer, ops.Answers)
    (_, leased) = answer.answers
    assert isinstance(leased, ops.Leased)
    assert [one.id for one in leased.jobs] == ["a"]


def test_what_is_gone_is_not_looked_for_again(
    queue: Queue, again: Queue, tenants: Tenants, key: str
) -> None:
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("q", id=f"of {tenant}", tenant=tenant)
    acks = [ops.Ack(job.id, job.token, keep=False) for job in queue.claim("q", limit=2)]
    first = run(queue, key, *acks, ops.Cancel(("nobody", "of nobody")))
    assert first == ops.Answers([ops.Ok(), ops.Ok(), ops.Changed(0, ("nobody", "of nobody"))])
    assert run(again, key, *acks, ops.Cancel(("nobody", "of nobody"))) == first


def everything(queue: Queue, tenants: Tenants) -> tuple[Op, ...]:
    """Operations on both shards, of which some are found by id and some take a turn."""
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("work", id=f"leased {tenant}", tenant=tenant)
        queue.enqueue("more", id=f"claimable {tenant}", tenant=tenant)
        queue.enqueue("idle", id=f"idle {tenant}", tenant=tenant)
    leased = queue.claim("work", limit=2)
    return (
        enqueue("new 0", tenants.here),
        enqueue("new 1", tenants.there),
        *[ops.Ack(job.id, job.token, keep=False) for job in leased],
        ops.Claim(("more",), "w", 60_000, limit=1),
        ops.Cancel((f"idle {tenants.here}", f"idle {tenants.there}")),
    )


def check(queue: Queue, tenants: Tenants, answer: Answer) -> None:
    """All of `everything` was done, and once."""
    assert isinstance(answer, ops.Answers)
    new, other, one_ack, other_ack, claimed, cancelled = answer.answers
    assert isinstance(new, ops.Enqueued)
    assert isinstance(other, ops.Enqueued)
    assert [*new.created, *other.created] == [True, True]
    assert (one_ack, other_ack, cancelled) == (ops.Ok(), ops.Ok(), ops.Changed(2))
    assert isinstance(claimed, ops.Leased)
    assert len(claimed.jobs) == 1
    counts = queue.stats()
    assert (counts.ready, counts.leased, counts.cancelled, counts.done) == (3, 1, 2, 0)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_shard_that_fails_is_finished_by_the_repetition(
    queue: Queue, again: Queue, tenants: Tenants, key: str, failing: int
) -> None:
    batch = everything(queue, tenants)
    store = shards_of(queue)[failing].store
    assert store is not None
    works = store.apply

    def fails(*given: object) -> list[Answer]:
        raise StoreError("the disk is gone")

    store.apply = fails  # type: ignore[method-assign, assignment]
    answer = run(queue, key, *batch)
    assert isinstance(answer, ops.Answers)
    kinds = [type(one) for one in answer.answers]
    assert kinds[failing] is StoreError
    assert kinds[1 - failing] is ops.Enqueued
    assert sorted(kind.__name__ for kind in kinds[2:4]) == ["Ok", "StoreError"]
    store.apply = works  # type: ignore[method-assign]
    check(again, tenants, run(again, key, *batch))
    check(again, tenants, run(again, key, *batch))


@pytest.mark.parametrize("commits", [1, 2])
def test_a_process_that_is_killed_between_two_shards_is_finished_by_the_repetition(
    queue: Queue, again: Queue, tenants: Tenants, key: str, commits: int, url: str
) -> None:
    batch = everything(queue, tenants)
    pid = os.fork()
    if pid == 0:
        try:
            _die_after(url, commits, key, batch)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    check(again, tenants, run(again, key, *batch))


def _die_after(url: str, commits: int, key: str, batch: tuple[Op, ...]) -> None:
    """Kill this process as soon as so many of its shards have committed."""
    own = tenure.connect(url)
    done = [0]
    for shard in shards_of(own):
        store = shard.open()
        store.apply = partial(_apply_or_die, store.apply, done, commits)  # type: ignore
    run(own, key, *batch)


def _apply_or_die(
    apply: Callable[..., list[Answer]],
    done: list[int],
    commits: int,
    *given: object,
) -> list[Answer]:
    if done[0] < commits:
        answers = apply(*given)
        done[0] += 1
        if done[0] < commits:
            return answers
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_an_unfinished_call_says_that_it_can_be_repeated(
    queue: Queue, tenants: Tenants, tmp_path: Path
) -> None:
    store = shards_of(queue)[1].store
    assert store is not None
    works = store.apply

    def fails(*given: object) -> list[Answer]:
        raise StoreError("the disk is gone")

    store.apply = fails  # type: ignore[method-assign, assignment]
    answer = run(queue, "k", enqueue("a", tenants.here), enqueue("b", tenants.there))
    store.apply = works  # type: ignore[method-assign]
    assert isinstance(answer, ops.Answers)
    done, failed = answer.answers
    assert isinstance(done, ops.Enqueued)
    assert isinstance(failed, OutcomeUnknown)
    assert "the same key finishes it" in failed.message


def test_calls_that_come_together_keep_their_order(queue: Queue, tenants: Tenants) -> None:
    """Whether their routes are stored or not."""
    queue.enqueue("other", id="old", tenant=tenants.here)
    calls = [
        ops.Once("first", (ops.Cancel(("old",)), enqueue("a", tenants.here))),
        ops.Once("second", (enqueue("b", tenants.here),)),
    ]
    assert all(isinstance(one, ops.Answers) for one in store_of(queue).engine.apply(calls))
    assert [job.id for job in queue.claim("q", limit=2)] == ["a", "b"]


def test_a_key_of_other_operations_rejects_the_whole_call(queue: Queue, tenants: Tenants) -> None:
    assert isinstance(run(queue, "key", enqueue("a", tenants.here)), ops.Answers)
    both = enqueue("b", tenants.here), enqueue("c", tenants.there)
    assert isinstance(run(queue, "key", *both), Conflict)
    assert isinstance(run(queue, "key", *both, ops.Cancel(("a",))), Conflict)
