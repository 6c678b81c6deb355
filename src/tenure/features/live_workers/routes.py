"""Live workers, over HTTP. Workers in other languages report themselves here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tenure.features.live_workers.data import (
    LONGEST_TTL_MS,
    Beat,
    LiveWorker,
    RunningIds,
    WorkerSlots,
)
from tenure.model import ops
from tenure.model.fields import Label, Moment, Name, QueueNames, validated
from tenure.queue.arguments import good
from tenure.server.auth import Scope
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


ROUTES = [
    Route("GET", "/v1/workers", list_workers, scope=Scope.READ, query=WorkersQuery,
          answer=list[LiveWorker]),
    Route("PUT", "/v1/workers/{name}", beat, scope=Scope.WORK, body=BeatBody, answer=Done),
]  # fmt: skip
