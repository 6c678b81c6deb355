"""Hides named fields of payloads and results from clients that read jobs.

Claims return everything, because a worker needs it. The result of every query passes through here,
for every route and dialect. It is found by its type: JSON of users is always `Raw`, or the preview
of a summary.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from tenure.errors import InvalidInput
from tenure.model.summary import PREVIEW, Summary

HIDDEN = "[redacted]"
MOST_NESTED = 200  # JSON that is nested deeper is hidden as a whole
SMALL = 16_384  # bytes of payloads and results that are redacted without a thread


class Redaction:
    """Names of fields, in any case, wherever they are in a payload or result."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: frozenset[str] = frozenset(
            name.strip().lower() for name in names if name.strip()
        )
        for name in self.names:
            if len(name) > 200 or '"' in name or "\\" in name:
                raise InvalidInput("redact", f"{name[:50]!r} is not the name of a field")

    def __bool__(self) -> bool:
        return bool(self.names)

    def of(self, found: Any) -> Any:
        """The result of a query, with the named fields hidden in all JSON of users in it."""
        return self._shown(found)

    def _shown(self, found: Any) -> Any:
        if isinstance(found, Raw):
            return self.raw(found)
        if isinstance(found, Summary):
            return self._summary(found)
        if isinstance(found, list | tuple):
            return type(found)(map(self._shown, found))
        if isinstance(found, dict):
            return {key: self._shown(one) for key, one in found.items()}
        hidden = {name: self._shown(getattr(found, name)) for name in _json_fields(found)}
        return replace(found, **hidden) if hidden else found

    def _summary(self, summary: Summary) -> Summary:
        """A cut preview is hidden as a whole if it has a named field."""
        start = summary.payload_preview.encode()
        shown = bytes(self.raw(Raw(start)))
        if shown == start:
            return summary
        cut = len(start) < summary.payload_bytes
        return replace(summary, payload_preview=HIDDEN if cut else shown.decode()[:PREVIEW])

    def raw(self, raw: Raw) -> Raw:
        """JSON with the named fields hidden."""
        text = bytes(raw)
        if not self.names or self._is_free(text):
            return raw
        try:
            return Raw(msgspec.json.encode(self._hidden(msgspec.json.decode(text), 0)))
        except (RecursionError, msgspec.MsgspecError):
            return Raw(msgspec.json.encode(HIDDEN))

    def _is_free(self, text: bytes) -> bool:
        """Whether JSON has none of the names. They may be written with escapes: then it must be
        decoded."""
        if b"\\" in text:
            return False
        lower = text.decode(errors="replace").lower()
        return not any(name in lower for name in self.names)

    def _hidden(self, value: Any, depth: int) -> Any:
        if depth > MOST_NESTED:
            return HIDDEN
        if isinstance(value, list):
            return [self._hidden(one, depth + 1) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            name: HIDDEN if name.lower() in self.names else self._hidden(one, depth + 1)
            for name, one in value.items()
        }


def _json_fields(found: Any) -> tuple[str, ...]:
    """The fields of a struct that may hold JSON of users, at any depth."""
    return _fields_of(type(found))  # type: ignore[arg-type]  # mypy: types cannot be hashed


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    if not issubclass(kind, msgspec.Struct) or kind is Summary:
        return ()
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if holds(hints[name], (Raw, Summary)))


@cache
def holds(hint: Any, kinds: tuple[type, ...]) -> bool:
    """Whether values of a type may be of one of these kinds, or hold one at any depth."""
    inner: Iterable[Any] = get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        inner = get_type_hints(hint).values()
    return bool(hint in kinds) or any(holds(one, kinds) for one in inner)


def json_bytes(found: Any) -> int:
    """How much of it there is in the result of a query."""
    if isinstance(found, Raw):
        return len(found)
    if isinstance(found, Summary):
        return len(found.payload_preview)
    if isinstance(found, list | tuple):
        return sum(map(json_bytes, found))
    if isinstance(found, dict):
        return sum(map(json_bytes, found.values()))
    return sum(json_bytes(getattr(found, name)) for name in _json_fields(found))
