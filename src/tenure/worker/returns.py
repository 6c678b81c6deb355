"""Decoding what a function returned, as the type of its return annotation."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from tenure.errors import InvalidInput
from tenure.features.steps.data import MAX_RESULT_BYTES
from tenure.worker.outcome import encode_result, hopeless

UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, NotImplementedError, TypeError)


def decode_special(kind: type, value: Any) -> Any:
    """Decode Pydantic models without depending on Pydantic."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"a value of type {kind.__qualname__} cannot be read from JSON")


class Returns:
    """What one function returns."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name

    def result(self, raw: msgspec.Raw) -> Any:
        """Decode a result, as the return type the function is annotated with, if any."""
        if self._result_decoder is None:
            return msgspec.json.decode(raw)
        try:
            return self._result_decoder.decode(raw)
        except NotImplementedError:  # the type has no JSON form: return the plain value
            return msgspec.json.decode(raw)
        except (*UNREADABLE, ValueError) as error:
            raise InvalidInput(self._name, f"the result does not fit: {plain(error)}") from None

    def check_result(self, raw: msgspec.Raw) -> None:
        """Raise InvalidInput if a result does not fit the return annotation. An annotation that
        cannot be read does not fail a job whose work was done."""
        try:
            decoder = self._result_decoder
        except InvalidInput:
            return
        if decoder is not None:
            self.result(raw)

    @cached_property
    def types(self) -> dict[str, Any]:
        """The annotations. Raises InvalidInput if they cannot be read."""
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError, AttributeError) as error:
            raise InvalidInput(
                self._name, f"its annotations cannot be read: {error}; import them at run time"
            ) from None

    @cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any] | None:
        kind = self.types.get("return", Any)
        if kind in (Any, object):
            return None
        try:
            return msgspec.json.Decoder(kind, dec_hook=decode_special)
        except TypeError:  # the type has no JSON form: return the plain value
            return None


def plain(error: Exception) -> str:
    """The text of an error of msgspec."""
    return str(error).replace(" - at `$.", " at `")


# Results of steps ---------------------------------------------------------------------------------

_known: WeakKeyDictionary[Any, Returns] = WeakKeyDictionary()


def returns_of(func: Any) -> Returns:
    """What a function returns, remembered with the function."""
    while isinstance(func, functools.partial):
        func = func.func
    func = inspect.unwrap(func)
    func = getattr(func, "__func__", func)  # of a method
    if not inspect.isroutine(func):
        func = type(func).__call__
    name = getattr(func, "__name__", "result")
    try:
        known = _known.get(func)
        if known is None:
            known = _known[func] = Returns(func, name)
    except TypeError:  # it cannot be referenced weakly
        known = Returns(func, name)
    return known


def written(returns: Returns, value: Any, name: str) -> tuple[msgspec.Raw, Any]:
    """The result of a step as JSON, and as later attempts will get it. If it has none, the job is
    dead: the step was done, and to do it again would lead to the same."""
    try:
        result = encode_result(value, MAX_RESULT_BYTES)
        return result, returns.result(result)
    except InvalidInput as error:
        raise hopeless(error.within(f"the step {name!r}")) from None


def read(
    returns: Returns, result: msgspec.Raw, name: str, upgrade: Callable[[Any], Any] | None
) -> Any:
    """A recorded result, as the return type of the function."""
    try:
        return returns.result(result)
    except InvalidInput as error:
        if upgrade is not None:
            return upgrade(msgspec.json.decode(result))
        reason = f"{error.reason}; it was recorded earlier: convert it with upgrade="
        raise hopeless(InvalidInput(f"the step {name!r}", reason)) from None
