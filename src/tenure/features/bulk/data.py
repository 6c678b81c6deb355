"""Actions on all jobs that a filter matches, and their progress."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.errors import InvalidInput
from tenure.model import ops, states
from tenure.model.job import State
from tenure.model.queries import Filter
from tenure.model.summary import Summary

Action = Literal["cancel", "replay", "delete", "run_now"]
RunState = Literal["running", "done", "stopped", "failed"]

STEP = 1_000  # jobs that are changed in one transaction
MOST_REFUSED = 100  # refusals that are listed
KEPT_MS = 30 * 86_400_000  # how long the record of a run is kept
SILENT_MS = 60_000  # after which a run that does not report counts as interrupted

_OPS: dict[Action, type[ops.JobsOp]] = {
    "cancel": ops.Cancel,
    "replay": ops.Replay,
    "delete": ops.Delete,
    "run_now": ops.RunNow,
}
_STATES: dict[Action, frozenset[State]] = {
    "cancel": states.sources(states.Cancelled),
    "replay": states.sources(states.Replayed),
    "delete": frozenset(State),
    "run_now": frozenset({State.PENDING}),
}


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
    action: Action
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


def narrowed(action: Action, where: Filter) -> Filter:
    """The filter of an action, with the states that it applies to; raises InvalidInput."""
    if where == Filter(states=where.states) and (action != "replay" or not where.states):
        raise InvalidInput("filter", "say which jobs, such as those of a queue")
    fitting = _STATES[action]
    if not where.states and action != "delete":
        chosen = {State.DEAD} if action == "replay" else fitting
        return msgspec.structs.replace(where, states=tuple(sorted(chosen)))
    for state in where.states:
        if state not in fitting:
            raise InvalidInput("state", f"{action} does not apply to jobs that are {state.value}")
    return where


def op_of(action: Action, ids: tuple[str, ...], where: Filter, note: ops.Note) -> ops.JobsOp:
    """The operation of one step."""
    if action == "delete":
        return ops.Delete(ids, where.states, note=note)
    return _OPS[action](ids, note=note)
