"""Bounds stand once, with the types of the operations."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from tenure import InvalidInput
from tenure.model import ops, queries
from tenure.model.fields import MAX_NAME, Name, check, check_fields, check_names, validated
from tenure.model.job import JobSpec
from tenure.model.wire import received, received_query
from tenure.queue.arguments import claim_op
from tests.support.kinds import kinds_of

LIMIT = 1_000_000
RAW = msgspec.Raw(b"1")

BAD: list[tuple[ops.Op, str]] = [
    (ops.SetLimit("q", "acme", rate=1, per_ms=1_000), "rate: a rate applies to a whole queue"),
    (ops.SetLimit("q", rate=1), "rate: rate and per belong together"),
    (ops.SetLimit("q", weight=2), "weight: a weight applies to a tenant"),
    (ops.SetLimit("q", "acme", "g", weight=2), "weight: a weight applies to a tenant"),
    (ops.SetLimit("q"), "limit: give concurrency"),
    (ops.SetLimit("q", concurrency=0), "concurrency: 0 must be a whole number from 1"),
    (ops.SetLimit("q", None, "g", concurrency=1), "tenant: name the tenant of the group"),
    (ops.ClearLimit("q", None, "g"), "tenant: name the tenant of the group"),
    (ops.SetLimit("q", "é" * MAX_NAME, "é" * MAX_NAME * 2, 1), "group: is 1024 characters long"),
    (ops.Pause("q", "*"), "pause: pause the whole queue"),
    (ops.Pause("q", "acme", "*"), "pause: pause the whole queue"),
    (ops.Resume("q", "*"), "pause: pause the whole queue"),
    (ops.Claim((), "w", 1), "queues: name at least one"),
    (ops.Claim(("",), "w", 1), "queues: must not be empty"),
    (ops.Claim(("q",), "w", 0), "lease_ms: 0 must be a whole number from 1"),
    (ops.Claim(("q",), "w", 1, 1_001), "limit: 1001 must be a whole number from 1 to 1,000"),
    (ops.Claim(("q",), "w\0", 1), "worker: must not contain a NUL"),
    (ops.Claim(("q",), "\ud800", 1), "worker: is not valid Unicode"),
    (ops.Progress("a", 1, 101), "percent: 101 must be"),
    (ops.Release("a", 1, -1), "delay_ms: -1 must be"),
    (ops.Ack("", 1), "id: must not be empty"),
    (ops.Ack("a", 2**63), "token: "),
    (ops.TakeSlot("s", "k", "h", 0), "ttl_ms: 0 must be"),
    (ops.TakeSlot("é" * 512, "é" * 512, "é" * 512, 1), "holder: makes 3,072 bytes of names"),
    (ops.Maintain(100_001), "limit: 100001 must be"),
    (ops.Cancel(("",)), "ids: must not be empty"),
    (ops.Enqueue((JobSpec("a", "q", RAW, tenant="*"),)), "tenant: '*' is reserved"),
    (ops.Enqueue((JobSpec("a", "q", RAW, trace="x"),)), "trace: 'x' is not a traceparent"),
    (ops.Enqueue((JobSpec("a", "q", RAW, after=("",)),)), "after: must not be empty"),
    (ops.PutSchedule(ops.Schedule("s", "* * *", JobSpec("a", "q", RAW))), "cron: "),
]


@pytest.mark.parametrize(
    ("op", "text"), BAD, ids=[f"{type(op).__name__} {text}" for op, text in BAD]
)
def test_what_python_may_not_ask_for_a_stranger_may_not_either(op: ops.Op, text: str) -> None:
    with pytest.raises(InvalidInput) as by_python:
        validated(op)
    with pytest.raises(InvalidInput) as by_wire:
        received(op, LIMIT)
    assert str(by_python.value).startswith(text)
    assert str(by_wire.value).startswith(f"{type(op).__name__}.{text}")


def test_a_query_is_checked_the_same_way() -> None:
    with pytest.raises(InvalidInput, match=r"ListJobs.limit: 10001 must be"):
        received_query(queries.ListJobs(limit=10_001))
    with pytest.raises(InvalidInput, match=r"^queue: must not be empty"):
        validated(queries.ListJobs(queries.Filter(queue="")))


@pytest.mark.parametrize(("value", "reason"), [(7, "must be text, not int"), (True, "not bool")])
def test_a_name_is_text(value: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check("id", value, Name)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "must not be empty"),
        ("x" * (MAX_NAME + 1), "is 513 characters long"),
        ("a\0", "NUL"),
        ("\ud800", "surrogate"),
    ],
)
def test_each_of_several_names_is_checked(wrong: str, reason: str) -> None:
    check_names("id", [])
    check_names("id", ["a", "é", "x" * MAX_NAME, "y" * MAX_NAME])
    for names in ([wrong], ["a", wrong, "b"], ["é", wrong]):
        with pytest.raises(InvalidInput, match=f"id: .*{reason}"):
            check_names("id", names)


def test_a_claim_is_checked_even_if_an_equal_one_was_valid() -> None:
    valid = claim_op(("mail",), "w", 60, 1, None, ())
    assert valid == ops.Claim(("mail",), "w", 60_000, 1)
    assert claim_op(("mail",), "w", 60.0, 1, None, ()) == valid
    wrong: Any = True
    with pytest.raises(InvalidInput, match="limit: True must be a whole number"):
        claim_op(("mail",), "w", 60, wrong, None, ())
    unhashable: Any = ([],)
    for queues in (unhashable, ()):
        with pytest.raises(InvalidInput, match="queues: "):
            claim_op(queues, "w", 60, 1, None, ())


def test_true_is_no_number() -> None:
    wrong: Any = True
    with pytest.raises(InvalidInput, match="percent: True must be a whole number"):
        check_fields(ops.Progress("a", 1, wrong))


def test_a_stranger_does_not_say_what_only_the_store_may() -> None:
    spec = JobSpec("a", "q", RAW, made_up_id=True)
    (job,) = received(ops.Enqueue((spec,)), LIMIT).jobs  # type: ignore[attr-defined]
    assert not job.made_up_id
    sent = ops.PutSchedule(ops.Schedule("s", "* * * * *", spec, next_at=5, last_at=4))
    kept = received(sent, LIMIT)
    assert isinstance(kept, ops.PutSchedule)
    assert (kept.schedule.next_at, kept.schedule.last_at) == (0, None)


ASKED = [*kinds_of(ops.Op), *kinds_of(queries.Query)]
FREE = {
    "Fail": {"message", "type", "traceback"},  # cut to length instead
    "Release": {"message", "type"},
    "Once": {"fingerprint", "kept"},  # the service makes it
}


@pytest.mark.parametrize("kind", ASKED, ids=lambda kind: kind.__name__)
def test_every_name_and_number_of_an_operation_has_bounds(kind: type[Any]) -> None:
    """A new field without bounds fails here."""
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        if name in FREE.get(kind.__name__, ()):
            continue
        kinds = [one for one in get_args(hints[name]) or [hints[name]] if one is not type(None)]
        if get_origin(hints[name]) is Annotated:
            continue
        assert str not in kinds, f"{kind.__name__}.{name}"
        assert int not in kinds, f"{kind.__name__}.{name}"
