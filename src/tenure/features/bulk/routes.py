"""Routes for actions on all jobs that a filter matches."""

from __future__ import annotations

import msgspec

from tenure.features.bulk.actions import Action, narrowed
from tenure.features.bulk.data import BulkRun, Matches
from tenure.features.bulk.runs import BulkRuns
from tenure.model import ops
from tenure.model.fields import Label, Moment, Name, Reason
from tenure.model.job import State
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.idempotency import begin
from tenure.server.job_routes import filter_of
from tenure.server.route import Call, Reply, Route, encode


class FilterBody(Body):
    """Selects jobs. Times are in milliseconds since 1970."""

    queue: Name | None = None
    state: State | None = None
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None
    worker: Label | None = None
    error: Label | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None


class BulkBody(Body):
    """An action on all jobs that match. With `dry_run`, they are only counted."""

    action: Action
    filter: FilterBody
    dry_run: bool = False
    reason: Reason = ""


async def start_bulk(call: Call, body: BulkBody) -> Matches | Reply:
    """Cancel, replay, delete or run now all jobs that match a filter, in the background. With
    `dry_run`, return how many there are, and a sample."""
    values = msgspec.structs.asdict(body.filter)
    where = narrowed(body.action, filter_of(values))
    if body.dry_run:
        return await call.queue._amatches_of(where)
    given = {name: value for name, value in values.items() if value is not None}
    note = ops.Note(call.token.name, body.reason, given)
    queue = call.service.queue_for(call.token)
    await begin(call)
    run = await call.service.part(BulkRuns).start(queue, call.token, body.action, where, note)
    return Reply(encode(run), 202)


async def list_bulk(call: Call) -> list[BulkRun]:
    """List the last bulk runs, newest first. A token that is bound to tenants or queues sees its
    own."""
    return await call.service.part(BulkRuns).runs(_owner(call))


async def get_bulk(call: Call) -> BulkRun:
    """Get a bulk run."""
    return await call.service.part(BulkRuns).get(call.params["id"], _owner(call))


async def stop_bulk(call: Call) -> BulkRun:
    """Stop a bulk run after its current step."""
    await begin(call)
    return await call.service.part(BulkRuns).stop(call.params["id"], _owner(call))


def _owner(call: Call) -> str | None:
    return call.token.hash if call.token.is_bound else None


ROUTES = [
    Route("POST", "/v1/bulk", start_bulk, scope=Scope.ADMIN, body=BulkBody,
          answer=Matches, others={202: BulkRun}),
    Route("GET", "/v1/bulk", list_bulk, scope=Scope.ADMIN, answer=list[BulkRun]),
    Route("GET", "/v1/bulk/{id}", get_bulk, scope=Scope.ADMIN, answer=BulkRun),
    Route("POST", "/v1/bulk/{id}/stop", stop_bulk, scope=Scope.ADMIN, answer=BulkRun),
]  # fmt: skip
