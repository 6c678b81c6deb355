"""A job: what is checked before it is stored, and what is read back."""

from __future__ import annotations

import inspect
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tenure
from tenure import DependencyCycle, InvalidInput, InvalidPayload, NewJob, PayloadTooLarge, fixed
from tenure.model import fields
from tenure.model import job as jobs
from tenure.model.fields import (
    MAX_AFTER,
    MAX_ATTEMPTS,
    MAX_NAME,
    MAX_PRIORITY,
    MAX_SPAN_MS,
    MIN_PRIORITY,
    check_label,
    check_name,
    moment_ms,
    span_ms,
)
from tenure.model.job import (
    Failure,
    Job,
    JobSpec,
    State,
    check_cycles,
    encode_json,
    new_ids,
    prepare,
)
from tenure.server.bodies import JobBody
from tenure.tasks.task import Options

NOW = 1_700_000_000_000
LIMIT = 1_000
CENTURY = MAX_SPAN_MS / 1000


def prepared(**fields: Any) -> JobSpec:
    (spec,) = prepare([NewJob(**({"queue": "q"} | fields))], NOW, LIMIT)
    return spec


# Ids --------------------------------------------------------------------------------------------


@given(now=st.integers(0, 2**48 - 1), count=st.integers(0, 50))
def test_an_id_is_a_uuid_of_version_7(now: int, count: int) -> None:
    made = new_ids(now, count)
    assert len(set(made)) == len(made) == count
    for one in made:
        parsed = uuid.UUID(one)
        assert str(parsed) == one
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert parsed.int >> 80 == now


def test_ids_that_are_made_later_sort_later() -> None:
    made = [one for ms in range(500) for one in new_ids(NOW + ms, 1)]
    assert made == sorted(made)


def test_ids_of_one_millisecond_sort_in_the_order_they_were_made() -> None:
    made = new_ids(NOW, 1_000)
    # The part that counts begins anywhere, and may begin anew once.
    assert sum(one > other for one, other in pairwise(made)) <= 1


def test_ids_do_not_repeat() -> None:
    assert len(set(new_ids(NOW, 300_000))) == 300_000


def test_ids_are_made_of_the_randomness_of_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state of Python's own generator can be computed from some hundred ids."""
    monkeypatch.setattr(jobs, "_noise", [])
    monkeypatch.setattr(os, "urandom", lambda n: b"\xab" * n)
    for made in [*new_ids(NOW, 1), *new_ids(NOW, 2)]:
        assert made.replace("-", "")[-14:] == "ab" * 7


def test_threads_that_make_ids_at_once_never_make_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_ids(NOW, 1)[0], range(20_000)))
    assert len({one[-17:] for one in made}) == len(made)


# What is stored ---------------------------------------------------------------------------------


def test_a_job_is_stored_as_it_was_asked_for() -> None:
    spec = prepared(
        payload={"n": 1},
        kind="k",
        tenant="t",
        group="g",
        priority=-5,
        delay=1.5,
        id="a",
        unique_key="u",
        after=["x", "y", "x"],
        if_parent_fails="run",
        max_attempts=7,
        backoff=fixed(5),
        expires_in=timedelta(minutes=1),
        timeout=30,
    )
    assert (spec.id, spec.queue, bytes(spec.payload)) == ("a", "q", b'{"n":1}')
    assert (spec.kind, spec.tenant, spec.group, spec.priority) == ("k", "t", "g", -5)
    assert (spec.delay_ms, spec.run_at, spec.unique_key) == (1_500, None, "u")
    assert (spec.after, spec.if_parent_fails, spec.max_attempts) == (("x", "y"), "run", 7)
    assert (spec.backoff, spec.expires_in_ms, spec.timeout_ms) == (fixed(5), 60_000, 30_000)
    assert not spec.made_up_id
    assert spec.starts_at(NOW) == NOW + 1_500


def test_a_job_without_an_id_gets_one() -> None:
    spec = prepared()
    assert spec.made_up_id
    assert uuid.UUID(spec.id).int >> 80 == NOW


