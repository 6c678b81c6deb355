"""The audit log: who changed what and why, stored with the change."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

import tenure
from tenure import InvalidInput, NewJob, Queue
from tenure.features.audit.data import MAX_PAGE_BYTES, AuditEntry
from tenure.features.errors.data import MuteError
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import MAX_FILTER_BYTES, Note
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.support.feature_ops import of_feature

ANN = Note("ann", "too many")


def entries(queue: Queue) -> list[AuditEntry]:
    return queue.audit().entries


def test_a_change_is_noted_with_who_and_why(queue: Queue, clock: ManualClock) -> None:
    start = clock.now_ms()
    operator = queue.audited(by="ann", reason="they bounce")
    queue.enqueue("mail", id="a")
    operator.pause("mail", tenant="acme")
    clock.advance(1)
    operator.cancel("a")
    assert entries(queue) == [
        AuditEntry(start + 1000, "ann", "cancel", "", "a", None, "they bounce", 1),
        AuditEntry(start, "ann", "pause", "mail", "tenant acme", None, "they bounce"),
    ]


@pytest.mark.queue_limit
def test_every_operation_of_an_operator_can_be_noted(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    queue.enqueue("mail", id="a", delay=60)
    schedule = ops.Schedule("nightly", "0 3 * * *", JobSpec("x", "mail", NULL))
    steps: list[tuple[ops.NotedOp | ops.NotedGrantedOp, str, str]] = [
        *((op, "", "a") for op in of_feature("RunNow", ("a",), note=ANN)),
        (ops.Cancel(("a",), note=ANN), "", "a"),
        (ops.Replay(("a",), note=ANN), "", "a"),
        (ops.Delete(("a",), note=ANN), "", "a"),
        (ops.SetLimit("mail", concurrency=5, note=ANN), "mail", "concurrency 5"),
        (ops.ClearLimit("mail", note=ANN), "mail", ""),
        (ops.Pause("mail", "t", "g", note=ANN), "mail", "tenant t, group g"),
        (ops.Resume("mail", "t", "g", note=ANN), "mail", "tenant t, group g"),
        (ops.PutSchedule(schedule, note=ANN), "mail", "nightly: 0 3 * * *"),
        (ops.PutSchedule(replace(schedule, disabled=True), note=ANN), "mail", "nightly: 0 3 * * *"),
        (ops.DropSchedule("nightly", note=ANN), "", "nightly"),
        (MuteError("0a1b", note=ANN), "", "group 0a1b, muted True"),
    ]
    for op, _, _ in steps:
        apply(op)
        clock.advance(1)
    found = [(one.action, one.queue, one.target) for one in reversed(entries(queue))]
    names = "cancel replay delete set_limit clear_limit pause resume put_schedule "
    names += "pause_schedule drop_schedule mute_error"
    all_names = ["run_now"] * len(of_feature("RunNow", ("a",))) + names.split()
    wanted = [(name, *step[1:]) for name, step in zip(all_names, steps, strict=True)]
    assert found == wanted
    assert {(one.by, one.reason) for one in entries(queue)} == {("ann", "too many")}


def test_what_changes_nothing_is_not_noted(queue: Queue, apply: Apply) -> None:
    queue.enqueue("mail", id="a")
    schedule = ops.Schedule("nightly", "0 3 * * *", JobSpec("x", "mail", NULL), owner="my.app")
    apply(
        ops.Cancel(("unknown",), note=ANN),
        ops.Replay(("a",), note=ANN),
        ops.Resume("unknown", note=ANN),
        ops.Reconcile("mail", note=ANN),
        ops.DropSchedule("unknown", note=ANN),
        ops.PutSchedule(schedule, note=ANN),  # declared by a program whenever it starts
        ops.Cancel(("a",)),  # without a note
    )
    assert entries(queue) == []


def test_the_pause_of_a_schedule_that_an_app_declares_is_noted(queue: Queue, apply: Apply) -> None:
    job = JobSpec("x", "mail", NULL)
    schedule = ops.Schedule("nightly", "0 3 * * *", job, owner="my.app", disabled=True)
    apply(ops.PutSchedule(schedule, note=ANN))
    assert [one.action for one in entries(queue)] == ["pause_schedule"]


def test_a_change_inside_a_keyed_call_is_noted_once(queue: Queue, apply: Apply) -> None:
    queue.enqueue("mail", id="a")
    once = ops.Once("key", (ops.Cancel(("a",), note=ANN),))
    apply(once)
    apply(once)
    assert [one.action for one in entries(queue)] == ["cancel"]


def test_a_page_of_large_entries_is_shorter(queue: Queue, apply: Apply) -> None:
    """The log must not be a way to fill the memory of those who read it."""
    note = Note("ann", filter={"tenant": "x" * (MAX_FILTER_BYTES - 20)})
    most = MAX_PAGE_BYTES // MAX_FILTER_BYTES + 1
    apply(*(ops.Pause("mail", f"t{n}", note=note) for n in range(most + 5)))
    first = queue.audit(limit=1000)
    assert most - 5 < len(first.entries) < most
    rest = queue.audit(limit=1000, cursor=first.cursor)
    assert rest.cursor is None
    found = [entry.target for entry in (*first.entries, *rest.entries)]
    assert sorted(found) == sorted(f"tenant t{n}" for n in range(most + 5))


def test_what_a_note_says_is_bounded() -> None:
    with pytest.raises(InvalidInput) as caught:
        Note("ann", filter={"tenant": "x" * MAX_FILTER_BYTES})
    assert caught.value.field == "filter"


def test_the_log_is_read_in_pages(queue: Queue, clock: ManualClock) -> None:
    operator = queue.audited(by="ann")
    for n in range(5):
        operator.pause(f"q{n}")
        clock.advance(n % 2)  # some at the same time
    seen: list[str] = []
    cursor = None
    while True:
        page = queue.audit(limit=2, cursor=cursor)
        seen += [one.queue for one in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == [f"q{n}" for n in range(5)]
    assert seen[-1] == "q0"


def test_many_jobs_make_one_entry(queue: Queue) -> None:
    ids = queue.enqueue_many([NewJob(queue="mail", id=f"job-{n:02}") for n in range(15)])
    queue.audited(by="ann").cancel(ids)
    (one,) = entries(queue)
    assert one.count == 15
    assert one.target == ", ".join(ids[:10]) + " and 5 more"


def test_entries_are_kept_for_as_long_as_the_setting_says(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_audit=100.0)
    queue.audited(by="ann").pause("mail")
    clock.advance(99.999)
    assert len(entries(queue)) == 1
    clock.advance(0.001)
    queue.maintain()
    assert entries(queue) == []


def test_entries_are_kept_for_ever_if_the_setting_says_so(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_audit=None)
    queue.audited(by="ann").pause("mail")
    clock.advance(10 * 365 * 86_400)
    queue.maintain()
    assert len(entries(queue)) == 1


def test_a_handle_can_sign_all_its_changes(queue: Queue) -> None:
    queue.sign(by="ann@desk", reason="cleaning up")
    queue.pause("mail")
    queue.enqueue("mail")
    queue.audited(by="ben").resume("mail")
    found = [(one.by, one.action, one.reason) for one in entries(queue)]
    assert sorted(found) == [("ann@desk", "pause", "cleaning up"), ("ben", "resume", "")]


def test_a_reason_has_a_length(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="reason"):
        queue.audited(by="ann", reason="x" * 1_001)


def test_the_awaitable_forms_are_noted_too(queue: Queue) -> None:
    async def change() -> list[AuditEntry]:
        await queue.audited(by="ann").apause("mail")
        return (await queue.aaudit()).entries

    assert [one.action for one in asyncio.run(change())] == ["pause"]


def test_audited_calls_read_like_the_queue(queue: Queue) -> None:
    assert isinstance(queue.audited().stats(), tenure.Stats)
