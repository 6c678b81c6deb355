"""Records: data that a store keeps besides its jobs, such as live workers and the audit log.

A record is a JSON value under a space and a key, with an optional expiry. Records that only one
process writes never conflict: a counter is one record for each writer, and readers add them up.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.model.fields import MAX_NAME, Span
from tenure.model.ops import Op

MAX_RECORD_BYTES = 65_536
MAX_KEY = MAX_NAME + 100  # a name, and a suffix that distinguishes its records

Space = Literal[
    "worker", "audit", "error", "rate", "bulk", "past", "pause", "reply", "ring", "step"
]
RecordKey = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]


class Record(msgspec.Struct, frozen=True):
    """A record that has not expired. value: JSON."""

    key: str
    value: bytes
    expires_at: int | None = None


class NewRecord(msgspec.Struct, frozen=True):
    """A record to store, which replaces one of the same key. keep_ms: how long it is kept; None
    keeps it forever. A value of None deletes it."""

    space: Space
    key: RecordKey
    value: bytes | None
    keep_ms: Span | None = None


class PutRecords(Op, frozen=True):
    """Store records. A service does not accept it."""

    records: tuple[NewRecord, ...]
