"""Operations of features, for tests that go through many operations: none of a feature that was
removed."""

from __future__ import annotations

from typing import Any

from tenure.features import FEATURES
from tenure.model.ops import JobsOp


def kinds_named(name: str) -> list[Any]:
    """The operation of a feature, if it exists."""
    kinds = [kind for one in FEATURES for kind in one.FEATURE.operations]
    return [kind for kind in kinds if kind.__name__ == name]


def of_feature(name: str, *args: Any, **fields: Any) -> list[Any]:
    """One such operation, if it exists."""
    return [kind(*args, **fields) for kind in kinds_named(name)]


def is_run_now(kind: Any) -> bool:
    """Whether an operation on jobs concerns only those that are delayed."""
    return isinstance(kind, type) and issubclass(kind, JobsOp) and kind.__name__ == "RunNow"
