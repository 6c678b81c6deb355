"""All operations, and all queries."""

from __future__ import annotations

from typing import Any


def kinds_of(base: type[Any]) -> list[type[Any]]:
    """The classes below one that are no base of others, where the base itself is defined and in
    features."""
    below = [found for kind in base.__subclasses__() for found in kinds_of(kind)]
    kinds = below or [base]
    homes = (base.__module__, "tenure.features.")
    return [kind for kind in kinds if kind.__module__.startswith(homes)]
