"""Limits and pauses: changing them, and finding the one that applies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from tenure.core.transaction import J, Transaction
from tenure.errors import QueueNotFound
from tenure.model import ops
from tenure.model.ops import Answer, Limit
from tenure.model.pause_records import PauseNote, pause_key

TenantGroup = tuple[str | None, str | None]
EVERYTHING: TenantGroup = (None, None)


class Rules:
    """The limits of a queue at one moment: all of them, or those relevant to one lane."""

    def __init__(self, queue: str, limits: Mapping[TenantGroup, Limit]) -> None:
        self.queue = queue
        self.limits = limits

    def of(self, tenant: str | None = None, group: str | None = None) -> Limit:
        """The limit of exactly this scope; an empty Limit if none is set."""
        return self.limits.get((tenant, group)) or Limit(self.queue, tenant, group)

    @property
    def whole(self) -> Limit:
        """The limit of the queue itself."""
        return self.of()

    def tenant_limit(self, tenant: str) -> Limit | None:
        """The concurrency limit that applies to a tenant: its own, or the default."""
        return self._first_bound(((tenant, None), ("*", None)))

    def group_limit(self, tenant: str, group: str) -> Limit | None:
        """The most specific concurrency limit of a group. Jobs without a group have none."""
        if not group:
            return None
        return self._first_bound(((tenant, group), (tenant, "*"), ("*", group), ("*", "*")))

    def _first_bound(self, scopes: Iterable[TenantGroup]) -> Limit | None:
        for scope in scopes:
            limit = self.limits.get(scope)
            if limit is not None and limit.concurrency is not None:
                return limit
        return None

    def tenant_concurrency(self, tenant: str) -> int | None:
        limit = self.tenant_limit(tenant)
        return None if limit is None else limit.concurrency

    def group_concurrency(self, tenant: str, group: str) -> int | None:
        limit = self.group_limit(tenant, group)
        return None if limit is None else limit.concurrency

    def tenant_paused(self, tenant: str) -> bool:
        return self.of(tenant).paused

    def group_paused(self, tenant: str, group: str) -> bool:
        return bool(group) and (self.of(tenant, group).paused or self.of("*", group).paused)

    def weight(self, tenant: str) -> int:
        return self.of(tenant).weight or self.of("*").weight or 1


def refilled(tokens: int, passed_ms: int, limit: Limit) -> int:
    """The tokens in a rate limit's bucket after some time. A job costs `per_ms` tokens, and the
    bucket holds enough for `rate` jobs. Only claims that take tokens are stored, with their time,
    which never decreases: if the clock is set back, no time counts twice."""
    if limit.rate is None or limit.per_ms is None:
        return tokens
    return min(tokens + max(0, passed_ms) * limit.rate, limit.rate * limit.per_ms)


def set_limit(tx: Transaction[J], batch: Sequence[ops.SetLimit]) -> list[Answer]:
    return [_set_limit(tx, op) for op in batch]


def _set_limit(tx: Transaction[J], op: ops.SetLimit) -> Answer:
    tx.lock_queue(op.queue, create=True)
    bounds = {"concurrency": op.concurrency, "weight": op.weight}
    if op.rate is not None and op.per_ms is not None:
        bounds |= {"rate": op.rate, "per_ms": op.per_ms}
    given = {name: value for name, value in bounds.items() if value is not None}
    old = tx.limit((op.queue, op.tenant, op.group))
    new = replace(old, **given)
    tx.put_limit(old, new)
    if op.rate is not None and op.per_ms is not None and old.rate_of != new.rate_of:
        tx.fill_bucket(op.queue, op.rate * op.per_ms)
    return ops.Ok()


def clear_limit(tx: Transaction[J], batch: Sequence[ops.ClearLimit]) -> list[Answer]:
    return [_change(tx, op, keep_bounds=False) for op in batch]


def pause(tx: Transaction[J], batch: Sequence[ops.Pause]) -> list[Answer]:
    return [_change(tx, op, paused=True) for op in batch]


def resume(tx: Transaction[J], batch: Sequence[ops.Resume]) -> list[Answer]:
    return [_change(tx, op, paused=False) for op in batch]


def _change(
    tx: Transaction[J],
    op: ops.ClearLimit | ops.Pause | ops.Resume,
    *,
    paused: bool | None = None,
    keep_bounds: bool = True,
) -> Answer:
    """Change the pause or the limits; the other stays. Only Pause creates a missing queue."""
    if not tx.lock_queue(op.queue, create=isinstance(op, ops.Pause)):
        return QueueNotFound(op.queue)
    old = tx.limit((op.queue, op.tenant, op.group))
    bounds = old if keep_bounds else Limit(op.queue, op.tenant, op.group)
    tx.put_limit(old, replace(bounds, paused=old.paused if paused is None else paused))
    if paused is not None and paused != old.paused:
        _note_pause(tx, op, paused)
    return ops.Ok()


def _note_pause(tx: Transaction[J], op: ops.ClearLimit | ops.Pause | ops.Resume, on: bool) -> None:
    """Note when something was paused, by whom and why."""
    key = pause_key(op.queue, op.tenant, op.group)
    if on:
        note = op.note or ops.Note()
        value = msgspec.json.encode(PauseNote(tx.now, note.by, note.reason))
        tx.put_record("pause", key, value, None)
    else:
        tx.drop_record("pause", key)