def test_a_time_is_stored_as_milliseconds() -> None:
    spec = prepared(run_at=datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    assert spec.run_at == spec.starts_at(NOW) == 1_893_492_000_000


def test_many_are_prepared_as_each_alone() -> None:
    jobs = [
        NewJob(queue="q", id="1"),
        NewJob(queue="q", id="2", payload=[1]),
        NewJob(queue="q", id="3", tenant="t", priority=1),
        NewJob(queue="r", id="4", delay=5),
        NewJob(queue="q", id="5"),
    ]
    alone = [spec for job in jobs for spec in prepare([job], NOW, LIMIT)]
    together = prepare(jobs, NOW, LIMIT)
    assert msgspec.json.encode(together) == msgspec.json.encode(alone)
    assert prepare([], NOW, LIMIT) == []


@pytest.mark.parametrize(
    "payload",
    [
        {"a": [1, 2.5, None, True, "\n\u2028"]},
        (1, 2),
        {1: "a number as a key"},
        msgspec.Raw(b'{"formatted":\n  1}'),
        2**63,
        "x" * 100_000,
    ],
)
def test_payloads_of_plain_jobs_are_encoded_as_each_alone(payload: object) -> None:
    payloads = [None, payload, "last"] * 100
    together = prepare([NewJob(queue="q", payload=one) for one in payloads], NOW, 10**6)
    alone = [prepare([NewJob(queue="q", payload=one)], NOW, 10**6)[0].payload for one in payloads]
    assert [bytes(spec.payload) for spec in together] == [bytes(one) for one in alone]
    assert len({spec.id for spec in together}) == 300
    assert all(spec.made_up_id for spec in together)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"payload": float("nan")}, "jobs[200].payload"),
        ({"payload": b"bytes"}, "jobs[200].payload"),
        ({"payload": "x" * LIMIT}, "jobs[200].payload"),
        ({"queue": ""}, "jobs[200].queue"),
        ({"tenant": "*"}, "jobs[200].tenant"),
        ({"kind": ["unhashable"]}, "jobs[200].kind"),
        ({"priority": True}, "jobs[200].priority"),
        ({"priority": 1.0}, "jobs[200].priority"),
        ({"max_attempts": 0}, "jobs[200].max_attempts"),
    ],
)
def test_the_invalid_one_of_many_plain_jobs_is_named(fields: dict[str, Any], named: str) -> None:
    plain = [NewJob(queue="q", priority=1) for _ in range(200)]
    options: dict[str, Any] = {"queue": "q", "priority": 1, **fields}
    wrong = NewJob(**options)
    with pytest.raises(InvalidInput) as error:
        prepare([*plain, wrong, *plain], NOW, LIMIT)
    assert error.value.field == named


