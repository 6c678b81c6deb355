"""Changing jobs that wait, replaying finished ones with changes, and the history of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tenure import Conflict, Duplicate, InvalidInput, JobNotFound, PayloadTooLarge, Queue, State
from tenure.model import ops
from tenure.model.ops import Note
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import fill, make_dead, make_done, take


def test_a_priority_decides_the_place_in_line(queue: Queue) -> None:
    fill(queue, 4)
    queue.update("2", priority=-1)
    queue.update("0", priority=5)
    assert [job.id for job in queue.claim("q", limit=4)] == ["2", "1", "3", "0"]


def test_the_head_of_a_lane_may_move_back_and_another_before_it(queue: Queue) -> None:
    fill(queue, 3, group="g", tenant="t")
    queue.update("0", priority=9)
    assert take(queue, "q").id == "1"
    queue.update("0", priority=-9)
    assert take(queue, "q").id == "0"


def test_a_delayed_job_runs_when_it_is_told_to(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", delay=3600)
    job = queue.update("j", delay=60)
    assert job.run_at == clock.now_ms() + 60_000
    assert queue.claim("q") == []
    clock.advance(60)
    assert take(queue, "q").id == "j"


def test_a_ready_job_may_be_put_off(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 2)
    later = datetime.fromtimestamp(clock.now_ms() / 1000 + 60, UTC)
    queue.update("0", run_at=later)
    stats = queue.stats("q")
    assert (stats.ready, stats.delayed) == (1, 1)
    assert take(queue, "q").id == "1"
    assert queue.claim("q") == []
    queue.update("0", delay=0)
    assert take(queue, "q").id == "0"
    assert queue.reconcile("q") == {}


def test_a_payload_is_replaced(queue: Queue) -> None:
    queue.enqueue("q", {"n": 1}, id="j", priority=3)
    job = queue.update("j", payload={"n": 2})
    assert (job.payload, job.priority) == ({"n": 2}, 3)
    assert queue.update("j", payload=None).payload is None
    large = queue.update("j", payload="x" * 200_000)
    assert large.payload == "x" * 200_000
    assert take(queue, "q").payload == "x" * 200_000


def test_a_waiting_job_is_changed_and_goes_on_waiting(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    job = queue.update("child", priority=-5, delay=60, payload=1)
    assert (job.state, job.priority, job.payload) == (State.WAITING, -5, 1)
    queue.ack(take(queue, "q"))
    assert queue.claim("q") == []
    clock.advance(60)
    assert take(queue, "q").id == "child"


def test_what_runs_or_is_over_is_not_changed(queue: Queue) -> None:
    make_done(queue, "done")
    queue.enqueue("q", id="leased")
    job = take(queue, "q")
    for job_id in ("done", "leased"):
        with pytest.raises(Conflict, match=job_id):
            queue.update(job_id, priority=5)
    assert queue.get("leased") == job
    with pytest.raises(JobNotFound):
        queue.update("nobody", priority=5)


def test_several_jobs_are_changed_together(queue: Queue) -> None:
    fill(queue, 3)
    make_done(queue, "done", name="other")
    (changed,) = store_of(queue).do([ops.Update(("0", "1", "done", "nobody"), -3)])
    assert changed == ops.Changed(2, ("nobody",))
    assert [queue.get(job_id).priority for job_id in ("0", "1", "2")] == [-3, -3, 0]


@pytest.mark.parametrize(
    "values",
    [{}, {"delay": 1, "run_at": datetime.now(UTC)}, {"priority": 2**40}, {"delay": -1}],
    ids=["nothing", "two times", "priority", "delay"],
)
def test_a_change_that_makes_no_sense_is_rejected(queue: Queue, values: dict[str, Any]) -> None:
    queue.enqueue("q", id="j")
    with pytest.raises(InvalidInput):
        queue.update("j", **values)


def test_a_payload_that_is_too_large_is_rejected(queue: Queue) -> None:
    queue.enqueue("q", id="j")
    with pytest.raises(PayloadTooLarge):
        queue.update("j", payload="x" * (queue.settings.payload_limit + 1))
    make_dead(queue, "dead", name="other")
    with pytest.raises(PayloadTooLarge):
        queue.replay_edited("dead", payload="x" * (queue.settings.payload_limit + 1))


def test_a_dead_job_is_replayed_as_a_new_one_with_changes(queue: Queue, clock: ManualClock) -> None:
    fields: Any = {"kind": "k", "tenant": "t", "group": "g", "max_attempts": 7, "timeout": 5}
    old = make_dead(queue, "old", priority=4, **fields)
    new = queue.get(queue.replay_edited("old", payload={"n": 2}, delay=60))
    assert new.replay_of == "old"
    assert (new.payload, new.priority, new.state, new.attempts) == ({"n": 2}, 4, State.PENDING, 0)
    assert (new.kind, new.tenant, new.group, new.max_attempts) == ("k", "t", "g", 7)
    assert (new.timeout_ms, new.errors) == (5_000, ())
    assert queue.get("old") == old
    clock.advance(60)
    claimed = take(queue, "q")
    assert (claimed.id, claimed.replay_of) == (new.id, "old")
    assert [one.replay_of for one in queue.summaries().jobs] == ["old", None]


def test_a_job_that_is_not_over_is_not_replayed_with_changes(queue: Queue) -> None:
    queue.enqueue("q", id="j")
    with pytest.raises(Conflict, match="pending"):
        queue.replay_edited("j", payload=1)
    with pytest.raises(JobNotFound):
        queue.replay_edited("nobody")
    assert queue.stats().pending == 1


def test_a_unique_key_that_is_taken_refuses_the_new_job(queue: Queue) -> None:
    make_dead(queue, "old", unique_key="k")
    new = queue.replay_edited("old")
    assert queue.get(new).unique_key == "k"
    with pytest.raises(Duplicate) as refused:
        queue.replay_edited("old")
    assert refused.value.job_id == new


def test_the_history_of_a_job_tells_its_moves(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", delay=3600, max_attempts=2)
    clock.advance(1)
    queue.update("j", delay=1800)
    clock.advance(1)
    queue.update("j", delay=0)
    clock.advance(1)
    (job,) = queue.claim("q", worker="ann")
    clock.advance(1)
    queue.fail(job, ValueError("boom"), fatal=True)
    clock.advance(1)
    queue.replay("j")
    clock.advance(1)
    queue.cancel("j")
    moves = queue.history("j")
    assert [move.what for move in moves] == [
        "created", "updated", "updated", "claimed", "failed", "replayed", "cancelled"
    ]  # fmt: skip
    failed = moves[4]
    assert (failed.by, failed.message, failed.attempt) == ("ann", "boom", 1)
    assert [move.at for move in moves] == sorted(move.at for move in moves)


def test_a_history_says_who_did_what_and_not_what_changed_nothing(
    queue: Queue, clock: ManualClock, apply: Apply
) -> None:
    queue.enqueue("q", id="j")
    for _ in range(2):  # the second time it is over
        apply(ops.Cancel(("j",), note=Note(by="ann")))
        clock.advance(1)
    moves = queue.history("j")
    assert [(move.what, move.by) for move in moves] == [("created", ""), ("cancelled", "ann")]


def test_a_history_has_the_last_twenty_moves(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", delay=3600)
    for n in range(30):
        clock.advance(1)
        queue.update("j", priority=n)
    moves = queue.history("j")
    assert [move.what for move in moves] == ["updated"] * 20
    assert moves[-1].at == clock.now_ms()
    with pytest.raises(JobNotFound):
        queue.history("nobody")


def test_a_new_job_of_an_old_id_has_its_own_history(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j")
    queue.update("j", priority=5)
    queue.delete("j")
    clock.advance(1)
    queue.enqueue("q", id="j")
    assert [move.what for move in queue.history("j")] == ["created"]
