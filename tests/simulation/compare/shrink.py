"""Shrinks a history that fails: leaves out steps, then calls, operations and jobs, as long as it
fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from tenure.model import ops
from tests.simulation.compare.steps import Run, Step

T = TypeVar("T")
Fails = Callable[[list[Step]], bool]


def shrink(steps: list[Step], fails: Fails, seconds: float) -> list[Step]:
    """Return the shortest failing history found in the given time."""
    deadline = time.monotonic() + seconds

    def still(candidate: list[Step]) -> bool:
        return time.monotonic() < deadline and fails(candidate)

    while time.monotonic() < deadline:
        before = steps
        steps = _fewer(steps, still)
        for n in range(len(steps)):
            steps = _smaller_step(steps, n, still)
        if steps == before:
            break
    return steps


def _fewer(items: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Leave out pieces, the largest first."""
    size = max(1, len(items) // 2)
    while True:
        at = len(items)
        while at > 0:
            at = max(0, at - size)
            shorter = items[:at] + items[at + size :]
            if len(shorter) < len(items) and fails(shorter):
                items = shorter
        if size == 1:
            return items
        size //= 2


def _smaller_step(steps: list[Step], n: int, fails: Fails) -> list[Step]:
    step = steps[n]
    if not isinstance(step, Run):
        return steps

    def with_step(other: Step) -> list[Step]:
        return [*steps[:n], other, *steps[n + 1 :]]

    calls = _fewer(
        list(step.calls), lambda some: fails(with_step(replace(step, calls=tuple(some))))
    )
    step = replace(step, calls=tuple(calls))
    for simpler in (replace(step, commit=False, standing=()), replace(step, caller=0)):
        if simpler != step and fails(with_step(simpler)):
            step = simpler
    for m in range(len(step.calls)):
        for call in _smaller_calls(step.calls[m]):
            candidate = replace(step, calls=(*step.calls[:m], call, *step.calls[m + 1 :]))
            if fails(with_step(candidate)):
                step = candidate
                break
    return with_step(step)


def _smaller_calls(call: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Try calls with fewer operations, and operations on fewer jobs."""
    if len(call) > 1:
        yield from ((op,) for op in call)
        yield from ((*call[:n], *call[n + 1 :]) for n in range(len(call)))
    for n, op in enumerate(call):
        for smaller in _smaller_op(op):
            yield (*call[:n], smaller, *call[n + 1 :])


def _smaller_op(op: Any) -> Iterator[Any]:
    names = ("jobs", "entries", "ops", "ids")
    name = next((one for one in names if hasattr(op, one)), None)
    if name is not None:
        items = getattr(op, name)
        half = len(items) // 2
        for fewer in (items[:half], items[half:], *(items[:n] + items[n + 1 :] for n in range(9))):
            if 0 < len(fewer) < len(items):
                yield replace(op, **{name: fewer})
    if isinstance(op, ops.Claim) and op.limit > 1:
        yield replace(op, limit=op.limit // 2)
        yield replace(op, limit=op.limit - 1)
