"""The operations of bulk runs, by name, and the jobs that each applies to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from tenure.errors import InvalidInput
from tenure.features import ACTIONS
from tenure.model import ops
from tenure.model.job import State
from tenure.model.queries import Filter

if TYPE_CHECKING:
    Action = str
else:
    Action = Literal[tuple(ACTIONS)]


def narrowed(action: Action, where: Filter) -> Filter:
    """The filter of an action, with the states that it applies to; raises InvalidInput."""
    if where == Filter(states=where.states) and (action != "replay" or not where.states):
        raise InvalidInput("filter", "say which jobs, such as those of a queue")
    _, fitting = ACTIONS[action]
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
    kind, _ = ACTIONS[action]
    op: ops.JobsOp = kind(ids, note=note)
    return op
