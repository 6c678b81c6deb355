"""Actions on all jobs that a filter matches, and their progress."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.model.summary import Summary

RunState = Literal["running", "done", "stopped", "failed"]

STEP = 1_000  # jobs that are changed in one transaction
MOST_REFUSED = 100  # refusals that are listed
KEPT_MS = 30 * 86_400_000  # how long the record of a run is kept
SILENT_MS = 60_000  # after which a run that does not report counts as interrupted


class Matches(msgspec.Struct, frozen=True):
    """How many jobs match a filter; at least this many, if it is not exact."""

    count: int
    exact: bool
    sample: list[Summary]


class Refusal(msgspec.Struct, frozen=True):
    """A job that was not changed, and why."""

    id: str
    reason: str


class BulkRun(msgspec.Struct, frozen=True):
    """An action on all jobs that match a filter. `looked_at` counts the jobs that matched so far.
    `beat_at` is when it last reported."""

    id: str
    action: str
    filter: dict[str, Any]
    by: str
    reason: str
    started_at: int
    beat_at: int
    state: RunState = "running"
    looked_at: int = 0
    changed: int = 0
    refused: list[Refusal] = []
    refused_count: int = 0
    ended_at: int | None = None
    error: str | None = None
