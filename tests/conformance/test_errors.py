"""What cannot be is refused with an error that says so, and changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tenure import InvalidInput, InvalidPayload, Job, Lease, NewJob, Queue
from tests.conformance.moves import make_dead, make_done, take
from tests.conformance.state import nothing_changes

pytestmark = pytest.mark.without_engine

Call = Callable[[Any, Any], object]  # of a queue and a bad value; untyped, as a mistake is


@pytest.fixture
def job(queue: Queue) -> Job:
    """A leased job, in a store with a few others."""
    make_done(queue, "done")
    make_dead(queue, "dead")
    queue.enqueue("q", id="a")
    queue.slots.take("scope", "key", "holder", 60)
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q"))
    queue.limits.set("q", concurrency=50)
    return take(queue)


def refuses(queue: Queue, call: Call, values: dict[str, Any]) -> None:
    """Each of the values is refused, in words that begin with the argument, and changes nothing."""
    wrong: dict[str, str] = {}
    with nothing_changes(queue):
        for name, value in values.items():
            try:
                wrong[name] = f"answered {call(queue, value)!r:.80}"
            except InvalidInput as error:
                if not str(error).startswith(f"{error.field}: "):
                    wrong[name] = f"said {error}"
            except Exception as error:
                wrong[name] = f"raised {error!r:.80}"
        assert wrong == {}


# Names ------------------------------------------------------------------------------------------

BAD_LABELS: dict[str, Any] = {
    "with NUL": "a\0b",
    "too long": "n" * 513,
    "lone surrogate": "\ud800",
    "number": 5,
    "bytes": b"x",
    "list": ["x"],
}
WRONG_TYPES = {key: BAD_LABELS[key] for key in ("number", "bytes", "list", "lone surrogate")}

NAMES: dict[str, Call] = {
    "enqueue queue": lambda queue, name: queue.enqueue(name),
    "enqueue id": lambda queue, name: queue.enqueue("q", id=name),
    "enqueue unique_key": lambda queue, name: queue.enqueue("q", unique_key=name),
    "enqueue after": lambda queue, name: queue.enqueue("q", after=[name]),
    "enqueue_many queue": lambda queue, name: queue.enqueue_many([NewJob(queue=name)]),
    "claim queue": lambda queue, name: queue.claim(["q", name]),
    "get id": lambda queue, name: queue.get(name),
    "cancel id": lambda queue, name: queue.cancel(["a", name]),
    "replay id": lambda queue, name: queue.replay(["dead", name]),
    "delete id": lambda queue, name: queue.delete(["a", name]),
    "pause queue": lambda queue, name: queue.pause(name),
    "resume queue": lambda queue, name: queue.resume(name),
    "set_limit queue": lambda queue, name: queue.limits.set(name, concurrency=1),
    "set_limit group": lambda queue, name: queue.limits.set("q", group=name, concurrency=1),
    "clear_limit queue": lambda queue, name: queue.limits.clear(name),
    "take_slot scope": lambda queue, name: queue.slots.take(name, "key", "holder", 1),
    "take_slot key": lambda queue, name: queue.slots.take("scope", name, "holder", 1),
    "take_slot holder": lambda queue, name: queue.slots.take("scope", "key", name, 1),
    "put_schedule name": lambda queue, name: queue.schedules.put(
        name, "* * * * *", NewJob(queue="q")
    ),
    "put_schedule queue": lambda queue, name: queue.schedules.put(
        "s", "* * * * *", NewJob(queue=name)
    ),
    "reconcile queue": lambda queue, name: queue.reconcile(name),
    "stats queue": lambda queue, name: queue.stats(name),
}
LABELS: dict[str, Call] = {
    "enqueue tenant": lambda queue, name: queue.enqueue("q", tenant=name),
    "enqueue group": lambda queue, name: queue.enqueue("q", group=name),
    "enqueue kind": lambda queue, name: queue.enqueue("q", kind=name),
    "claim worker": lambda queue, name: queue.claim("q", worker=name),
    "claim tenant": lambda queue, name: queue.claim("q", tenant=name),
    "claim not_groups": lambda queue, name: queue.claim("q", not_groups=["g", name]),
    "progress note": lambda queue, name: queue.progress(Lease("a", 1), 5, name),
    "set_limit tenant": lambda queue, name: queue.limits.set("q", tenant=name, concurrency=1),
    "pause tenant": lambda queue, name: queue.pause("q", tenant=name),
    "resume tenant": lambda queue, name: queue.resume("q", tenant=name),
    "clear_limit tenant": lambda queue, name: queue.limits.clear("q", tenant=name),
}
LOOKUPS: dict[str, Call] = {
    "ack id": lambda queue, name: queue.ack(Lease(name, 1)),
    "jobs queue": lambda queue, name: queue.jobs(queue=name),
    "jobs tenant": lambda queue, name: queue.jobs(tenant=name),
    "jobs group": lambda queue, name: queue.jobs(group=name),
    "jobs kind": lambda queue, name: queue.jobs(kind=name),
    "jobs cursor": lambda queue, name: queue.jobs(cursor=name),
    "jobs state": lambda queue, name: queue.jobs(state=name),
    "tenants queue": lambda queue, name: queue.tenants(name),
    "tenants after": lambda queue, name: queue.tenants("q", after=name),
    "groups queue": lambda queue, name: queue.groups(name),
    "groups tenant": lambda queue, name: queue.groups("q", tenant=name),
    "groups after": lambda queue, name: queue.groups("q", after=name),
    "limits queue": lambda queue, name: queue.limits.list(name),
    "cancel queue": lambda queue, name: queue.cancel(queue=name),
    "cancel tenant": lambda queue, name: queue.cancel(tenant=name),
    "replay group": lambda queue, name: queue.replay(group=name),
    "delete kind": lambda queue, name: queue.delete(kind=name),
    "purge queue": lambda queue, name: queue.purge(0, queue=name),
    "slots scope": lambda queue, name: queue.slots.list(name, "key"),
    "slots key": lambda queue, name: queue.slots.list("scope", name),
    "drop_slot scope": lambda queue, name: queue.slots.drop(name, "key", "holder"),
    "drop_slot key": lambda queue, name: queue.slots.drop("scope", name, "holder"),
    "drop_slot holder": lambda queue, name: queue.slots.drop("scope", "key", name),
    "reconcile tenant": lambda queue, name: queue.reconcile("q", tenant=name),
    "reconcile group": lambda queue, name: queue.reconcile("q", group=name),
    "reconcile_slots scope": lambda queue, name: queue.slots.reconcile(name, "key"),
    "reconcile_slots key": lambda queue, name: queue.slots.reconcile("scope", name),
    "drop_schedule name": lambda queue, name: queue.schedules.drop(name),
    "put_schedule cron": lambda queue, name: queue.schedules.put("s", name, NewJob(queue="q")),
    "put_schedule tz": lambda queue, name: queue.schedules.put(
        "s", "* * * * *", NewJob(queue="q"), tz=name
    ),
}


@pytest.mark.parametrize("call", NAMES.values(), ids=NAMES.keys())
@pytest.mark.usefixtures("job")
def test_a_bad_name_is_refused(queue: Queue, call: Call) -> None:
    refuses(queue, call, BAD_LABELS | {"empty": ""})


@pytest.mark.parametrize("call", LABELS.values(), ids=LABELS.keys())
@pytest.mark.usefixtures("job")
def test_a_bad_label_is_refused(queue: Queue, call: Call) -> None:
    refuses(queue, call, BAD_LABELS)


@pytest.mark.parametrize("call", LOOKUPS.values(), ids=LOOKUPS.keys())
@pytest.mark.usefixtures("job")
def test_what_is_no_text_is_not_looked_up(queue: Queue, call: Call) -> None:
    refuses(queue, call, WRONG_TYPES)


# Payloads ---------------------------------------------------------------------------------------


def deep() -> Any:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


PAYLOADS: dict[str, Callable[[], Any]] = {
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "nested NaN": lambda: {"a": [1, {"b": (2, float("nan"))}]},
    "bytes": lambda: b"bytes",
    "nested bytes": lambda: {"a": [b"bytes"]},
    "bytearray": lambda: bytearray(b"x"),
    "set": lambda: {1, 2},
    "empty set": set,
    "frozenset": lambda: [frozenset()],
    "object": object,
    "class": lambda: int,
    "function": lambda: print,
    "complex": lambda: 1j,
    "decimal": lambda: Decimal(1),
    "datetime": lambda: datetime(2024, 1, 1, tzinfo=UTC),
    "timedelta": lambda: timedelta(1),
    "uuid": lambda: uuid.UUID(int=0),
    "exception": lambda: ValueError("x"),
    "lone surrogate": lambda: "\ud800",
    "lone surrogate in a tuple": lambda: ("\udfff",),
    "lone surrogate as a key": lambda: {"\ud800": 1},
    "tuple as a key": lambda: {(1, 2): 3},
    "bytes as a key": lambda: {b"a": 1},
    "raw that is no JSON": lambda: msgspec.Raw(b"{not json"),
    "raw that is nothing": lambda: msgspec.Raw(b""),
    "too deep": deep,
    "circular": circular,
}


@pytest.mark.usefixtures("job")
def test_a_payload_that_is_not_json_is_refused(queue: Queue) -> None:
    for name, make in PAYLOADS.items():
        value = make()
        with nothing_changes(queue), pytest.raises(InvalidPayload) as caught:
            queue.enqueue("q", value)
        assert caught.value.field == "payload", name
        with nothing_changes(queue), pytest.raises(InvalidPayload) as caught:
            queue.enqueue_many([NewJob(queue="q"), NewJob(queue="q", payload=value)])
        assert caught.value.field == "jobs[1].payload", name


def test_a_result_that_is_not_json_is_refused(queue: Queue, job: Job) -> None:
    values = {name: make() for name, make in PAYLOADS.items()}
    refuses(queue, lambda queue, value: queue.ack(job, value), values)
    refuses(queue, lambda queue, value: queue.ack_many([job], results=[value]), values)
    with pytest.raises(InvalidPayload) as caught:
        queue.ack(job, float("nan"))
    assert caught.value.field == "result"


# Numbers and spans ------------------------------------------------------------------------------

SPANS: dict[str, Call] = {
    "enqueue delay": lambda queue, span: queue.enqueue("q", delay=span),
    "enqueue expires_in": lambda queue, span: queue.enqueue("q", expires_in=span),
    "enqueue timeout": lambda queue, span: queue.enqueue("q", timeout=span),
    "claim lease": lambda queue, span: queue.claim("q", lease=span),
    "extend": lambda queue, span: queue.extend(Lease("a", 1), span),
    "extend_many": lambda queue, span: queue.extend_many([Lease("a", 1)], span),
    "fail retry_in": lambda queue, span: queue.fail(Lease("a", 1), retry_in=span),
    "release delay": lambda queue, span: queue.release(Lease("a", 1), delay=span),
    "take_slot ttl": lambda queue, span: queue.slots.take("scope", "key", "h", span),
    "set_limit per": lambda queue, span: queue.limits.set("q", rate=1, per=span),
    "purge older_than": lambda queue, span: queue.purge(span),
}
BAD_SPANS: dict[str, Any] = {
    "negative": -1,
    "negative timedelta": timedelta(seconds=-1),
    "a little negative": -1e-9,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "over a century": 4e9,
    "huge": 10**400,
    "text": "5",
    "empty text": "",
    "bool": True,
    "list": [5],
    "datetime": datetime(2030, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("call", SPANS.values(), ids=SPANS.keys())
@pytest.mark.usefixtures("job")
def test_a_span_that_cannot_be_is_refused(queue: Queue, call: Call) -> None:
    refuses(queue, call, BAD_SPANS)


@pytest.mark.parametrize(
    "name",
    ["enqueue expires_in", "enqueue timeout", "claim lease", "extend", "take_slot ttl"],
)
@pytest.mark.usefixtures("job")
def test_a_span_that_must_not_be_nothing_is_refused(queue: Queue, name: str) -> None:
    nothing = {"zero": 0, "less than a millisecond": 0.0004, "timedelta": timedelta(0)}
    refuses(queue, SPANS[name], nothing)


NUMBERS: dict[str, tuple[Call, list[Any]]] = {
    "enqueue priority": (
        lambda queue, n: queue.enqueue("q", priority=n),
        [2**31, -(2**31) - 1, None],
    ),
    "enqueue max_attempts": (
        lambda queue, n: queue.enqueue("q", max_attempts=n),
        [0, -1, 1_000_001, None],
    ),
    "claim limit": (lambda queue, n: queue.claim("q", limit=n), [0, -1, 1_001, None]),
    "jobs limit": (lambda queue, n: queue.jobs(limit=n), [0, -1, 10_001, None]),
    "tenants limit": (lambda queue, n: queue.tenants("q", limit=n), [0, -1, 10_001, None]),
    "groups limit": (lambda queue, n: queue.groups("q", limit=n), [0, -1, 10_001, None]),
    "take_slot limit": (
        lambda queue, n: queue.slots.take("scope", "key", "h", 1, limit=n),
        [0, -1, 10**9 + 1],
    ),
    "maintain limit": (lambda queue, n: queue.maintain(limit=n), [0, -1, 100_001, None]),
}
EVERYWHERE: list[Any] = [1.5, 1.0, "1", True, [1], float("nan"), 10**400]


@pytest.mark.parametrize(("call", "own"), NUMBERS.values(), ids=NUMBERS.keys())
@pytest.mark.usefixtures("job")
def test_a_number_that_cannot_be_is_refused(queue: Queue, call: Call, own: list[Any]) -> None:
    refuses(queue, call, {f"{n!r:.30}": n for n in [*own, *EVERYWHERE]})


@pytest.mark.usefixtures("job")
def test_a_percentage_that_cannot_be_is_refused(queue: Queue) -> None:
    whole = [n for n in EVERYWHERE if n not in (1.5, 1.0)]  # a float is rounded
    values = [-1, 101, 100.6, -0.6, float("inf"), None, *whole, True]
    refuses(
        queue,
        lambda queue, n: queue.progress(Lease("a", 1), n),
        {f"{n!r:.30}": n for n in values},
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"run_at": 1_900_000_000},
        {"run_at": "2030-01-01T00:00:00Z"},
        {"run_at": datetime(1900, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(9999, 12, 31, tzinfo=UTC)},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
        {"run_at": timedelta(1)},
    ],
    ids=str,
)
def test_a_time_that_cannot_be_is_refused(queue: Queue, fields: Any) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="run_at"):
        queue.enqueue("q", **fields)


# Choices and shapes -----------------------------------------------------------------------------

SHAPES: dict[str, Call] = {
    "enqueue if_parent_fails": lambda queue, job: queue.enqueue("q", if_parent_fails="die"),
    "enqueue if_exists": lambda queue, job: queue.enqueue("q", if_exists="replace"),
    "enqueue_many if_exists": lambda queue, job: queue.enqueue_many(
        [NewJob(queue="q")], if_exists=None
    ),
    "enqueue backoff": lambda queue, job: queue.enqueue("q", backoff=5),
    "enqueue after one id": lambda queue, job: queue.enqueue("q", after="done"),
    "enqueue after a number": lambda queue, job: queue.enqueue("q", after=5),
    "enqueue_many after one id": lambda queue, job: queue.enqueue_many(
        [NewJob(queue="q", after="done")]
    ),
    "enqueue_many after a number": lambda queue, job: queue.enqueue_many(
        [NewJob(queue="q", after=5)]  # type: ignore[arg-type]
    ),
    "enqueue_many of nothing": lambda queue, job: queue.enqueue_many(None),
    "enqueue_many of one job": lambda queue, job: queue.enqueue_many(NewJob(queue="q")),
    "enqueue_many of dicts": lambda queue, job: queue.enqueue_many([{"queue": "q"}]),
    "enqueue_many of text": lambda queue, job: queue.enqueue_many("q"),
    "claim no queue": lambda queue, job: queue.claim([]),
    "claim a number": lambda queue, job: queue.claim(5),
    "claim not_groups one name": lambda queue, job: queue.claim("q", not_groups="group"),
    "claim not_groups a number": lambda queue, job: queue.claim("q", not_groups=5),
    "ack nothing": lambda queue, job: queue.ack(None),
    "ack an id": lambda queue, job: queue.ack("a"),
    "ack then nothing": lambda queue, job: queue.ack(job, then=None),
    "ack then one job": lambda queue, job: queue.ack(job, then=NewJob(queue="q")),
    "ack then dicts": lambda queue, job: queue.ack(job, then=[{"queue": "q"}]),
    "ack_many ids": lambda queue, job: queue.ack_many(["a"]),
    "ack_many one": lambda queue, job: queue.ack_many(job),
    "fail an id": lambda queue, job: queue.fail("a"),
    "fail_many ids": lambda queue, job: queue.fail_many(["a"]),
    "release an id": lambda queue, job: queue.release("a"),
    "extend an id": lambda queue, job: queue.extend("a"),
    "progress an id": lambda queue, job: queue.progress("a", 5),
    "get a job": lambda queue, job: queue.get(job),
    "jobs state": lambda queue, job: queue.jobs(state="ready"),
    "jobs one bad state": lambda queue, job: queue.jobs(state=["done", "ready"]),
    "cancel a number": lambda queue, job: queue.cancel(5),
    "replay a number": lambda queue, job: queue.replay(5),
    "delete a number": lambda queue, job: queue.delete(5),
    "delete state": lambda queue, job: queue.delete("a", state="ready"),
    "put_schedule a dict": lambda queue, job: queue.schedules.put("s", "* * * * *", {"queue": "q"}),
    "put_schedule catch_up": lambda queue, job: queue.schedules.put(
        "s", "* * * * *", NewJob(queue="q"), catch_up=None
    ),
    "fire a name": lambda queue, job: queue.schedules.fire("nightly"),
}


@pytest.mark.parametrize("call", SHAPES.values(), ids=SHAPES.keys())
def test_a_value_of_the_wrong_shape_is_refused(queue: Queue, job: Job, call: Call) -> None:
    refuses(queue, call, {"it": job})


@pytest.mark.parametrize(
    "field",
    [
        {"priority": 1.0},
        {"priority": True},
        {"max_attempts": 1.0},
        {"max_attempts": True},
    ],
    ids=str,
)
def test_a_number_is_refused_though_the_job_before_it_was_like_it(queue: Queue, field: Any) -> None:
    (name,) = field
    good: dict[str, Any] = {name: 1}
    with nothing_changes(queue), pytest.raises(InvalidInput, match=name):
        queue.enqueue_many([NewJob(queue="q", **good), NewJob(queue="q", **field)])


def test_too_many_jobs_for_one_call_are_refused(queue: Queue) -> None:
    queue.enqueue("q")
    job = NewJob(queue="q")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="jobs: 100,001"):
        queue.enqueue_many(job for _ in range(100_001))
