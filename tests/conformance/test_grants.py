"""Operations with a grant: what it does not allow looks as if it did not exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tenure import (
    DependencyNotFound,
    Duplicate,
    Forbidden,
    JobNotFound,
    LeaseLost,
    Queue,
    ScheduleNotFound,
    TenureError,
)
from tenure.model import ops, queries
from tenure.model.job import NULL, Job, JobSpec
from tenure.model.ops import Answer, Grant, Op
from tenure.queue import store_of
from tests.conformance.state import nothing_changes
from tests.support.feature_ops import is_run_now, kinds_named

pytestmark = pytest.mark.over_http

ACME = Grant(tenants=("acme", "zen"))
MAIL = Grant(queues=("mail",))
BOTH = Grant(queues=("mail",), tenants=("acme",))
HIDES = [
    (ACME, "mail", "other"),
    (ACME, "mail", ""),
    (MAIL, "post", "acme"),
    (BOTH, "mail", "other"),
    (BOTH, "post", "acme"),
    (Grant(tenants=()), "mail", "acme"),
]
hides = pytest.mark.parametrize(("grant", "name", "tenant"), HIDES)
SHOWS = [(ACME, "mail", "zen"), (MAIL, "mail", ""), (BOTH, "mail", "acme"), (Grant(), "a", "b")]
shows = pytest.mark.parametrize(("grant", "name", "tenant"), SHOWS)

Lease = Callable[[Job, Grant | None], Op]
LEASE_OPS: list[Lease] = [
    lambda job, grant: ops.Ack(job.id, job.token, grant=grant),
    lambda job, grant: ops.Ack(job.id, job.token, keep=False, grant=grant),
    lambda job, grant: ops.Fail(job.id, job.token, grant=grant),
    lambda job, grant: ops.Extend(job.id, job.token, 99_000, grant=grant),
    lambda job, grant: ops.Release(job.id, job.token, grant=grant),
    lambda job, grant: ops.Progress(job.id, job.token, 50, grant=grant),
]
lease_op = pytest.mark.parametrize(
    "op", LEASE_OPS, ids=["ack", "ack-delete", "fail", "extend", "release", "progress"]
)
JOBS_OPS = [
    ops.Cancel, ops.Replay, ops.Delete, partial(ops.Update, priority=7), *kinds_named("RunNow")
]  # fmt: skip
JobsOp = Callable[..., ops.JobsOp]
jobs_op = pytest.mark.parametrize(
    "kind", JOBS_OPS, ids=lambda kind: getattr(kind, "__name__", "Update")
)


def do(queue: Queue, *batch: Op) -> list[Answer]:
    answers: list[Answer] = store_of(queue).do(list(batch))
    return answers


def leased(queue: Queue, name: str, tenant: str, id: str = "a") -> Job:
    queue.enqueue(name, id=id, tenant=tenant)
    (job,) = queue.claim(name, worker="w", lease=30)
    return job


def spec(id: str, queue: str, tenant: str, **more: Any) -> JobSpec:
    return JobSpec(id=id, queue=queue, tenant=tenant, payload=NULL, **more)


def schedule(name: str, queue: str, tenant: str) -> ops.Schedule:
    return ops.Schedule(name, "0 0 1 1 *", spec("-", queue, tenant))


@hides
@lease_op
def test_a_lease_that_the_grant_does_not_allow_is_not_found(
    queue: Queue, op: Lease, grant: Grant, name: str, tenant: str
) -> None:
    job = leased(queue, name, tenant)
    with nothing_changes(queue):
        (answer,) = do(queue, op(job, grant))
    assert isinstance(answer, JobNotFound)


@shows
@lease_op
def test_a_lease_that_the_grant_allows_is_kept_or_ended(
    queue: Queue, op: Lease, grant: Grant, name: str, tenant: str
) -> None:
    job = leased(queue, name, tenant)
    (answer,) = do(queue, op(job, grant))
    assert not isinstance(answer, TenureError)


@lease_op
def test_operations_with_different_grants_in_one_batch_are_told_apart(
    queue: Queue, op: Lease
) -> None:
    one, two = leased(queue, "mail", "acme", "a"), leased(queue, "mail", "other", "b")
    answers = do(queue, op(two, ACME), op(one, ACME), op(two, None))
    assert isinstance(answers[0], JobNotFound)
    assert not isinstance(answers[1], TenureError)
    assert not isinstance(answers[2], TenureError)


@lease_op
def test_a_wrong_token_tells_the_state_only_where_the_grant_allows_it(
    queue: Queue, op: Lease
) -> None:
    queue.enqueue("mail", id="a", tenant="acme")
    queue.enqueue("mail", id="b", tenant="other")
    mine, theirs = queue.get("a"), queue.get("b")
    answers = do(queue, op(mine, ACME), op(theirs, ACME))
    assert [type(answer) for answer in answers] == [LeaseLost, JobNotFound]


def test_a_job_that_an_ack_has_added_is_hidden_from_the_next_ack(queue: Queue) -> None:
    job = leased(queue, "mail", "other")
    then = (spec("b", "mail", "other"),)
    answers = do(queue, ops.Ack("a", job.token, then=then), ops.Ack("b", 0, grant=ACME))
    assert [type(answer) for answer in answers] == [ops.Ok, JobNotFound]


@hides
@jobs_op
def test_jobs_that_the_grant_does_not_allow_are_missing(
    queue: Queue, kind: JobsOp, grant: Grant, name: str, tenant: str
) -> None:
    queue.enqueue(name, id="a", tenant=tenant)
    queue.enqueue(name, id="d", tenant=tenant)
    (job,) = queue.claim(name, worker="w", lease=30)
    queue.fail(job, "no", fatal=True)
    with nothing_changes(queue):
        answers = do(queue, kind(("a", "d", "none"), grant=grant))
    assert answers == [ops.Changed(0, ("a", "d", "none"))]


@jobs_op
def test_the_jobs_that_the_grant_allows_change(queue: Queue, kind: JobsOp) -> None:
    delay = 60 if is_run_now(kind) else 0
    queue.enqueue("mail", id="a", tenant="acme", max_attempts=1, delay=delay)
    queue.enqueue("mail", id="b", tenant="other", max_attempts=1, delay=delay)
    if kind is ops.Replay:
        for job in queue.claim("mail", worker="w", lease=30, limit=2):
            queue.fail(job, "no")
    assert do(queue, kind(("b", "a"), grant=ACME)) == [ops.Changed(1, ("b",))]


@pytest.mark.parametrize("state", ["pending", "dead"])
@hides
def test_a_job_that_the_grant_does_not_allow_is_not_found_to_be_replayed_with_changes(
    queue: Queue, grant: Grant, name: str, tenant: str, state: str
) -> None:
    job = leased(queue, name, tenant)
    queue.fail(job, "no", fatal=state == "dead")
    with nothing_changes(queue):
        (answer,) = do(queue, ops.ReplayEdited("a", "b", grant=grant))
    assert isinstance(answer, JobNotFound)
    assert answer.message == JobNotFound("a").message


@shows
def test_a_job_that_the_grant_allows_is_replayed_with_changes(
    queue: Queue, grant: Grant, name: str, tenant: str
) -> None:
    queue.fail(leased(queue, name, tenant), "no", fatal=True)
    (answer,) = do(queue, ops.ReplayEdited("a", "b", grant=grant))
    assert isinstance(answer, ops.Enqueued)
    assert answer.created == [True]


@pytest.mark.one_store
def test_a_parent_that_the_grant_does_not_allow_is_not_found(queue: Queue) -> None:
    queue.enqueue("mail", id="a", tenant="other")
    queue.enqueue("mail", id="b", tenant="acme")
    child = spec("c", "mail", "acme", after=("b", "a"))
    with nothing_changes(queue):
        (answer,) = do(queue, ops.Enqueue((child,), grant=ACME))
    assert isinstance(answer, DependencyNotFound)
    assert answer.message == DependencyNotFound("a").message
    (answer,) = do(queue, ops.Enqueue((child,), grant=Grant(queues=("mail",))))
    assert isinstance(answer, ops.Enqueued)


def test_a_parent_of_others_in_the_same_batch_is_not_found(queue: Queue) -> None:
    parent = spec("a", "mail", "other")
    child = spec("c", "mail", "acme", after=("a",))
    answers = do(queue, ops.Enqueue((parent,)), ops.Enqueue((child,), grant=ACME))
    assert [type(answer) for answer in answers] == [ops.Enqueued, DependencyNotFound]


def test_a_follow_up_may_wait_only_for_what_the_grant_allows(queue: Queue) -> None:
    queue.enqueue("mail", id="b", tenant="other", delay=60)
    job = leased(queue, "mail", "acme")
    child = spec("c", "mail", "acme", after=("a", "b"))
    with nothing_changes(queue):
        (answer,) = do(queue, ops.Ack("a", job.token, then=(child,), grant=ACME))
    assert isinstance(answer, DependencyNotFound)
    child = spec("c", "mail", "acme", after=("a",))
    assert do(queue, ops.Ack("a", job.token, then=(child,), grant=ACME)) == [ops.Ok()]


def test_a_follow_up_is_seen_by_the_next_ack_of_the_batch(queue: Queue) -> None:
    job = leased(queue, "mail", "acme")
    b, c = (spec(id, "mail", "acme") for id in "bc")
    first, second = do(
        queue,
        ops.Ack("a", job.token, then=(b,), grant=ACME),
        ops.Ack("b", 1, then=(c,), grant=ACME),
    )
    assert first == ops.Ok()
    assert isinstance(second, LeaseLost)


def test_the_id_of_a_job_of_others_is_not_skipped(queue: Queue) -> None:
    queue.enqueue("mail", id="a", tenant="other")
    queue.enqueue("mail", id="b", tenant="acme")
    a, b = (spec(id, "mail", "acme") for id in "ab")
    with nothing_changes(queue):
        answers = do(
            queue,
            ops.Enqueue((b, a), "skip", grant=ACME),
            ops.Enqueue((b,), "skip", grant=ACME),
        )
    assert [type(answer) for answer in answers] == [Duplicate, ops.Enqueued]


def test_a_job_of_its_own_is_skipped_by_id_and_by_unique_key(queue: Queue) -> None:
    queue.enqueue("mail", id="a", tenant="acme", unique_key="k")
    jobs = (
        spec("a", "mail", "acme"),
        spec("b", "mail", "acme", unique_key="k"),
        spec("c", "mail", "acme"),
        spec("c", "mail", "acme"),
    )
    (answer,) = do(queue, ops.Enqueue(jobs, "skip", grant=BOTH))
    assert isinstance(answer, ops.Enqueued)
    assert answer.ids == ["a", "a", "c", "c"]
    assert answer.created == [False, False, True, False]


def test_the_id_of_a_job_of_others_in_the_same_batch_is_not_skipped(queue: Queue) -> None:
    theirs = spec("a", "mail", "other", unique_key="k")
    mine = spec("a", "mail", "acme")
    answers = do(queue, ops.Enqueue((theirs,)), ops.Enqueue((mine,), "skip", grant=ACME))
    assert [type(answer) for answer in answers] == [ops.Enqueued, Duplicate]


def test_a_job_of_its_own_in_the_same_batch_is_seen(queue: Queue) -> None:
    mine = spec("a", "mail", "acme")
    child = spec("c", "mail", "acme", after=("a",))
    answers = do(
        queue,
        ops.Enqueue((mine,), grant=ACME),
        ops.Enqueue((mine,), "skip", grant=ACME),
        ops.Enqueue((child,), grant=ACME),
    )
    created = [one.created for one in answers if isinstance(one, ops.Enqueued)]
    assert created == [[True], [False], [True]]


def test_a_held_unique_key_is_skipped_although_its_holder_is_not_named(queue: Queue) -> None:
    queue.enqueue("mail", id="a", tenant="acme", unique_key="k")
    mine = spec("b", "mail", "acme", unique_key="k")
    (answer,) = do(queue, ops.Enqueue((mine,), "skip", grant=ACME))
    assert isinstance(answer, ops.Enqueued)
    assert (answer.ids, answer.created) == (["a"], [False])


@hides
def test_a_schedule_that_the_grant_does_not_allow_stays(
    queue: Queue, grant: Grant, name: str, tenant: str
) -> None:
    do(queue, ops.PutSchedule(schedule("s", name, tenant)))
    (before,) = queue.schedules.list()
    mine = schedule("s", "mail", "acme")
    answers = do(
        queue,
        ops.PutSchedule(mine, grant=grant),
        ops.DropSchedule("s", grant=grant),
        ops.DropSchedule("none", grant=grant),
        ops.Fire("s", before.next_at, "f", grant=grant),
    )
    kinds = [Forbidden, ScheduleNotFound, ScheduleNotFound, ScheduleNotFound]
    assert [type(answer) for answer in answers] == kinds
    assert queue.schedules.list() == [before]


@shows
def test_a_schedule_that_the_grant_allows_is_replaced_fired_and_dropped(
    queue: Queue, grant: Grant, name: str, tenant: str
) -> None:
    mine = schedule("s", name, tenant)
    assert do(queue, ops.PutSchedule(mine, grant=grant)) == [ops.Ok()]
    assert do(queue, ops.PutSchedule(mine, grant=grant)) == [ops.Ok()]
    assert do(queue, ops.Fire("s", 1, "f", grant=grant)) == [ops.Fired(False)]
    assert do(queue, ops.DropSchedule("s", grant=grant)) == [ops.Ok()]
    assert queue.schedules.list() == []


def test_a_grant_holds_inside_a_keyed_call(queue: Queue) -> None:
    job = leased(queue, "mail", "other")
    call = ops.Once(
        "k", (ops.Ack("a", job.token, grant=ACME), ops.Claim(("mail",), "w", 1_000, tenant="acme"))
    )
    for _ in range(2):
        (answer,) = do(queue, call)
        assert isinstance(answer, ops.Answers)
        assert isinstance(answer.answers[0], JobNotFound)
    assert queue.get("a").state == "leased"


@hides
def test_a_job_that_the_grant_does_not_allow_is_not_found(
    queue: Queue, grant: Grant, name: str, tenant: str
) -> None:
    queue.enqueue(name, id="a", tenant=tenant)
    for query in (queries.GetJob("a", grant=grant), queries.ListRelated("a", 20, grant=grant)):
        assert isinstance(store_of(queue).do(query), JobNotFound)
    assert store_of(queue).do(queries.GetJobs(("a",), grant=grant)).jobs == []


@shows
def test_a_job_that_the_grant_allows_is_found(
    queue: Queue, grant: Grant, name: str, tenant: str
) -> None:
    job = queue.enqueue(name, id="a", tenant=tenant)
    assert store_of(queue).do(queries.GetJob("a", grant=grant)) == job
    assert store_of(queue).do(queries.GetJobs(("a",), grant=grant)).jobs == [job]
