"""Failures are counted by their cause, in the transaction of the failure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tenure import NewJob, Queue
from tenure.features.errors import data as error_groups
from tenure.features.errors.data import ErrorGroup, ErrorGroups, ListErrors, MuteError
from tenure.model import ops, queries
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.support.sizes import let


def errors(queue: Queue, *args: object) -> ErrorGroups:
    found = store_of(queue).engine.read(ListErrors(*args))  # type: ignore[arg-type]
    assert isinstance(found, ErrorGroups)
    return found


def counts(queue: Queue, *args: object) -> dict[str, int]:
    return {one.message: one.count for one in errors(queue, *args).errors}


def fail(queue: Queue, message: str, name: str = "mail", **options: bool) -> None:
    queue.enqueue(name, kind="send", tenant="t")
    (job,) = queue.claim(name)
    queue.fail(job, message, **options)


def test_failures_of_one_cause_are_counted_together(queue: Queue, clock: ManualClock) -> None:
    start = clock.now_ms()
    queue.enqueue("mail", kind="send", id="a", max_attempts=2)
    for n in range(2):
        (job,) = queue.claim("mail")
        queue.fail(job, ValueError(f"no user {n}"), retry_in=0)
        clock.advance(1)
    (one,) = errors(queue).errors
    assert one == ErrorGroup(
        one.group,
        "mail",
        "send",
        "ValueError",
        "no user 1",
        2,
        start,
        start + 1000,
        "a",
        1,
        False,
        (2,),
    )
    failures = queue.get("a").errors
    assert [failure.group for failure in failures] == [one.group, one.group]


def test_the_most_recent_group_comes_first_and_a_cursor_goes_on(
    queue: Queue, clock: ManualClock
) -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    for word in words:
        fail(queue, word)
        clock.advance(1)
    first = errors(queue, None, 2)
    assert [one.message for one in first.errors] == ["epsilon", "delta"]
    second = errors(queue, None, 2, first.cursor)
    assert [one.message for one in second.errors] == ["gamma", "beta"]
    last = errors(queue, None, 2, second.cursor)
    assert [one.message for one in last.errors] == ["alpha"]
    assert last.cursor is None


def test_a_group_tells_how_often_it_failed_in_each_hour(queue: Queue, clock: ManualClock) -> None:
    for hours in (0, 2, 0, 0.5, 20, 1, 3):  # since the one before
        clock.advance(hours * 3600)
        fail(queue, "no")
    (one,) = errors(queue).errors
    assert one.count == 7
    assert one.hours[-5:] == (1, 1, 0, 0, 1)
    assert len(one.hours) <= error_groups.MOST_HOURS
    clock.advance(30 * 3600)
    fail(queue, "no")
    (one,) = errors(queue).errors
    assert (one.count, one.hours) == (8, (1,))


def test_groups_of_one_queue_can_be_asked_for(queue: Queue) -> None:
    for name in ("mail", "mail2", "mail\x01", "ma"):
        fail(queue, "no", name)
    assert len(errors(queue).errors) == 4
    for name in ("mail", "mail2", "mail\x01", "ma"):
        assert [one.queue for one in errors(queue, name).errors] == [name]
    assert errors(queue, "unknown").errors == []


def test_failures_of_one_batch_are_counted_together(queue: Queue, apply: Apply) -> None:
    for _ in range(5):
        queue.enqueue("mail")
    jobs = queue.claim("mail", limit=5)
    apply(*(ops.Fail(job.id, job.token, f"no {n}") for n, job in enumerate(jobs)))
    assert [one.count for one in errors(queue).errors] == [5]


def test_lost_leases_expiries_and_deleted_parents_have_groups(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("mail", id="lost")
    queue.claim("mail", lease=1)
    queue.enqueue("late", expires_in=1)
    queue.enqueue("mail", id="parent")
    queue.enqueue("child", after=["parent"])
    queue.delete("parent")
    clock.advance(2)
    queue.maintain()
    assert counts(queue) == {
        "the lease ran out": 1,
        "expired before it could run": 1,
        "a job it waited for was deleted: parent": 1,
    }
    assert queue.get("lost").errors[-1].group == errors(queue, "mail").errors[0].group


def test_an_expiry_that_a_claim_finds_has_a_group(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)
    for _ in range(3):
        queue.enqueue("mail", expires_in=1)
    clock.advance(2)
    queue.claim("mail", limit=3)
    queue.claim("mail", limit=3)
    queue.claim("mail", limit=3)
    queue.maintain()
    assert counts(queue) == {"expired before it could run": 3}


def test_a_release_with_a_message_is_counted_once(queue: Queue) -> None:
    queue.enqueue("mail")
    for _ in range(2):
        (job,) = queue.claim("mail")
        queue.release(job, reason="no task of this kind")
    assert counts(queue) == {"no task of this kind": 1}


def test_a_group_is_forgotten_after_its_last_failure(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_errors=100.0)
    fail(queue, "old")
    fail(queue, "again")
    clock.advance(60)
    fail(queue, "again")
    clock.advance(40)
    queue.maintain()
    assert list(counts(queue)) == ["again"]  # what another writer counted 100 s ago is forgotten
    clock.advance(60)
    assert counts(queue) == {}
    fail(queue, "again")
    assert counts(queue) == {"again": 1}


def test_a_queue_with_many_causes_counts_the_rest_together(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, groups_of_errors=2)
    for word in ("alpha", "beta", "gamma", "delta", "beta"):
        fail(queue, word, fatal=True)
    fail(queue, "gamma", "another")
    assert counts(queue, "mail") == {"alpha": 1, "beta": 2, error_groups.OTHER: 2}
    assert counts(queue, "another") == {"gamma": 1}
    groups = {one.message: one.group for one in errors(queue, "mail").errors}
    (gamma,) = [job for job in queue.jobs(queue="mail").jobs if job.errors[-1].message == "gamma"]
    assert gamma.errors[-1].group == groups[error_groups.OTHER]


def test_new_causes_in_one_batch_count_for_each_other(
    queue: Queue, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, groups_of_errors=2)
    words = ["alpha", "beta", "gamma", "alpha"]
    queue.enqueue_many([NewJob(queue="mail") for _ in words])
    jobs = queue.claim("mail", limit=4)
    fails = [ops.Fail(job.id, job.token, word) for job, word in zip(jobs, words, strict=True)]
    apply(*fails)
    assert counts(queue) == {"alpha": 2, "beta": 1, error_groups.OTHER: 1}


def test_groups_are_kept_for_ever_if_the_setting_says_so(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_errors=None)
    fail(queue, "old")
    clock.advance(10 * 365 * 86_400)
    queue.maintain()
    assert counts(queue) == {"old": 1}


def test_a_group_can_be_muted_and_is_still_counted(queue: Queue, apply: Apply) -> None:
    fail(queue, "alpha")
    fail(queue, "beta")
    (muted,) = [one.group for one in errors(queue).errors if one.message == "alpha"]
    assert apply(MuteError(muted)) == [ops.Ok()]
    fail(queue, "alpha")
    found = {one.message: (one.muted, one.count) for one in errors(queue).errors}
    assert found == {"alpha": (True, 2), "beta": (False, 1)}
    apply(MuteError(muted, muted=False))
    assert not any(one.muted for one in errors(queue).errors)


def test_all_handles_of_a_store_count_together(
    open_queue: OpenQueue, needs_durability: None
) -> None:
    one, other = open_queue(), open_queue()
    fail(one, "no")
    fail(other, "no")
    fail(one, "no")
    assert counts(one) == counts(other) == {"no": 3}


def test_an_imported_failure_without_a_group_is_found_by_no_group(
    queue: Queue, apply: Apply
) -> None:
    fail(queue, "no", fatal=True)
    exported = store_of(queue).engine.read(queries.Export())
    assert isinstance(exported, queries.Exported)
    (entry,) = exported.entries
    (failure,) = entry.job.errors
    job = replace(entry.job, errors=(replace(failure, group=""),))
    apply(ops.Delete((job.id,)), ops.Import((replace(entry, job=job),)))
    for group in ("", failure.group):
        found = store_of(queue).engine.read(queries.FindIds(queries.Filter(error=group)))
        assert isinstance(found, queries.Ids)
        assert found.ids == []
