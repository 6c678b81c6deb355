"""Encoding the arguments of a function as a payload, and decoding them.

A payload is a JSON object of arguments by name, so programs in any language can write one. The
arguments are validated against the annotations on enqueue, by decoding them as the worker will.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from functools import cached_property
from inspect import Parameter
from typing import Any

import msgspec

from tenure.errors import InvalidInput, InvalidPayload
from tenure.model.job import NULL, encode_json
from tenure.worker.outcome import encode_special
from tenure.worker.returns import UNREADABLE, Returns, decode_special, plain

_encode = msgspec.json.Encoder(enc_hook=encode_special).encode
_NO_ARGUMENTS = msgspec.Raw(b"{}")
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Signature(Returns):
    """The parameters of one function, and how to encode and decode its calls and results."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__(function, name)
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        self._all_by_name = all(one.kind in _BY_NAME for one in self._parameters)
        self._has_defaults = any(one.default is not Parameter.empty for one in self._parameters)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        """Encode a call as a payload. Raises InvalidInput if the arguments do not match."""
        try:
            values = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput(self._name, str(error)) from None
        try:
            text = _encode(values)
            found = msgspec.structs.asdict(self._decoder.decode(text))
        except (*UNREADABLE, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(self._name, plain(error)) from None
        if any(found[name] != value for name, value in values.items()):
            self._check_lossless(values)
        return msgspec.Raw(text)

    def _check_lossless(self, values: dict[str, Any]) -> None:
        """The decoded values differ from the arguments. Some differences are harmless (a list for
        a tuple, an object without __eq__); raise InvalidPayload for the others."""
        try:
            built = msgspec.to_builtins(values, str_keys=True, enc_hook=encode_special)
            json.dumps(built, allow_nan=False)
        except ValueError:
            raise InvalidPayload(self._name, "JSON has no NaN and no infinity") from None
        for name, value in values.items():
            if self.types.get(name, Any) is Any:
                try:
                    encode_json(name, value, 2**62)
                except InvalidPayload as error:
                    reason = f"{error.reason}; annotate the parameter with its type"
                    raise InvalidPayload(f"{self._name}: {name}", reason) from None

    def decode(self, payload: msgspec.Raw) -> tuple[list[Any], dict[str, Any]]:
        """Decode a payload into the arguments of a call. Raises InvalidInput."""
        if payload == NULL:
            payload = _NO_ARGUMENTS
        if not self._parameters and payload == _NO_ARGUMENTS:
            return [], {}
        try:
            values = self._decoder.decode(payload)
        except (*UNREADABLE, ValueError) as error:
            raise InvalidInput(self._name, f"the payload does not fit: {plain(error)}") from None
        if self._all_by_name:
            given = msgspec.structs.asdict(values)
            if self._has_defaults:
                given = {name: one for name, one in given.items() if one is not msgspec.UNSET}
            return [], given
        return self._by_kind(values)

    def _by_kind(self, values: Any) -> tuple[list[Any], dict[str, Any]]:
        """Divide decoded values into arguments by position and by name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(values, parameter.name)
            if value is msgspec.UNSET:
                continue
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                args.append(value)
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                # Parameters before *args must be passed by position, too.
                args = [*args, *kwargs.values(), *value]
                kwargs = {}
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs |= value
            else:
                kwargs[parameter.name] = value
        return args, kwargs

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[tuple[str, Any, Any]] = []
        for parameter in self._parameters:
            kind: Any = self.types.get(parameter.name, Any)
            default: Any = msgspec.NODEFAULT
            if parameter.kind is Parameter.VAR_POSITIONAL:
                kind, default = tuple.__class_getitem__((kind, ...)), ()
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kind, default = (
                    dict.__class_getitem__((str, kind)),
                    msgspec.field(default_factory=dict),
                )
            elif parameter.default is not Parameter.empty:
                kind, default = typing.Union[kind, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007
            fields.append((parameter.name, kind, default))
        try:
            struct = msgspec.defstruct(self._name, fields, kw_only=True, forbid_unknown_fields=True)
            return msgspec.json.Decoder(struct, dec_hook=decode_special)
        except TypeError as error:
            raise InvalidInput(self._name, f"its annotations cannot be used: {error}") from None
