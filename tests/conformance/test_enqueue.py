"""Enqueue: adds jobs, all or none of one call."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import (
    Duplicate,
    InvalidInput,
    NewJob,
    PayloadTooLarge,
    Queue,
    State,
    exponential,
)
from tenure.model.fields import MAX_NAME, MAX_PRIORITY, MIN_PRIORITY
from tenure.testing import ManualClock
from tests.conformance.conftest import Backend, OpenQueue
from tests.conformance.moves import (
    BIG,
    drain,
    fill,
    ids,
    make_cancelled,
    make_dead,
    make_done,
    take,
)
from tests.conformance.state import all_jobs, as_dict, nothing_changes

pytestmark = pytest.mark.over_http

MIB = 1_048_576
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_new_job_is_pending_with_what_it_was_given(queue: Queue, clock: ManualClock) -> None:
    now = clock.now_ms()
    job = queue.enqueue(
        "mail",
        {"to": "ada"},
        kind="welcome",
        tenant="acme",
        group="batch-1",
        priority=-7,
        delay=5,
        id="job-1",
        unique_key="ada",
        max_attempts=9,
        backoff=exponential(60, factor=5),
        expires_in=3600,
        timeout=1.5,
        trace=TRACE,
    )
    assert as_dict(job) == {
        "id": "job-1",
        "queue": "mail",
        "state": State.PENDING,
        "has_steps": False,
        "payload": b'{"to":"ada"}',
        "priority": -7,
        "run_at": now + 5_000,
        "created_at": now,
        "updated_at": now,
        "attempts": 0,
        "max_attempts": 9,
        "tenant": "acme",
        "group": "batch-1",
        "kind": "welcome",
        "started_at": None,
        "finished_at": None,
        "expires_at": now + 3_600_000,
        "lease_until": None,
        "token": 0,
        "worker": "",
        "unique_key": "ada",
        "timeout_ms": 1_500,
        "replay_of": None,
        "backoff": exponential(60, factor=5),
        "after": (),
        "if_parent_fails": "wait",
        "progress": None,
        "note": None,
        "result": b"null",
        "errors": (),
        "trace": TRACE,
    }


def test_a_trace_is_carried_to_whoever_claims_the_job(queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", trace=TRACE), NewJob(queue="q")])
    assert [job.trace for job in queue.claim("q", limit=2)] == [TRACE, None]


@pytest.mark.parametrize(
    "trace",
    [
        *("", "00", 7, "00-" + "0" * 32 + "-b7ad6b7169203331-01", TRACE.upper(), TRACE + "\n"),
        TRACE.replace("00-", "ff-", 1),
    ],
)
def test_what_is_no_trace_is_refused(queue: Queue, trace: Any) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="trace"):
        queue.enqueue("q", trace=trace)


def test_a_job_needs_no_more_than_a_queue(queue: Queue, clock: ManualClock) -> None:
    job = queue.enqueue("q")
    assert job.payload is None
    assert (job.tenant, job.group, job.kind, job.priority) == ("", "", "", 0)
    assert (job.max_attempts, job.backoff, job.timeout_ms) == (3, None, None)
    assert (job.expires_at, job.unique_key, job.after) == (None, None, ())
    assert job.run_at == job.created_at == clock.now_ms()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"delay": 60},
        {"payload": BIG},
        {"after": ["parent"]},
        {"after": ["finished"]},
        {"after": ["dead"], "if_parent_fails": "cancel"},
        {"after": ["dead"], "if_parent_fails": "run"},
        {"unique_key": "k", "expires_in": 5, "timeout": 5, "backoff": exponential(1)},
    ],
    ids=str,
)
def test_enqueue_answers_with_the_job_as_it_is_stored(queue: Queue, fields: Any) -> None:
    make_done(queue, "finished")
    make_dead(queue, "dead")
    queue.enqueue("q", id="parent")
    job = queue.enqueue("q", **fields)
    assert as_dict(queue.get(job.id)) == as_dict(job)


def test_an_id_is_made_up_where_none_is_given(queue: Queue, clock: ManualClock) -> None:
    made_up = []
    for _ in range(20):
        made_up.append(queue.enqueue("q").id)
        clock.advance(0.001)
    assert made_up == sorted(set(made_up))
    assert {uuid.UUID(one).version for one in made_up} == {7}


def test_the_callers_id_is_kept(queue: Queue) -> None:
    assert queue.enqueue("q", id="my id/1").id == "my id/1"
    assert queue.get("my id/1").id == "my id/1"


def test_an_id_that_is_held_is_refused(queue: Queue) -> None:
    queue.enqueue("q", "first", id="a")
    with nothing_changes(queue), pytest.raises(Duplicate) as caught:
        queue.enqueue("elsewhere", "second", id="a")
    assert (caught.value.field, caught.value.value, caught.value.job_id) == ("id", "a", "a")


@pytest.mark.parametrize("make", [make_done, make_dead, make_cancelled])
def test_a_finished_job_holds_its_id(queue: Queue, make: Any) -> None:
    make(queue, "a")
    with nothing_changes(queue), pytest.raises(Duplicate):
        queue.enqueue("q", id="a")


def test_the_id_of_a_deleted_job_is_free(queue: Queue) -> None:
    make_done(queue, "a")
    queue.delete("a")
    assert queue.enqueue("q", id="a").state is State.PENDING


def test_skip_answers_with_the_job_that_is_there(queue: Queue) -> None:
    queue.enqueue("q", "first", id="a")
    held = take(queue)
    with nothing_changes(queue):
        job = queue.enqueue("q", "second", id="a", if_exists="skip")
    assert as_dict(job) == as_dict(held)


def test_skip_passes_over_those_that_exist_and_adds_the_others(queue: Queue) -> None:
    queue.enqueue("q", "first", id="b")
    jobs = [NewJob(queue="q", payload="second", id=one) for one in "abc"]
    assert queue.enqueue_many(jobs, if_exists="skip") == ["a", "b", "c"]
    assert {job.id: job.payload for job in all_jobs(queue)} == {
        "a": "second",
        "b": "first",
        "c": "second",
    }


def test_many_are_answered_with_which_of_them_are_new(queue: Queue) -> None:
    queue.enqueue("q", id="b", unique_key="k")
    jobs = [NewJob(queue="q", id=one) for one in "abc"]
    jobs.append(NewJob(queue="q", id="d", unique_key="k"))
    answer = queue.enqueue_many(jobs, if_exists="skip")
    assert answer == ["a", "b", "c", "b"]
    assert list(answer.created) == [True, False, True, False]
    assert list(queue.enqueue_many([NewJob(queue="q")]).created) == [True]


def test_skip_passes_over_the_second_of_two_with_one_id(queue: Queue) -> None:
    jobs = [NewJob(queue="q", payload=n, id="a") for n in range(2)]
    assert queue.enqueue_many(jobs, if_exists="skip") == ["a", "a"]
    assert [job.payload for job in all_jobs(queue)] == [0]


@pytest.mark.parametrize(
    "bad",
    [
        NewJob(queue="q", id="held"),
        NewJob(queue="q", id="0"),
        NewJob(queue="q", unique_key="held"),
        NewJob(queue="q", after=["nobody"]),
        NewJob(queue="q", id="self", after=["self"]),
        NewJob(queue="q", priority=2**31),
        NewJob(queue="q", payload=float("nan")),
    ],
    ids=["id", "id in the call", "key", "parent", "cycle", "priority", "payload"],
)
def test_one_bad_job_of_a_call_refuses_the_whole_call(queue: Queue, bad: NewJob) -> None:
    queue.enqueue("other", id="held")
    queue.enqueue("q", unique_key="held")
    good = [NewJob(queue="q", id=str(n)) for n in range(3)]
    with nothing_changes(queue), pytest.raises((Duplicate, LookupError, InvalidInput)):
        queue.enqueue_many([good[0], good[1], bad, good[2]])


def test_a_bad_job_of_many_is_named(queue: Queue) -> None:
    jobs = [NewJob(queue="q"), NewJob(queue="q", priority=2**31)]
    with pytest.raises(InvalidInput, match=r"^jobs\[1\]\.priority: ") as caught:
        queue.enqueue_many(jobs)
    assert caught.value.field == "jobs[1].priority"


def test_many_are_answered_with_their_ids_in_order(queue: Queue) -> None:
    wanted = ["c", "a", None, "b"]
    got = queue.enqueue_many(NewJob(queue="q", id=one) for one in wanted)
    assert [got[0], got[1], got[3]] == ["c", "a", "b"]
    assert drain(queue) == got


def test_many_may_go_to_many_queues_and_tenants(queue: Queue) -> None:
    queue.enqueue_many(
        NewJob(queue=name, tenant=tenant, group=group)
        for name in ("q", "r")
        for tenant in ("", "acme")
        for group in ("", "g")
    )
    assert {name: one.ready for name, one in queue.stats().queues.items()} == {"q": 4, "r": 4}


def test_no_jobs_are_no_work(queue: Queue) -> None:
    with nothing_changes(queue):
        assert queue.enqueue_many([]) == []


def test_a_thousand_jobs_go_in_one_call(queue: Queue) -> None:
    expected = fill(queue, 1_000)
    assert len(expected) == queue.stats().ready == 1_000
    assert ids(queue.claim("q", limit=1_000)) == expected


# Time -------------------------------------------------------------------------------------------


def test_run_at_says_when(queue: Queue, clock: ManualClock) -> None:
    moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    job = queue.enqueue("q", run_at=moment)
    assert job.run_at == clock.now_ms() + 3_600_000
    assert queue.claim("q") == []
    clock.advance(3600)
    assert take(queue).id == job.id


def test_a_run_at_in_the_past_is_now(queue: Queue, clock: ManualClock) -> None:
    job = queue.enqueue("q", run_at=datetime(1999, 12, 31, tzinfo=UTC))
    assert job.run_at < clock.now_ms()
    assert queue.stats().ready == 1
    assert take(queue).id == job.id


def test_spans_may_be_timedeltas(queue: Queue, clock: ManualClock) -> None:
    minute = timedelta(minutes=1)
    job = queue.enqueue("q", delay=minute, expires_in=minute * 2, timeout=minute * 3)
    assert job.run_at == clock.now_ms() + 60_000
    assert job.expires_at == clock.now_ms() + 120_000
    assert job.timeout_ms == 180_000


# Payloads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        False,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        -0.1,
        1e300,
        "",
        'text with \0, \n, " and \\',
        "blåbær 🫐 \u2028",
        [],
        {},
        [[], {}, None],
        {"": {"nested": [1, {"deep": [2.5, None, "x"]}]}},
        ["x" * 5_000, {"y" * 2_000: 1}],
    ],
    ids=lambda payload: repr(payload)[:30],
)
def test_a_payload_is_any_json_value(queue: Queue, payload: Any) -> None:
    job = queue.enqueue("q", payload)
    assert job.payload == payload
    assert type(job.payload) is type(payload)
    assert queue.get(job.id).payload == payload
    assert take(queue).payload == payload


def test_tuples_become_lists_and_keys_become_text(queue: Queue) -> None:
    job = queue.enqueue("q", {1: ("a", "b"), "nested": [(None,)]})
    assert queue.get(job.id).payload == {"1": ["a", "b"], "nested": [[None]]}


@pytest.mark.parametrize("letter", ["x", "ø", "🫐"])
def test_a_payload_of_any_size_is_kept(queue: Queue, letter: str) -> None:
    width = len(letter.encode())
    for size in (1_022, 1_023, 1_024, 1_025, 1_026, 100_000, MIB):
        text = letter * ((size - 2) // width)
        text += "x" * (size - 2 - width * len(text))
        job = queue.enqueue("q", text)
        assert take(queue).payload == queue.get(job.id).payload == text


def test_a_payload_of_more_than_a_mebibyte_is_refused(queue: Queue) -> None:
    queue.enqueue("q", "x" * (MIB - 2))
    with nothing_changes(queue), pytest.raises(PayloadTooLarge) as caught:
        queue.enqueue("q", "x" * (MIB - 1))
    assert caught.value.field == "payload"


def test_the_payload_limit_counts_bytes_and_not_characters(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(PayloadTooLarge):
        queue.enqueue("q", "ø" * (MIB // 2))


def test_the_payload_limit_is_a_setting(open_queue: OpenQueue) -> None:
    queue = open_queue(payload_limit=10)
    queue.enqueue("q", "x" * 8)
    with nothing_changes(queue), pytest.raises(PayloadTooLarge):
        queue.enqueue("q", "x" * 9)


def test_a_large_payload_survives_everything(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", "first", id="parent")
    queue.enqueue("q", BIG, id="a", after=["parent"], delay=1, max_attempts=3)
    queue.ack(take(queue))
    clock.advance(1)
    assert take(queue, lease=1).payload == BIG
    clock.advance(1)  # the lease runs out
    again = take(queue)
    assert again.payload == BIG
    queue.release(again)
    queue.fail(take(queue), "boom", retry_in=0)
    queue.fail(take(queue), "boom", fatal=True)
    queue.replay("a")
    assert queue.get("a").payload == BIG
    last = take(queue)
    queue.progress(last, 50)
    queue.extend(last, 5)
    queue.ack(last, BIG)
    (listed,) = queue.jobs(state="done", limit=1).jobs
    assert (listed.id, listed.payload, listed.result) == ("a", BIG, BIG)


def test_a_large_payload_goes_with_its_job(queue: Queue) -> None:
    queue.enqueue("q", BIG, id="a")
    queue.enqueue("q", BIG, id="b")
    queue.delete("a")
    queue.ack(take(queue), keep=False)
    assert all_jobs(queue) == []
    assert queue.enqueue("q", "small", id="a").payload == "small"
    assert take(queue).payload == "small"


# Names ------------------------------------------------------------------------------------------

NAMES = [
    "q",
    "Q",
    "q ",
    "a/b?c=d&e#f%00",
    "=x",
    "'; DROP TABLE tenure_jobs; --",
    '"quoted"',
    "blåbær",
    "bla\u030abær",  # the same to the eye, not the same name
    "🫐",
    "1",
    "null",
    "n" * MAX_NAME,
    "\n\t",
]


def test_names_are_any_text_and_are_told_apart(queue: Queue) -> None:
    for name in NAMES:
        fields: dict[str, Any] = dict.fromkeys(("id", "tenant", "group", "kind"), name)
        queue.enqueue(name, unique_key=name, **fields)
    for name in NAMES:
        (job,) = queue.claim(name, limit=10, worker=name)
        found = queue.get(name)
        assert (job.id, found.queue, found.tenant, found.group) == (name, name, name, name)
        assert (found.kind, found.unique_key, found.worker) == (name, name, name)
        assert [one.tenant for one in queue.tenants(name)] == [name]
        assert [one.group for one in queue.groups(name, tenant=name)] == [name]


@pytest.mark.parametrize("priority", [MIN_PRIORITY, MAX_PRIORITY])
def test_a_priority_is_any_32_bit_number(queue: Queue, priority: int) -> None:
    job = queue.enqueue("q", priority=priority)
    assert queue.get(job.id).priority == priority


# The caller's own transaction -------------------------------------------------------------------


def test_a_job_is_enqueued_with_the_callers_transaction(
    queue: Queue, backend: Backend, connection: Any
) -> None:
    connection.execute(backend.begin)
    job = queue.enqueue("q", BIG, connection=connection)
    more = queue.enqueue_many([NewJob(queue="q")], connection=connection)
    assert all_jobs(queue) == []
    connection.commit()
    assert drain(queue) == [job.id, *more]


def test_a_job_goes_with_the_callers_transaction(
    queue: Queue, backend: Backend, connection: Any
) -> None:
    queue.enqueue("q", id="before")
    with nothing_changes(queue):
        connection.execute(backend.begin)
        queue.enqueue("q", unique_key="k", connection=connection)
        connection.rollback()
    queue.enqueue("q", unique_key="k")


def test_a_refused_job_leaves_the_callers_transaction_as_it_was(
    queue: Queue, backend: Backend, connection: Any
) -> None:
    queue.enqueue("q", id="held")
    connection.execute(backend.begin)
    queue.enqueue("q", id="good", connection=connection)
    with pytest.raises(Duplicate):
        queue.enqueue_many([NewJob(queue="q"), NewJob(queue="q", id="held")], connection=connection)
    connection.commit()
    assert drain(queue) == ["held", "good"]


def test_an_engine_without_connections_says_so(queue: Queue, backend: Backend) -> None:
    if backend.connect is not None:
        pytest.skip("this engine has connections to share")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="connection"):
        queue.enqueue("q", connection=object())


def test_a_strange_connection_is_refused(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="connection"):
        queue.enqueue("q", connection="jobs.db")
