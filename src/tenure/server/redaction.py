"""Hides named fields of payloads and results from clients that read jobs.

Claims return everything, because a worker needs it. All other reads pass through here, for every
route and dialect: one job, lists, searches, schedules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from tenure.errors import InvalidInput
from tenure.model import queries
from tenure.model.job import Job
from tenure.model.ops import Schedule
from tenure.model.queries import Query
from tenure.model.summary import PREVIEW, Summary
from tenure.queue import Layer, Store, Wanted

HIDDEN = "[redacted]"
MOST_NESTED = 200  # JSON that is nested deeper is hidden as a whole
SMALL = 16_384  # bytes of payloads and results that are redacted without a thread
Aside = Callable[[Callable[[], Any]], Awaitable[Any]]


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
        """The result of a query, with the named fields hidden."""
        match found:
            case Job():
                return self._job(found)
            case Schedule():
                return replace(found, job=replace(found.job, payload=self.raw(found.job.payload)))
            case queries.Page():
                return replace(found, jobs=[self._job(job) for job in found.jobs])
            case queries.Summaries():
                return replace(found, jobs=[self._summary(one) for one in found.jobs])
            case queries.Timetable():
                return replace(found, schedules=[self.of(one) for one in found.schedules])
            case [Schedule(), *_]:
                return [self.of(one) for one in found]
        return found

    def _job(self, job: Job) -> Job:
        return replace(
            job, raw_payload=self.raw(job.raw_payload), raw_result=self.raw(job.raw_result)
        )

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
        if self._is_free(text):
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


class Redacted(Layer):
    """A store whose queries hide the named fields."""

    def __init__(self, inner: Store, redaction: Redaction, aside: Aside) -> None:
        """aside: does work in a thread."""
        super().__init__(inner)
        self._redaction = redaction
        self._aside = aside

    async def ado(self, wanted: Wanted) -> Any:
        found = await self._inner.ado(wanted)
        if not isinstance(wanted, Query):
            return found
        if _size(found) > SMALL:
            return await self._aside(lambda: self._redaction.of(found))
        return self._redaction.of(found)


def _size(found: Any) -> int:
    """The bytes to look at in the result of a query."""
    match found:
        case Job():
            return len(found.raw_payload) + len(found.raw_result)
        case Schedule():
            return len(found.job.payload)
        case queries.Page():
            return sum(map(_size, found.jobs))
        case queries.Summaries():
            return sum(len(one.payload_preview) for one in found.jobs)
        case queries.Timetable():
            return sum(map(_size, found.schedules))
        case [Schedule(), *_]:
            return sum(map(_size, found))
    return 0
