"""Actions on all jobs that a filter matches, in the background."""

from tenure.features.feature import Feature
from tenure.model import ops, states
from tenure.model.job import State

FEATURE = Feature(
    actions={
        "cancel": (ops.Cancel, states.sources(states.Cancelled)),
        "replay": (ops.Replay, states.sources(states.Replayed)),
        "delete": (ops.Delete, frozenset(State)),
    }
)
