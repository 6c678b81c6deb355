"""What every package may know of a feature."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tenure.model.ops import Op
from tenure.model.queries import Query
from tenure.model.record_queries import Read

Finder = Callable[[Read, Any], Any]  # finds what a query asks for in records


class Feature(NamedTuple):
    """Operations, and queries that are made of records."""

    operations: tuple[type[Op], ...] = ()
    finders: Mapping[type[Query], Finder] = {}
