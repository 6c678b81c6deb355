"""What a call of a dialect may touch, and helpers that the dialects share.

The route names the scope that a call needs. The operations behind it may need others (to finish a
job by its id, its lease token is read first), so they run with every scope, but stay within the
queues and tenants that the caller's token is bound to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tenure.errors import Forbidden, QueueNotFound, TenureError
from tenure.model import ops, queries
from tenure.model.fields import check_name
from tenure.model.job import Job, NewJob, State
from tenure.queue import Calls, store_of
from tenure.server.auth import Scope
from tenure.server.route import Call


def reach(call: Call, queue: str) -> Calls:
    """Return the queue within the bounds of the call's token; raises Forbidden."""
    token = call.token
    if token.queues is not None and queue not in token.queues:
        raise Forbidden(f"this token is not for the queue {queue!r}")
    if token.allows(Scope.ADMIN):
        return call.queue
    acting = replace(token, scopes=(Scope.ADMIN,))
    return call.service.queue_for(acting, acts_for_dialect=True)


def must_be_for(call: Call, tenant: str) -> None:
    """Raise Forbidden if the token is bound to other tenants."""
    if call.token.tenants is not None and tenant not in call.token.tenants:
        raise Forbidden(f"this token is not for {tenant!r}")


def must_be_for_all(call: Call) -> None:
    """Raise Forbidden if the token is bound to tenants, for a call that names none."""
    if call.token.tenants is not None:
        raise Forbidden("this call is for tokens that are not bound to tenants")


async def listed(queue: Calls, query: queries.Query) -> list[Any]:
    """Return what a query lists; an empty list if the queue does not exist yet."""
    found = await store_of(queue).ado(query)
    if isinstance(found, QueueNotFound):
        return []
    if isinstance(found, TenureError):
        raise found
    return list(found)


async def job_of(queue: Calls, name: str, id: str) -> Job | None:
    """Return a job of the dialect's queue, if it exists. Operations with its current lease token
    fail if another client claims the job in between."""
    found = await store_of(queue).ado(queries.GetJob(check_name("id", id)))
    return found if isinstance(found, Job) and found.queue == name else None


async def enqueue(call: Call, queue: Calls, new: NewJob) -> Job:
    """Enqueue a job with a generated id. A client that sends the header Idempotency-Key can repeat
    its request and gets the same job."""
    key = call.headers.get(b"idempotency-key")
    if key is None:
        return await queue.aenqueue(**as_options(new))
    said = (call.token.hash, check_name("Idempotency-Key", key), repr(new))
    (spec,) = store_of(queue).prepare([new])
    key = digest(said)
    # The generated id differs each time, so the fingerprint is the key, which covers the request.
    (once,) = await store_of(queue).ado([ops.Once(key, (ops.Enqueue((spec,)),), fingerprint=key)])
    answer = once if isinstance(once, TenureError) else once.answers[0]
    if isinstance(answer, TenureError):
        raise answer
    # As the first response showed it: this token may not read what has become of it.
    return replace(spec, id=answer.ids[0]).to_job(State.PENDING, answer.at)


def as_options(new: NewJob) -> dict[str, Any]:
    return {name: getattr(new, name) for name in new.__struct_fields__}


def digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
