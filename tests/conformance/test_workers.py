"""Workers that report themselves, and what explain makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tenure import InvalidInput, Queue
from tenure.features.live_workers.data import (
    NOTE_EVERY_MS,
    SEEN_MS,
    Beat,
    ListWorkers,
    LiveWorker,
    Stored,
)
from tenure.features.why import data as why
from tenure.model import ops
from tenure.model.ops import Grant
from tenure.model.records import MAX_RECORD_BYTES
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply

WORKER = LiveWorker(
    name="w1",
    queues=("q", "other"),
    host="here",
    pid=77,
    version="1.0",
    concurrency=8,
    running=("a", "b"),
    busy=2,
    started_at=5,
)


def beat(queue: Queue, worker: LiveWorker = WORKER, ttl: float = 20, **options: Any) -> None:
    (answer,) = store_of(queue).do([Beat(worker, round(ttl * 1000), **options)])
    assert answer == ops.Ok()


def no_worker(queue: Queue) -> why.NoWorker | None:
    """What explain says of a job that is ready in the queue."""
    job = queue.enqueue("q", unique_key="one", if_exists="skip")
    found = [one for one in queue.explain(job.id).reasons if isinstance(one, why.NoWorker)]
    return found[0] if found else None


@pytest.mark.over_http
def test_a_worker_that_reports_itself_is_listed(queue: Queue, clock: ManualClock) -> None:
    beat(queue)

    assert queue.workers() == [replace(WORKER, seen_at=clock.now_ms())]


def test_a_worker_that_no_longer_reports_disappears(queue: Queue, clock: ManualClock) -> None:
    beat(queue)
    clock.advance(15)
    beat(queue)
    clock.advance(19.999)
    assert len(queue.workers()) == 1
    clock.advance(0.001)

    assert queue.workers() == []


def test_a_worker_that_says_it_stopped_disappears_at_once(queue: Queue) -> None:
    beat(queue)
    beat(queue, ttl=0)

    assert queue.workers() == []


def test_workers_are_sorted_by_name_and_selected_by_queue(queue: Queue) -> None:
    beat(queue, replace(WORKER, name="b"))
    beat(queue, replace(WORKER, name="a", queues=("mail",)))
    beat(queue, replace(WORKER, name="c", queues=("mail", "q")))

    assert [one.name for one in queue.workers()] == ["a", "b", "c"]
    assert [one.name for one in queue.workers("q")] == ["b", "c"]
    assert queue.workers("nowhere") == []


def test_two_processes_of_one_name_are_two_workers(queue: Queue) -> None:
    beat(queue)
    beat(queue, replace(WORKER, pid=78))

    assert {one.pid for one in queue.workers()} == {77, 78}


def test_running_jobs_that_do_not_fit_are_left_out(queue: Queue, apply: Apply) -> None:
    many = tuple(f"{n:02}" + "\N{GRINNING FACE}" * 500 for n in range(50))
    beat(queue, replace(WORKER, running=many, busy=50))

    (found,) = queue.workers()

    assert (found.running, found.busy) == ((), 50)
    queues = tuple(f"{n:03}" + "\N{GRINNING FACE}" * 500 for n in range(50))
    (answer,) = apply(Beat(replace(WORKER, queues=queues), 20_000))
    assert isinstance(answer, InvalidInput)


@pytest.mark.parametrize("more", [0, 1])
def test_a_worker_may_say_as_much_as_fits_into_a_record(
    queue: Queue, clock: ManualClock, apply: Apply, more: int
) -> None:
    now = clock.now_ms()
    quiet = replace(WORKER, running=(), seen_at=now)
    left = MAX_RECORD_BYTES - len(msgspec.json.encode(Stored(quiet, now, None)))
    (answer,) = apply(Beat(replace(quiet, host=WORKER.host + "x" * (left + more)), 20_000))
    assert (answer == ops.Ok()) is (not more)


# Explain --------------------------------------------------------------------------------------


@pytest.mark.over_http
def test_a_ready_job_without_a_worker_says_so(queue: Queue) -> None:
    found = no_worker(queue)

    assert found is not None
    assert found.seen_at is None
    beat(queue)
    assert no_worker(queue) is None


def test_a_queue_remembers_when_it_last_had_a_worker(queue: Queue, clock: ManualClock) -> None:
    beat(queue)
    clock.advance(NOTE_EVERY_MS / 1000 - 20)
    beat(queue)
    first = clock.now_ms() - NOTE_EVERY_MS + 20_000
    clock.advance(20)
    assert no_worker(queue) == _seen(queue, first)
    beat(queue)
    last = clock.now_ms()
    clock.advance(60)
    assert no_worker(queue) == _seen(queue, last)
    beat(queue, replace(WORKER, name="w2", queues=("q/x",)))
    assert no_worker(queue) == _seen(queue, last)
    clock.advance(SEEN_MS / 1000)
    assert no_worker(queue) == _seen(queue, None)


@pytest.mark.parametrize(("early_ms", "is_noted"), [(0, True), (1, False)])
def test_when_a_worker_was_seen_is_noted_now_and_then(
    queue: Queue, clock: ManualClock, early_ms: int, is_noted: bool
) -> None:
    first = clock.now_ms()
    beat(queue, ttl=NOTE_EVERY_MS / 1000 + 10)
    clock.advance((NOTE_EVERY_MS - early_ms) / 1000)
    beat(queue)
    last = clock.now_ms()
    clock.advance(60)
    assert no_worker(queue) == _seen(queue, last if is_noted else first)


def _seen(queue: Queue, at: int | None) -> why.NoWorker:
    found = no_worker(queue)
    assert found is not None
    return replace(found, seen_at=at)


def test_reports_in_between_do_not_put_off_the_next_note(queue: Queue, clock: ManualClock) -> None:
    for _ in range(3):
        beat(queue, ttl=30)
        clock.advance(NOTE_EVERY_MS / 1000 * 2 / 3)
    clock.advance(60)
    found = no_worker(queue)
    assert found is not None
    assert found.seen_at == clock.now_ms() - 60_000 - NOTE_EVERY_MS * 2 // 3


def test_a_worker_that_stopped_was_seen_until_then(queue: Queue, clock: ManualClock) -> None:
    beat(queue)
    clock.advance(10)
    beat(queue, ttl=0)

    found = no_worker(queue)

    assert found is not None
    assert found.seen_at == clock.now_ms()


def test_a_program_that_claims_jobs_by_itself_counts_as_a_worker(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q")
    queue.claim("q", worker="own", lease=30)

    assert no_worker(queue) is None
    clock.advance(31)
    assert no_worker(queue) is not None


# What a caller may see ------------------------------------------------------------------------


def names(queue: Queue, grant: Grant | None) -> list[str]:
    return [one.name for one in store_of(queue).do(ListWorkers(grant=grant))]


def test_a_grant_shows_only_workers_that_work_for_nobody_else(queue: Queue) -> None:
    of_a, of_q = Grant(tenants=("a",)), Grant(queues=("q",))
    beat(queue, replace(WORKER, name="free"))
    beat(queue, replace(WORKER, name="for-a"), grant=of_a)
    beat(queue, replace(WORKER, name="for-q", queues=("q",)), grant=of_q)

    assert names(queue, None) == ["for-a", "for-q", "free"]
    assert names(queue, of_a) == ["for-a"]
    assert names(queue, Grant(tenants=("b",))) == []
    assert names(queue, of_q) == ["for-q"]


def test_workers_of_two_grants_do_not_share_a_name(queue: Queue) -> None:
    beat(queue, grant=Grant(tenants=("a",)))
    beat(queue, grant=Grant(tenants=("b",)))
    beat(queue, ttl=0, grant=Grant(tenants=("b",)))

    assert names(queue, Grant(tenants=("a",))) == ["w1"]
    assert names(queue, Grant(tenants=("b",))) == []
    assert no_worker(queue) is None


def test_a_worker_for_one_tenant_is_none_for_the_others(queue: Queue) -> None:
    beat(queue, ttl=0, grant=Grant(tenants=("a",)))

    assert no_worker(queue) == _seen(queue, None)


def test_a_worker_for_one_queue_counts_for_all_tenants(queue: Queue, clock: ManualClock) -> None:
    beat(queue, ttl=0, grant=Grant(queues=("q", "other")))

    assert no_worker(queue) == _seen(queue, clock.now_ms())
