"""Live workers, over HTTP. Workers in other languages report themselves here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from tenure.errors import Busy
from tenure.features.live_workers.data import (
    LONGEST_TTL_MS,
    Beat,
    LiveWorker,
    RunningIds,
    WorkerSlots,
)
from tenure.model import ops
from tenure.model.fields import Label, Moment, Name, QueueNames, validated
from tenure.model.ops import Op, good
from tenure.queue import Store
from tenure.server.auth import Scope, Token
from tenure.server.bodies import Body, Done
from tenure.server.route import Call, Route


class WorkersQuery(Body):
    queue: Name | None = None


class BeatBody(Body):
    """What a worker reports every few seconds. It counts as alive for `ttl` seconds; with 0, it has
    stopped. `started_at` is in milliseconds since 1970."""

    queues: QueueNames
    host: Label = ""
    pid: WorkerSlots = 0
    version: Label = ""
    concurrency: WorkerSlots = 1
    running: RunningIds = ()
    busy: WorkerSlots | None = None
    started_at: Moment = 0
    ttl: Annotated[float, Meta(ge=0, le=LONGEST_TTL_MS / 1000)] = 20


async def list_workers(call: Call, query: WorkersQuery) -> list[LiveWorker]:
    """List the live workers, or those of one queue."""
    return await call.queue.aworkers(query.queue)


async def beat(call: Call, body: BeatBody) -> Done:
    """Report that a worker is alive."""
    worker = LiveWorker(
        name=call.params["name"],
        queues=body.queues,
        host=body.host,
        pid=body.pid,
        version=body.version,
        concurrency=body.concurrency,
        running=body.running,
        busy=len(body.running) if body.busy is None else body.busy,
        started_at=body.started_at,
    )
    op = validated(Beat(worker, round(body.ttl * 1000)))
    good((await call.store.ado([op]))[0], ops.Ok)
    return Done()


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


ROUTES = [
    Route("GET", "/v1/workers", list_workers, scope=Scope.READ, query=WorkersQuery,
          answer=list[LiveWorker]),
    Route("PUT", "/v1/workers/{name}", beat, scope=Scope.WORK, body=BeatBody, answer=Done),
]  # fmt: skip
