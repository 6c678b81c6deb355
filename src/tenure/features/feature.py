"""What every package may know of a feature."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tenure.model.job import State
from tenure.model.ops import JobsOp, Op
from tenure.model.queries import Query
from tenure.model.record_queries import Read
from tenure.model.records import Space

Finder = Callable[[Read, Any], Any]  # finds what a query asks for in records


class Feature(NamedTuple):
    """Operations, and queries that are made of records. results: of queries that engines answer
    themselves. counts: spaces, and the keys in them of records that are added up with others, so
    that they may get other keys. actions: what can be done to many jobs, and the states that it
    applies to."""

    operations: tuple[type[Op], ...] = ()
    finders: Mapping[type[Query], Finder] = {}
    results: Mapping[type[Query], Any] = {}
    counts: Mapping[Space, Callable[[str], bool]] = {}
    actions: Mapping[str, tuple[type[JobsOp], frozenset[State]]] = {}
