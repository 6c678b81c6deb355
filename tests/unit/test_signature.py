"""Arguments as payloads and back: what a worker would choke on is an error where it is enqueued."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput, InvalidPayload
from tenure.tasks.signature import Signature
from tenure.worker.outcome import encode_result


@dataclass
class Address:
    street: str
    number: int = 1


class Plain:
    """No type that JSON can hold."""


class Colour(enum.Enum):
    RED = "red"


class Model:
    """What pydantic's models look like from outside."""

    def __init__(self, n: int) -> None:
        self.n = n

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> Model:
        return cls(value["n"])


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the function with what becomes of its arguments on the way."""
    signature = Signature(function, "task")
    found, named = signature.decode(signature.encode(args, kwargs))
    return function(*found, **named)


def mixed(
    a: int, b: str = "b", *rest: float, c: bool, d: list[int] | None = None, **more: int
) -> Any:
    return a, b, rest, c, d, more


def only_places(a: int, b: int = 2, /, c: int = 3) -> Any:
    return a, b, c


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"c": True}),
        ((1, "x"), {"c": False, "d": [1]}),
        ((1, "x", 0.5, 2.5), {"c": True, "z": 1}),
        ((), {"a": 1, "c": True, "b": "y", "y": 2}),
    ],
)
def test_every_kind_of_parameter_goes_there_and_back(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert there_and_back(mixed, *args, **kwargs) == mixed(*args, **kwargs)


@pytest.mark.parametrize("args", [(1,), (1, 5), (1, 5, 6)])
def test_parameters_without_a_name_go_by_their_place(args: tuple[int, ...]) -> None:
    assert there_and_back(only_places, *args) == only_places(*args)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 7),
        (float, 1),
        (datetime, datetime(2026, 11, 15, 12, tzinfo=UTC)),
        (date, date(2026, 11, 15)),
        (timedelta, timedelta(seconds=5)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (Address, Address("Nygade", 3)),
        (Colour, Colour.RED),
        (Literal["a", "b"], "a"),
        (dict[str, list[Address]], {"x": [Address("Nygade")]}),
        (Any, {"a": [1, None, "x"]}),
        (Any, (1, 2)),
    ],
    ids=str,
)
def test_a_value_arrives_as_its_type(kind: Any, value: Any) -> None:
    def task(value: Any) -> Any:
        return value

    task.__annotations__["value"] = kind
    found = there_and_back(task, value)
    assert found == (list(value) if kind is Any and isinstance(value, tuple) else value)


def test_a_model_of_another_library_arrives_as_one() -> None:
    def task(model: Model) -> Any:
        return model

    found = there_and_back(task, Model(7))
    assert isinstance(found, Model)
    assert found.n == 7


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"x": 1}, "unexpected keyword argument 'x'"),
        (("x",), {}, "Expected `int`, got `str` at `a`"),
        ((True,), {}, "Expected `int`"),
        ((1.5,), {}, "Expected `int`, got `float` at `a`"),
        ((None,), {}, "Expected `int`, got `null` at `a`"),
        ((1,), {"b": math.nan}, "Expected"),
        ((Plain(),), {}, "Plain"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    def task(a: int, b: float = 0.0) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        Signature(task, "fetch").encode(args, kwargs)
    assert caught.value.message.startswith("fetch: ")
    assert says in caught.value.message


@pytest.mark.parametrize("value", [math.nan, math.inf, {"x": [math.nan]}])
def test_what_json_would_turn_into_nothing_is_refused(value: Any) -> None:
    def task(value): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    with pytest.raises(InvalidPayload, match="NaN"):
        Signature(task, "fetch").encode((value,), {})


@pytest.mark.parametrize("value", [datetime.now(UTC), b"x", {1, 2}, Address("x")])
def test_a_type_that_would_arrive_as_another_must_be_annotated(value: Any) -> None:
    def task(value): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    with pytest.raises(InvalidPayload, match="annotate"):
        Signature(task, "fetch").encode((value,), {})


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"[1]", "Expected `object`"),
        (b'{"a": "x"}', "Expected `int`, got `str` at `a`"),
        (b"{}", "missing required field `a`"),
        (b'{"a": 1, "z": 1}', "unknown field `z`"),
        (b"null", "missing required field `a`"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(payload: bytes, says: str) -> None:
    def task(a: int) -> None: ...

    with pytest.raises(InvalidInput, match=says) as caught:
        Signature(task, "fetch").decode(msgspec.Raw(payload))
    assert caught.value.message.startswith("fetch: the payload does not fit")


def test_no_payload_is_no_arguments() -> None:
    def task(a: int = 5) -> int:
        return a

    args, kwargs = Signature(task, "task").decode(msgspec.Raw(b"null"))
    assert task(*args, **kwargs) == 5


def test_annotations_that_cannot_be_read_are_an_error_that_says_so() -> None:
    def task(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidInput, match=r"annotations cannot be read.*Nowhere"):
        Signature(task, "fetch").encode((1,), {})


def test_annotations_that_cannot_be_used_are_an_error_that_says_so() -> None:
    def task(a: list[int] | tuple[int, ...]) -> None: ...

    with pytest.raises(InvalidInput, match="annotations cannot be used"):
        Signature(task, "fetch").encode(([1],), {})


def test_a_result_arrives_as_the_type_that_is_returned() -> None:
    def task() -> dict[str, Address]:
        return {"a": Address("Nygade", 3)}

    raw = encode_result(task(), 1000)
    assert Signature(task, "task").result(raw) == task()


def test_a_result_that_is_not_as_promised_is_an_error() -> None:
    def task() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(InvalidInput, match="the result does not fit"):
        Signature(task, "task").result(msgspec.Raw(b'"x"'))


@pytest.mark.parametrize("value", [math.nan, Plain(), [Plain()], {"x": {1: math.inf}}])
def test_a_result_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode_result(value, 1000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        ([1, (2, 3)], b"[1,[2,3]]"),
        ({"at": date(2026, 11, 15)}, b'{"at":"2026-11-15"}'),
        ([Address("x")], b'[{"street":"x","number":1}]'),
        (Model(1), b'{"n":1}'),
    ],
)
def test_a_result_is_json(value: Any, text: bytes) -> None:
    assert bytes(encode_result(value, 1000)) == text
