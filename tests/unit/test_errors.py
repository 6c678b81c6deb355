"""The tree of errors: drawn as it is, each with a code of its own."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

import tenure
from tenure import (
    Busy,
    ChildFailed,
    Closed,
    Conflict,
    DependencyCycle,
    DependencyNotFound,
    Duplicate,
    Forbidden,
    InvalidInput,
    InvalidPayload,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NoCurrentJob,
    NotAllowed,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    TenureError,
    Unauthorized,
    WaitTimeout,
    WrongVersion,
    errors,
)

EXAMPLES: list[TenureError] = [
    TenureError("plain", a=1),
    InvalidInput("limit", "too small"),
    InvalidPayload("payload", "is not JSON"),
    PayloadTooLarge("payload", "is large"),
    DependencyCycle(["a", "b", "a"]),
    NotFound("nowhere"),
    JobNotFound("a"),
    QueueNotFound("q"),
    ScheduleNotFound("s"),
    DependencyNotFound("a"),
    Conflict("no"),
    Duplicate("id", "a", "a"),
    LeaseLost("a", "done"),
    JobFailed("a", "dead", "boom"),
    ChildFailed("labels", "a", "dead", "boom"),
    WaitTimeout("a", "pending", 0.5),
    NoCurrentJob("none"),
    NotAllowed("no"),
    Unauthorized("who are you"),
    Forbidden("not you"),
    Busy("busy"),
    Closed("closed"),
    StoreError("broken"),
    StoreRejected("not that"),
    OutcomeUnknown("lost"),
    StoreFull("full"),
    StoreReadOnly("read-only"),
    NotAStore("not one"),
    WrongVersion("old"),
]
examples = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def classes() -> dict[str, type[TenureError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, TenureError)
    }


def drawn() -> dict[str, str]:
    """Each class of the drawing, with its parent."""
    found: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?: {2,}|$)", line)
        if match is None:
            continue
        depth, name = len(match[1]) // 4, match[2]
        path = [*path[:depth], name]
        found[name] = path[depth - 1] if depth else ""
    return found


def test_the_tree_is_as_it_is_drawn() -> None:
    made = {
        name: kind.__bases__[0].__name__ if kind is not TenureError else ""
        for name, kind in classes().items()
    }
    assert drawn() == made


def test_every_error_is_public() -> None:
    assert set(classes()) <= set(tenure.__all__)
    assert all(getattr(tenure, name) is kind for name, kind in classes().items())


def test_every_error_has_a_code_of_its_own() -> None:
    codes = {name: kind.code for name, kind in classes().items()}
    assert len(set(codes.values())) == len(codes)
    for code in codes.values():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)


def test_codes_do_not_change() -> None:
    assert {kind.code for kind in classes().values()} == {
        "error",
        "invalid",
        "invalid_payload",
        "payload_too_large",
        "dependency_cycle",
        "not_found",
        "job_not_found",
        "queue_not_found",
        "schedule_not_found",
        "dependency_not_found",
        "conflict",
        "duplicate",
        "lease_lost",
        "job_failed",
        "child_failed",
        "wait_timeout",
        "no_current_job",
        "not_allowed",
        "unauthorized",
        "forbidden",
        "busy",
        "closed",
        "store_error",
        "store_rejected",
        "outcome_unknown",
        "store_full",
        "store_read_only",
        "not_a_store",
        "wrong_version",
    }


def test_this_test_knows_every_error() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == set(classes())


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(NotFound, LookupError)
    assert not issubclass(NotFound, KeyError)  # whose text is quoted


@examples
def test_an_error_says_what_is_wrong(error: TenureError) -> None:
    assert str(error) == error.message
    assert error.args == (error.message,)
    assert type(error).__doc__


@examples
def test_an_error_equals_its_like_and_no_other(error: TenureError) -> None:
    assert [other == error for other in EXAMPLES].count(True) == 1
    assert error != str(error)
    assert isinstance(hash(error), int)


@examples
def test_an_error_goes_from_process_to_process(error: TenureError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (InvalidInput("limit", "is small"), {"field": "limit"}),
        (JobNotFound("a"), {"id": "a"}),
        (QueueNotFound("q"), {"queue": "q"}),
        (ScheduleNotFound("s"), {"name": "s"}),
        (DependencyNotFound("a"), {"id": "a"}),
        (Duplicate("unique_key", "k", "a"), {"field": "unique_key", "value": "k", "id": "a"}),
        (LeaseLost("a", "done"), {"id": "a", "state": "done"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_brings_its_details(error: TenureError, details: dict[str, Any]) -> None:
    assert error.details == details
    for value in details.values():
        assert str(value) in str(error)


def test_a_cycle_names_its_jobs() -> None:
    error = DependencyCycle(["a", "b", "a"])
    assert (error.ids, error.field) == (["a", "b", "a"], "after")
    assert "a, b, a" in str(error)
