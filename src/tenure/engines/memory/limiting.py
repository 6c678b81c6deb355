"""Limits and pauses."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.memory_store import QueueBook, Store, handles
from tenure.errors import (
    QueueNotFound,
)
from tenure.model import ops
from tenure.model.ops import Answer, Limit
from tenure.model.pause_records import PauseNote, pause_key
from tenure.model.records import Record


class Limits(Store):
    """Finds the limits that apply to a job."""

    def _limit(self, queue: str, tenant: str | None = None, group: str | None = None) -> Limit:
        return self._limits.get((queue, tenant, group), Limit(queue, tenant, group))

    def _tenant_bound(self, queue: str, tenant: str) -> int | None:
        own, default = self._limit(queue, tenant), self._limit(queue, "*")
        if own.paused:
            return 0
        return own.concurrency if own.concurrency is not None else default.concurrency

    def _weight(self, queue: str, tenant: str) -> int | None:
        return self._limit(queue, tenant).weight or self._limit(queue, "*").weight

    def _group_bound(self, queue: str, tenant: str, group: str) -> int | None:
        if not group:
            return None
        if self._limit(queue, tenant, group).paused or self._limit(queue, "*", group).paused:
            return 0
        for t, g in ((tenant, group), (tenant, "*"), ("*", group), ("*", "*")):
            bound = self._limit(queue, t, g).concurrency
            if bound is not None:
                return bound
        return None

    def _put_limit(self, limit: Limit) -> Answer:
        self._queues.setdefault(limit.queue, QueueBook())
        key = (limit.queue, limit.tenant, limit.group)
        self._limits.pop(key, None)
        if limit != Limit(*key):
            self._limits[key] = limit
        return ops.Ok()

    @handles(ops.SetLimit)
    def _set_limit(self, op: ops.SetLimit, now: int) -> Answer:
        self._emptied.pop(op.queue, None)
        bounds = {"concurrency": op.concurrency, "weight": op.weight}
        if op.rate is not None and op.per_ms is not None:
            bounds |= {"rate": op.rate, "per_ms": op.per_ms}
            book, old = self._queues.setdefault(op.queue, QueueBook()), self._limit(op.queue)
            if old.rate_of != (op.rate, op.per_ms):
                book.tokens, book.tokens_at = op.rate * op.per_ms, now
        given = {name: value for name, value in bounds.items() if value is not None}
        return self._put_limit(replace(self._limit(op.queue, op.tenant, op.group), **given))

    @handles(ops.ClearLimit)
    def _clear_limit(self, op: ops.ClearLimit, now: int) -> Answer:
        if op.queue not in self._queues:
            return QueueNotFound(op.queue)
        paused = self._limit(op.queue, op.tenant, op.group).paused
        return self._put_limit(Limit(op.queue, op.tenant, op.group, paused=paused))

    @handles(ops.Pause)
    def _pause(self, op: ops.Pause, now: int) -> Answer:
        self._emptied.pop(op.queue, None)
        limit = self._limit(op.queue, op.tenant, op.group)
        if not limit.paused:
            key = pause_key(op.queue, op.tenant, op.group)
            by, reason = (op.note.by, op.note.reason) if op.note else ("", "")
            note = PauseNote(now, by, reason)
            self.side["pause", key] = Record(key, msgspec.json.encode(note))
        return self._put_limit(replace(limit, paused=True))

    @handles(ops.Resume)
    def _resume(self, op: ops.Resume, now: int) -> Answer:
        if op.queue not in self._queues:
            return QueueNotFound(op.queue)
        self.side.pop(("pause", pause_key(op.queue, op.tenant, op.group)), None)
        return self._put_limit(replace(self._limit(op.queue, op.tenant, op.group), paused=False))
