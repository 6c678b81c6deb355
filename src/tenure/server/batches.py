"""Applies the batches of clients, in parts that do not keep others waiting for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.errors import Conflict, TenureError
from tenure.model import ops, wire
from tenure.model.ops import Op
from tenure.server.auth import Scope, hash_of
from tenure.server.large import PART, weight_of
from tenure.server.route import Call


async def apply_batch(
    call: Call, batch: Sequence[Op], key: str | None, fingerprint: str | None
) -> list[Any]:
    """Validate and apply operations, and return the result of each. With a key they are applied
    once; raises Conflict if the key was used for other operations."""
    if not batch and (key is None or not any(map(call.token.allows, (Scope.PRODUCE, Scope.WORK)))):
        return []  # a token that may only read does not store even a key
    limit = call.queue.settings.payload_limit
    weights = list(map(weight_of, batch))
    received: list[Any] = await call.aside(
        round(sum(weights)), lambda: [wire.received(op, limit) for op in batch]
    )
    if key is None:
        return await apply_in_parts(call, received)
    return await _apply_once(call, _parts(received, weights), key, fingerprint)


async def apply_in_parts(call: Call, batch: Sequence[Any]) -> list[Any]:
    """Apply operations that have been validated, and return the result of each."""
    return await _apply_parts(call, _parts(batch, list(map(weight_of, batch))))


def _parts(batch: Sequence[Any], weights: Sequence[float]) -> list[list[Any]]:
    """The operations in parts. Each is committed by itself; an operation is never divided."""
    parts: list[list[Any]] = [[]]
    size = 0.0
    for op, weight in zip(batch, weights, strict=True):
        if parts[-1] and size + weight > PART:
            parts.append([])
            size = 0.0
        parts[-1].append(op)
        size += weight
    return parts


async def _apply_parts(call: Call, parts: list[list[Any]]) -> list[Any]:
    answers: list[Any] = []
    for n, part in enumerate(parts):
        try:
            answers += await call.store.ado(part)
        except TenureError as error:
            if not answers:
                raise
            # Earlier parts are committed: only the rest has failed.
            answers += [error] * sum(map(len, parts[n:]))
            break
    return answers


async def _apply_once(
    call: Call, parts: list[list[Any]], key: str, fingerprint: str | None
) -> list[Any]:
    """Apply parts under keys of their own, all with the fingerprint of the whole batch."""
    said = fingerprint or wire.fingerprint([op for part in parts for op in part])
    answers: list[Any] = []
    for n, part in enumerate(parts):
        # Keys are per token: nobody can read the results of another client by guessing its key.
        own = hash_of(f"{call.token.hash}:{key}" + (f"\0{n}" if n else ""))
        (once,) = await call.store.ado([ops.Once(own, tuple(part), said)])
        if isinstance(once, Conflict):
            raise wire.key_reused(key)
        if isinstance(once, TenureError):
            raise once
        answers += once.answers
    return answers
