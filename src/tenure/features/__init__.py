"""Features: each is a folder with all that it adds to the other packages.

data            operations, queries and results, and how they are stored
rules           what it does in a transaction
oracle          the same for the reference model
calls           calls of a queue (features/calls.py lists them)
routes          over HTTP, and what a service checks of its operations (see server/checks.py)
commands        in the command line

A feature is registered by its line in FEATURES, and by one in calls.py for type checkers, if it has
calls. What it adds to packages above this one is imported by them, with `parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from operator import or_
from typing import TYPE_CHECKING, Any, get_type_hints

from tenure.features.feature import Finder
from tenure.model import ops, queries
from tenure.model.ops import Op
from tenure.model.past_records import list_past
from tenure.model.queries import ListPast, Query
from tenure.model.records import Space

FEATURES = [
    import_module(f"tenure.features.{name}")
    for name in (
        "why",
        "errors",
        "live_workers",
        "rates",
        "run_now",
        "steps",
        "bulk",
        "audit",
        "overview",
    )
]

# Queries that are made of records: an engine implements only ListRecords.
FINDERS: dict[type[Query], Finder] = {ListPast: list_past}
for one in FEATURES:
    FINDERS |= one.FEATURE.finders

# The type of the result of each query that a client may ask.
RESULTS: dict[type[Query], Any] = queries.RESULTS | {
    kind: get_type_hints(find)["return"] for kind, find in FINDERS.items()
}
for one in FEATURES:
    RESULTS |= one.FEATURE.results

# What can be done to many jobs, and the states of jobs that it applies to.
ACTIONS = {name: action for one in FEATURES for name, action in one.FEATURE.actions.items()}

if TYPE_CHECKING:
    AnyOp = Op
    AnyQuery = Query
else:  # what a service accepts from clients
    AnyOp = reduce(or_, [kind for one in FEATURES for kind in one.FEATURE.operations], ops.AnyOp)
    AnyQuery = reduce(or_, RESULTS)


def is_count(space: Space, key: str) -> bool:
    """Whether a record is added up with others, so that it may get another key."""
    return any(one.FEATURE.counts.get(space, lambda key: False)(key) for one in FEATURES)


def parts(name: str) -> Iterator[Any]:
    """The modules of this name of all features."""
    for one in FEATURES:
        module = f"{one.__name__}.{name}"
        if find_spec(module) is not None:
            yield import_module(module)
