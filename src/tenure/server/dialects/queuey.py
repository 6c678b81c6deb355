"""The API of queuey-queue, the job queue of the Serval mesh.

A runner's claim is a lease of ABANDONED_AGE, and a tickle extends it. Runners send only the id of a
job, so its lease token is looked up first.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tenure.errors import InvalidInput, JobNotFound, LeaseLost
from tenure.model import ops
from tenure.model.fields import Name
from tenure.model.job import Job, NewJob, State, encode_json
from tenure.model.ops import Op
from tenure.queue import Calls, store_of
from tenure.server.auth import Scope
from tenure.server.dialects.error_text import ErrorText, as_text
from tenure.server.dialects.reach import enqueue, job_of, reach
from tenure.server.route import Call, Reply, Route, encode

QUEUE = "queuey"
ABANDONED_AGE = 300  # seconds
MAX_ATTEMPTS = 3
ROUNDS = 10  # of maintenance to take back an abandoned job

Address = Annotated[str, Meta(min_length=1, max_length=4_096)]
Status = Literal["pending", "active", "completed", "failed"]
STATUS: dict[State, Status] = {
    State.WAITING: "pending",
    State.PENDING: "pending",
    State.LEASED: "active",
    State.DONE: "completed",
    State.DEAD: "failed",
    State.CANCELLED: "failed",
}
FAILED_BY_RUNNER = "queuey.failed"  # the error type; the address of the output is its traceback


class CreateJob(msgspec.Struct):
    binary_addr: Address
    input_addr: Address | None = None


class ClaimJob(msgspec.Struct):
    runner_id: Name


class CompleteJob(msgspec.Struct):
    status: Literal["completed", "failed", "Completed", "Failed"]
    output_addr: Address | None = None


class MeshJob(msgspec.Struct):
    """Times are milliseconds since 1970. The original's document says `job_id`; its code says
    `id`."""

    id: str
    job_id: str
    binary_addr: str
    input_addr: str | None
    output_addr: str | None
    created_at: int
    updated_at: int
    completed_at: int | None
    status: Status
    run_attempts: int
    runner_id: str | None


class Nothing(msgspec.Struct):
    """An empty object."""


class Queuey:
    """The handlers, for one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    async def ping(self, call: Call) -> Reply:
        """Check that the process is alive."""
        return Reply(b"pong", media_type="text/plain; charset=utf-8")

    async def create(self, call: Call, body: CreateJob) -> MeshJob:
        """Enqueue a job."""
        new = NewJob(
            queue=self.queue,
            payload={"binary_addr": body.binary_addr, "input_addr": body.input_addr},
            max_attempts=MAX_ATTEMPTS,
        )
        return _shown(await enqueue(call, reach(call, self.queue), new))

    async def claim(self, call: Call, body: ClaimJob) -> MeshJob | Reply:
        """Claim the oldest pending job; 204 if there is none."""
        queue = reach(call, self.queue)
        jobs = await queue.aclaim(self.queue, lease=ABANDONED_AGE, worker=body.runner_id)
        return _shown(jobs[0]) if jobs else Reply(b"", 204)

    async def get(self, call: Call) -> Reply:
        """Get a job."""
        shown = _shown(await self._job(call, reach(call, self.queue)))
        return Reply(bytes(call.service.redaction.raw(Raw(encode(shown)))))

    async def tickle(self, call: Call) -> Nothing:
        """Extend the lease of an active job."""
        queue = reach(call, self.queue)
        job = await self._active(call, queue)
        return await _done(queue, ops.Extend(job.id, job.token, ABANDONED_AGE * 1000))

    async def complete(self, call: Call, body: CompleteJob) -> Nothing:
        """Mark an active job as completed or failed."""
        queue = reach(call, self.queue)
        job = await self._active(call, queue)
        if body.status.lower() == "completed":
            result = {"output_addr": body.output_addr}
            raw = encode_json("output_addr", result, queue.settings.payload_limit)
            return await _done(queue, ops.Ack(job.id, job.token, raw))
        output = body.output_addr or ""
        failed = ops.Fail(
            job.id, job.token, "its runner reported a failure", FAILED_BY_RUNNER, output, fatal=True
        )
        return await _done(queue, failed)

    async def _active(self, call: Call, queue: Calls) -> Job:
        job = await self._job(call, queue)
        if job.state is not State.LEASED:
            raise _not_active(job.id)
        return job

    async def _job(self, call: Call, queue: Calls) -> Job:
        """Return the job named in the path. If it was abandoned, take it back first."""
        id = call.params["id"]
        left = ROUNDS
        while True:
            job = await job_of(queue, self.queue, id)
            if job is None:
                raise JobNotFound(id)
            if not left or job.lease_until is None or job.lease_until > queue.clock.now_ms():
                return job
            # Through the unguarded queue: maintenance does not depend on who asks.
            await call.service.queue.amaintain()
            left -= 1


async def _done(queue: Calls, op: Op) -> Nothing:
    (answer,) = await store_of(queue).ado([op])
    if isinstance(answer, LeaseLost):
        raise _not_active(answer.job_id)
    if isinstance(answer, Exception):
        raise answer
    return Nothing()


def _not_active(id: str) -> InvalidInput:
    return InvalidInput("job_id", f"the job {id!r} is not active")


def _shown(job: Job) -> MeshJob:
    given = _strings(job.payload)
    return MeshJob(
        id=job.id,
        job_id=job.id,
        binary_addr=given.get("binary_addr", ""),
        input_addr=given.get("input_addr"),
        output_addr=_output(job),
        created_at=job.created_at,
        updated_at=job.updated_at,
        completed_at=job.finished_at,
        status=STATUS[job.state],
        run_attempts=job.attempts,
        runner_id=job.worker or None,
    )


def _output(job: Job) -> str | None:
    if job.state is State.DEAD and job.errors and job.errors[-1].type == FAILED_BY_RUNNER:
        return job.errors[-1].traceback or None
    return _strings(job.result).get("output_addr")


def _strings(value: Any) -> dict[str, str]:
    """The string fields of a JSON value. The job may have been enqueued by another API."""
    fields = value if isinstance(value, dict) else {}
    return {name: text for name, text in fields.items() if isinstance(text, str)}


def routes(queue: str = QUEUE) -> list[Route]:
    """Return the routes of this dialect. Its jobs are in a queue of their own."""
    calls = Queuey(queue)
    p, w, r = Scope.PRODUCE, Scope.WORK, Scope.READ

    def route(*args: Any, **kwargs: Any) -> Route:
        return Route(*args, **kwargs, tag="queuey", show_error=as_text, problem=ErrorText)

    return [
        route("GET", "/ping", calls.ping, scope=None, answer=str, media_type="text/plain"),
        route("POST", "/jobs/create", calls.create, scope=p, body=CreateJob, answer=MeshJob),
        route("POST", "/jobs/claim", calls.claim, scope=w, body=ClaimJob, answer=MeshJob,
              others={204: None}),
        route("GET", "/jobs/{id}", calls.get, scope=r, answer=MeshJob),
        route("POST", "/jobs/{id}/tickle", calls.tickle, scope=w, answer=Nothing),
        route("POST", "/jobs/{id}/complete", calls.complete, scope=w, body=CompleteJob,
              answer=Nothing),
    ]  # fmt: skip