@pytest.mark.parametrize(
    ("raws", "first"),
    [
        ([b"1", b""], 1),
        ([b"1", b" "], 1),
        ([b"1", b"1 2"], 1),
        ([b"", b"1 2"], 0),  # two values in two lines
        ([b"[1,", b"2] 3"], 0),
        ([b'"\xff"', b"1"], 0),
    ],
)
def test_each_of_many_texts_must_be_json(raws: list[bytes], first: int) -> None:
    payloads = [msgspec.Raw(one) for one in raws * 100]
    with pytest.raises(InvalidPayload) as error:
        prepare([NewJob(queue="q", payload=one) for one in payloads], NOW, LIMIT)
    assert error.value.field == f"jobs[{first}].payload"


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "n" * MAX_NAME},
        {"tenant": "n" * MAX_NAME, "group": "n" * MAX_NAME, "kind": "n" * MAX_NAME},
        {"id": "🫐" * MAX_NAME, "unique_key": "🫐" * MAX_NAME},
        {"priority": MIN_PRIORITY},
        {"priority": MAX_PRIORITY},
        {"max_attempts": 1},
        {"max_attempts": MAX_ATTEMPTS},
        {"delay": CENTURY},
        {"expires_in": 0.001, "timeout": 0.001},
        {"expires_in": CENTURY, "timeout": CENTURY},
        {"payload": "x" * (LIMIT - 2)},
        {"after": [str(n) for n in range(MAX_AFTER)]},
        {"after": ["same"] * (MAX_AFTER + 1)},
        {"after": ("tuple",)},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ],
    ids=lambda fields: repr(fields)[:30],
)
def test_a_job_may_go_to_the_limits(fields: dict[str, Any]) -> None:
    prepared(**fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "n" * (MAX_NAME + 1)}, "queue"),
        ({"queue": None}, "queue"),
        ({"tenant": "a\0"}, "tenant"),
        ({"tenant": None}, "tenant"),
        ({"group": "\ud800"}, "group"),
        ({"group": ["g"]}, "group"),
        ({"kind": 5}, "kind"),
        ({"id": ""}, "id"),
        ({"id": 5}, "id"),
        ({"id": "n" * (MAX_NAME + 1)}, "id"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "\0"}, "unique_key"),
        ({"priority": MAX_PRIORITY + 1}, "priority"),
        ({"priority": MIN_PRIORITY - 1}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": MAX_ATTEMPTS + 1}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"delay": -0.001}, "delay"),
        ({"delay": CENTURY + 1}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"expires_in": 0}, "expires_in"),
        ({"timeout": 0}, "timeout"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "run_at"),
        ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at"),
        ({"after": "abc"}, "after"),
        ({"after": [""]}, "after"),
        ({"after": [5]}, "after"),
        ({"after": [str(n) for n in range(MAX_AFTER + 1)]}, "after"),
        ({"after": [f"{n:0500}" for n in range(2_001)]}, "after"),
        ({"if_parent_fails": "die"}, "if_parent_fails"),
        ({"backoff": 5}, "backoff"),
        ({"payload": float("nan")}, "payload"),
        ({"payload": "x" * (LIMIT - 1)}, "payload"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_over_a_limit_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        prepared(**fields)
    assert caught.value.field == field
    with pytest.raises(type(caught.value)) as among_many:
        prepare([NewJob(queue="q"), NewJob(**({"queue": "q"} | fields))], NOW, LIMIT)
    assert among_many.value.field == f"jobs[1].{field}"


# The parts --------------------------------------------------------------------------------------


@given(st.text(max_size=20))
def test_a_label_is_any_text_without_nul(name: str) -> None:
    if "\0" in name:
        with pytest.raises(InvalidInput):
            check_label("name", name)
    else:
        assert check_label("name", name) == name


def test_a_name_is_a_label_that_is_not_empty() -> None:
    assert check_label("name", "") == ""
    assert check_name("name", "a") == "a"
    with pytest.raises(InvalidInput, match="name: must not be empty"):
        check_name("name", "")


@given(st.integers(0, MAX_SPAN_MS))
def test_spans_are_kept_to_the_millisecond(ms: int) -> None:
    assert span_ms("span", ms / 1000) == ms
    assert span_ms("span", timedelta(milliseconds=ms)) == ms


@given(st.datetimes(datetime(1970, 1, 2), datetime(2160, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_moments_are_kept_to_the_millisecond(moment: datetime) -> None:
    ms = moment_ms("at", moment)
    assert abs(datetime.fromtimestamp(ms / 1000, UTC) - moment) <= timedelta(milliseconds=1)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_goes_in_and_comes_out(value: Any) -> None:
    raw = encode_json("payload", value, 10**6)
    again = msgspec.json.decode(raw)
    assert again == value
    assert type(again) is type(value)


@given(st.dictionaries(st.integers(-(2**63), 2**64 - 1), st.tuples(st.text()), max_size=3))
def test_what_json_writes_in_its_own_way_is_text_all_the_same(value: Any) -> None:
    again = msgspec.json.decode(encode_json("payload", value, 10**6))
    assert all(isinstance(key, str) for key in again)
    assert all(isinstance(one, list) for one in again.values())


def test_json_is_counted_in_bytes() -> None:
    assert len(encode_json("payload", "ø" * 4, 10)) == 10
    with pytest.raises(PayloadTooLarge, match="10"):
        encode_json("payload", "ø" * 5, 10)


def test_a_tuple_is_written_as_the_list_that_it_becomes() -> None:
    assert encode_json("payload", ("ø",), 6) == encode_json("payload", ["ø"], 6)


def test_json_that_is_too_deep_is_refused() -> None:
    value: Any = []
    for _ in range(50_000):
        value = [value]
    with pytest.raises(InvalidPayload, match="nested too deeply"):
        encode_json("payload", value, 10**6)


# Cycles -----------------------------------------------------------------------------------------


def naive_cycle(after: dict[str, list[str]]) -> bool:
    """Whether some job can never run: take away what can, until nothing is left or moves."""
    left = dict(after)
    while left:
        free = [one for one, parents in left.items() if not set(parents) & set(left)]
        if not free:
            return True
        for one in free:
            del left[one]
    return False


@given(
    st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgxyz"), max_size=3))
)
def test_a_cycle_is_found_where_there_is_one(after: dict[str, list[str]]) -> None:
    specs = [
        JobSpec(one, "q", msgspec.Raw(b"1"), after=tuple(names)) for one, names in after.items()
    ]
    if not naive_cycle(after):
        check_cycles(specs)
        return
    with pytest.raises(DependencyCycle) as caught:
        check_cycles(specs)
    ids = caught.value.ids
    assert ids[0] == ids[-1]
    assert all(parent in after[child] for child, parent in pairwise(ids))


# What is read back ------------------------------------------------------------------------------


def job(**fields: Any) -> Job:
    base: dict[str, Any] = {
        "id": "a",
        "queue": "q",
        "state": State.DONE,
        "raw_payload": msgspec.Raw(b'{"n":1}'),
        "priority": 0,
        "run_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
        "attempts": 1,
        "max_attempts": 3,
    }
    return Job(**(base | fields))


def test_a_job_shows_its_payload_result_and_last_error() -> None:
    assert (job().payload, job().result, job().error) == ({"n": 1}, None, None)
    full = job(
        raw_result=msgspec.Raw(b"[1]"), errors=(Failure(1, 1, "first"), Failure(2, 2, "second"))
    )
    assert (full.result, full.error) == ([1], "second")


def test_a_payload_is_everybodys_own() -> None:
    one = job()
    one.payload["n"] = 2
    assert one.payload == {"n": 1}


def test_a_job_is_data() -> None:
    full = job(
        raw_result=msgspec.Raw(b"[1]"), errors=(Failure(1, 1, "boom"),), after=("x",), note="n"
    )
    text = msgspec.json.encode(full)
    again = msgspec.json.decode(text, type=Job)
    assert msgspec.json.encode(again) == text
    assert (again.payload, again.result, again.errors) == (full.payload, full.result, full.errors)


def test_a_job_stays_as_it_is() -> None:
    one: Any = job()
    with pytest.raises(AttributeError):
        one.state = State.DEAD


def test_the_limits_of_a_job_are_those_that_programs_rely_on() -> None:
    """Whoever changes one changes what is stored or refused."""
    assert fields.MAX_NAME == 512
    assert (fields.MIN_PRIORITY, fields.MAX_PRIORITY) == (-2_147_483_648, 2_147_483_647)
    assert fields.MAX_ATTEMPTS == 1_000_000
    assert fields.MAX_SPAN_MS == 3_162_240_000_000
    assert fields.MAX_AFTER == 10_000
    assert fields.MAX_JOBS_PER_CALL == 10_000
    assert fields.MAX_CLAIM == 1_000
    assert jobs.KEPT_FAILURES == 10
    assert fields.MAX_FAILURE_TEXT == 8_192


def test_what_is_no_new_job_is_refused_by_its_type() -> None:
    jobs: Any = [{"queue": "mail"}]
    with pytest.raises(InvalidInput, match="must be a NewJob, not dict"):
        prepare(jobs, 0, 1_000)


@pytest.mark.parametrize("parents_first", [False, True])
def test_many_ways_to_a_job_are_not_all_walked(parents_first: bool) -> None:
    """There are 2**60 of them."""
    layers = [
        [JobSpec(f"{n}{side}", "q", jobs.NULL, after=(f"{n - 1}l", f"{n - 1}r")) for side in "lr"]
        for n in range(1, 61)
    ]
    specs = [spec for layer in layers for spec in layer]
    check_cycles(specs if parents_first else specs[::-1])


def test_whatever_can_be_said_of_a_job_can_be_said_everywhere() -> None:
    """A field that is added to NewJob is added to these, too."""
    said = set(NewJob.__struct_fields__)
    enqueue = set(inspect.signature(tenure.Queue.enqueue).parameters)
    assert said == enqueue - {"self", "if_exists", "connection"}
    assert said == set(Options.__annotations__) - {"if_exists", "connection"} | {"payload", "kind"}
    assert said == set(JobBody.__struct_fields__)


def test_a_spec_makes_a_new_job_like_itself_that_runs_at_once() -> None:
    fields: dict[str, Any] = {
        "payload": {"n": 1},
        "queue": "q",
        "kind": "k",
        "tenant": "t",
        "group": "g",
        "priority": 2,
        "max_attempts": 4,
        "unique_key": "u",
        "after": ("x",),
        "if_parent_fails": "run",
        "backoff": fixed(3),
        "expires_in": 60.0,
        "timeout": 1.5,
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    assert fields.keys() == set(NewJob.__struct_fields__) - {"id", "run_at", "delay"}
    spec = prepared(**fields, id="a", delay=5)
    again = spec.again()
    assert msgspec.json.decode(again.payload) == {"n": 1}
    assert again == NewJob(**fields | {"payload": again.payload})
