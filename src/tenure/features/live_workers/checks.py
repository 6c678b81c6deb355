"""How many workers a token may report: each adds a record, and one for each of its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tenure.errors import Busy
from tenure.features.live_workers.data import Beat
from tenure.model import ops
from tenure.model.ops import Op
from tenure.queue import Store
from tenure.server.auth import Scope, Token

MOST_WORKERS = 2_000  # of one token at once
SMALL_WORKER = 2_000  # bytes of a report
LARGE_WORKERS = 4_000_000  # bytes of the larger reports of one token: everybody reads them


class _Alive(NamedTuple):
    """A worker that reports itself: until when, and how large its report is."""

    until: float
    size: int


class Check:
    """Counts the workers of a token."""

    kinds = (Beat,)

    def __init__(self, store: Store, token: Token, *, acts_for_dialect: bool) -> None:
        self._clock = store.clock
        self._is_limited = not token.allows(Scope.ADMIN)
        self._alive: dict[tuple[str, str, int], _Alive] = {}

    async def checked(self, batch: Sequence[Op]) -> Sequence[Op]:
        """Let a token report these workers, or raise Busy."""
        for op in ops.flat(batch):
            if isinstance(op, Beat) and self._is_limited:
                self._admit(op)
        return batch

    def _admit(self, op: Beat) -> None:
        now, alive = self._clock.monotonic(), self._alive
        worker = (op.worker.name, op.worker.host, op.worker.pid)
        if worker not in alive and len(alive) >= MOST_WORKERS:
            self._forget_dead(now)
            if len(alive) >= MOST_WORKERS:
                raise Busy(f"{MOST_WORKERS:,} workers report themselves with this token")
        size = len(msgspec.json.encode(op.worker))
        if size > SMALL_WORKER:
            self._forget_dead(now)
            others = sum(one.size for key, one in alive.items() if key != worker)
            if others + size > LARGE_WORKERS:
                raise Busy(f"the workers of this token report more than {LARGE_WORKERS:,} bytes")
        alive[worker] = _Alive(now + op.ttl_ms / 1000, size)

    def _forget_dead(self, now: float) -> None:
        for key in [key for key, one in self._alive.items() if one.until <= now]:
            del self._alive[key]
