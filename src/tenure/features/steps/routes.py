"""Steps and signals, over HTTP. A worker records them by `POST /v1/ops`."""

from __future__ import annotations

import msgspec

from tenure.errors import JobNotFound
from tenure.features.steps.data import Signal
from tenure.model.fields import Label, Name, validated
from tenure.model.job import encode_json, null
from tenure.model.ops import Changed, good
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.server.bodies import Body, Count, Done
from tenure.server.route import Call, Route


class SignalBody(Body):
    """The value of a signal."""

    value: msgspec.Raw = msgspec.field(default_factory=null)


class ReplayFromBody(Body):
    """The step to begin with."""

    step: Name
    key: Label = ""


async def signal(call: Call, body: SignalBody) -> Count:
    """Send a signal to a job, and wake it if it waits for it. The count is 0 if the job has
    finished, or has a signal of this name: the first one counts."""
    job_id, limit = call.params["id"], call.queue.settings.payload_limit
    value = encode_json("value", body.value, limit)
    op = validated(Signal((job_id,), name=call.params["name"], value=value))
    (answer,) = await store_of(call.queue).ado([op])
    changed = good(answer, Changed)
    if changed.missing:
        raise JobNotFound(job_id)
    return Count(changed.count)


async def replay_from(call: Call, body: ReplayFromBody) -> Done:
    """Run a dead or cancelled job again from a step: it and all later ones are forgotten."""
    await call.queue.areplay_from(call.params["id"], body.step, body.key)
    return Done()


ROUTES = [
    Route(
        "POST", "/v1/jobs/{id}/signals/{name}", signal, scope=Scope.PRODUCE, body=SignalBody,
        answer=Count,
    ),
    Route(
        "POST", "/v1/jobs/{id}/replay-from", replay_from, scope=Scope.ADMIN, body=ReplayFromBody,
        answer=Done,
    ),
]  # fmt: skip
