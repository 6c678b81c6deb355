"""A good request for every route, about the things of one owner, and the things that it is about.

OWNER, QUEUE, TENANT, TOKEN, KEY and ERROR in a request stand for the owner's name, the queue and
tenant that its jobs are in, the token of its leased job, the same as Firecrawl writes it, and the
group of its error.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any, Literal, NamedTuple

import msgspec

from tenure import NewJob, Queue
from tenure.features.bulk.data import BulkRun
from tenure.features.errors.fingerprint import group_of
from tenure.features.steps.data import Checkpoint
from tenure.model.job import Failure
from tenure.model.records import NewRecord, PutRecords
from tenure.queue import store_of
from tenure.server.auth import hash_of

Bound = Literal["tenant", "queue"]


class Example(NamedTuple):
    """A request of a route; `job` is the leased one that TOKEN is of."""

    path: str
    body: Any = None
    job: str = "OWNER-leased"


class Request(NamedTuple):
    method: str
    path: str
    content: bytes | None


def place_of(owner: str, bound: Bound) -> tuple[str, str]:
    """The queue and the tenant of an owner's jobs."""
    return ("shared", owner) if bound == "tenant" else (f"{owner}-queue", "")


def fill(queue: Queue, owner: str, bound: Bound) -> None:
    """Some of everything that an owner can have."""
    name, tenant = place_of(owner, bound)
    for where, who, start in (
        (name, tenant, ""),
        ("firecrawl", owner, "fc-"),
        ("d1", owner, "d1-"),
        ("queuey", owner, "mesh-"),
    ):
        id, group = f"{start}{owner}", f"{owner}-group"
        for state in ("done", "dead", "cancelled", "leased"):
            queue.enqueue(where, f"{id}-payload", id=f"{id}-{state}", tenant=who, group=group)
            if state == "cancelled":
                queue.cancel(f"{id}-{state}")
                continue
            (job,) = queue.claim(where, worker=f"{id}-worker", tenant=who, lease=10_000)
            result = msgspec.Raw(msgspec.json.encode(f"{id}-step-result"))
            store_of(queue).do([Checkpoint(job.id, job.token, f"{id}-step", result=result)])
            queue.signal(job, f"{id}-signal", f"{id}-value")
            if state == "done":
                queue.ack(job, f"{id}-result")
            elif state == "dead":
                queue.fail(job, f"{id}-error", fatal=True)
        queue.enqueue(where, id=f"{id}-delayed", tenant=who, delay=77)
        queue.enqueue(where, id=f"{id}-ready", tenant=who, group=group, unique_key=f"{id}-key")
    for scope, key in (
        (name, owner),
        ("firecrawl/team", owner),
        ("firecrawl/crawl", f"{owner}-group"),
    ):
        queue.slots.take(scope, key, f"{owner}-holder", 1000)
    _add_run(queue, owner, bound)
    job_of = NewJob(queue=name, tenant=tenant, payload=f"{owner}-payload")
    queue.schedules.put(f"{owner}-schedule", "0 3 * * *", job_of)
    queue.limits.set(name, tenant=tenant, concurrency=50 if owner == "ours" else 60)


def _add_run(queue: Queue, owner: str, bound: Bound) -> None:
    """A bulk run that is over, of the token that is bound if it is ours."""
    run = BulkRun(f"{owner}-run", "cancel", {}, owner, "", 5, 5, state="done")
    whose = hash_of(bound) if owner == "ours" else owner
    value = msgspec.json.encode({"owner": whose, "run": run})
    store_of(queue).do([PutRecords((NewRecord("bulk", run.id, value),))])


def request_of(queue: Queue, method: str, example: Example, owner: str, bound: Bound) -> Request:
    """The request about an owner's things."""
    name, tenant = place_of(owner, bound)
    id = example.job.replace("OWNER", owner)
    token = queue.get(id).token if _is_there(queue, id) else 1
    key = urlsafe_b64encode(f"{token}.{id}".encode()).decode()
    values = {"OWNER": owner, "QUEUE": name, "TENANT": tenant, "KEY": key}
    values["ERROR"] = group_of(name, "", Failure(1, 0, f"{owner}-error"))
    text = None if example.body is None else msgspec.json.encode(example.body).decode()
    path = example.path
    for word, value in values.items():
        path = path.replace(word, value)
        text = None if text is None else text.replace(word, value)
    text = None if text is None else text.replace('"TOKEN"', str(token))
    return Request(method, path, None if text is None else text.encode())


def _is_there(queue: Queue, id: str) -> bool:
    return any(job.id == id for job in queue.jobs(limit=1000).jobs)


NEW_ID = "3f8a1c52-9d47-4b0e-8c61-5e2d7a90b1f4"  # one that a bound token may choose
LEASE = {"id": "OWNER-leased", "token": "TOKEN"}
JOB = {"queue": "QUEUE", "tenant": "TENANT"}
SPEC = {"id": NEW_ID, "queue": "QUEUE", "tenant": "TENANT", "payload": 1}
SCHEDULE = {"cron": "0 4 * * *", "job": JOB}
FIRECRAWL_JOB = {"id": NEW_ID, "data": 1, "priority": 0, "listenable": True}
MARK = {"jobId": "OWNER-holder", "timeout": 1000}

OPS: list[dict[str, Any]] = [
    {"op": "Enqueue", "jobs": [SPEC]},
    {"op": "Enqueue", "jobs": [SPEC | {"after": ["OWNER-ready"]}], "if_exists": "skip"},
    {"op": "Claim", "queues": ["QUEUE"], "worker": "w", "lease_ms": 1000, "tenant": "TENANT"},
    {"op": "Ack", **LEASE},
    {"op": "Ack", **LEASE, "then": [SPEC]},
    {"op": "Fail", **LEASE},
    {"op": "Extend", **LEASE, "lease_ms": 1000},
    {"op": "Release", **LEASE},
    {"op": "Progress", **LEASE, "percent": 5},
    {"op": "Checkpoint", **LEASE, "name": "one", "result": {"n": 1}, "lease_ms": 1000},
    {"op": "Checkpoint", **LEASE, "name": "two", "kind": "undo", "then": [SPEC]},
    {"op": "Recall", **LEASE},
    {"op": "Suspend", **LEASE, "name": "nap", "delay_ms": 5},
    {"op": "Suspend", **LEASE, "name": "all", "kind": "gather", "then": [SPEC]},
    {"op": "Signal", "ids": ["OWNER-leased"], "name": "go", "value": 1},
    {"op": "ReplayFrom", "ids": ["OWNER-dead"], "name": "OWNER-step"},
    {"op": "Cancel", "ids": ["OWNER-ready", "OWNER-dead"]},
    {"op": "Replay", "ids": ["OWNER-dead"]},
    {"op": "RunNow", "ids": ["OWNER-ready"]},
    {"op": "Delete", "ids": ["OWNER-done", "OWNER-ready"]},
    {"op": "Update", "ids": ["OWNER-ready"], "priority": 5, "payload": None},
    {"op": "ReplayEdited", "id": "OWNER-dead", "new_id": NEW_ID, "payload": {"n": 1}},
    {"op": "SetLimit", **JOB, "concurrency": 3},
    {"op": "ClearLimit", **JOB},
    {"op": "Pause", **JOB},
    {"op": "Resume", **JOB},
    {"op": "TakeSlot", "scope": "QUEUE", "key": "OWNER", "holder": "h", "ttl_ms": 1000},
    {"op": "Beat", "worker": {"name": "OWNER-worker", "queues": ["QUEUE"]}, "ttl_ms": 1000},
    {"op": "DropSlot", "scope": "QUEUE", "key": "OWNER", "holder": "OWNER-holder"},
    {
        "op": "PutSchedule",
        "schedule": {"name": "OWNER-new", "cron": "0 4 * * *", "job": SPEC, "next_at": 5},
    },
    {"op": "DropSchedule", "name": "OWNER-schedule"},
    {"op": "Fire", "name": "OWNER-schedule", "tick": 5, "id": NEW_ID},
    {"op": "Maintain"},
    {"op": "Reconcile", **JOB},
    {"op": "ReconcileSlots", "scope": "QUEUE", "key": "OWNER"},
    {"op": "MuteError", "group": "0a1b2c3d4e5f"},
]
FILTER = {"queue": "QUEUE", "tenant": "TENANT"}
QUERIES: list[dict[str, Any]] = [
    {"query": "GetJob", "id": "OWNER-ready"},
    {"query": "ListPast", "id": "OWNER-ready"},
    {"query": "GetJobs", "ids": ["OWNER-ready", "OWNER-dead"]},
    {"query": "ListJobs", "filter": FILTER},
    {"query": "ListSummaries", "filter": FILTER},
    {"query": "FindIds", "filter": FILTER},
    {"query": "FindIds", "filter": FILTER | {"group": "OWNER-group"}},
    {"query": "NextDue", "queues": ["QUEUE"]},
    {"query": "OldestReady", "queues": ["QUEUE"]},
    {"query": "GetStats", "queue": "QUEUE"},
    {"query": "GetStats"},
    {"query": "ListTenants", "queue": "QUEUE"},
    {"query": "ListTenants", "queue": "QUEUE", "tenant": "TENANT"},
    {"query": "ListGroups", "queue": "QUEUE", "tenant": "TENANT"},
    {"query": "ListGroupTotals", "queue": "QUEUE"},
    {"query": "FindByPrefix", "prefix": "OWNER-"},
    {"query": "ListLimits"},
    {"query": "ListLimits", "queue": "QUEUE"},
    {"query": "ListSlots", "scope": "QUEUE", "key": "OWNER"},
    {"query": "ListSchedules"},
    {"query": "GetTimetable"},
    {"query": "Explain", "id": "OWNER-ready"},
    {"query": "ListSteps", "id": "OWNER-leased"},
    {"query": "ListRelated", "id": "OWNER-ready"},
    {"query": "FindByKey", "unique_key": "OWNER-key"},
    {"query": "LongestWaits", "queue": "QUEUE", "tenants": ["TENANT"]},
    {"query": "ListWorkers"},
    {"query": "ListErrors", "queue": "QUEUE"},
    {"query": "ListAudit"},
    {"query": "ListRates", "since": 0, "until": 5, "queue": "QUEUE"},
]

EXAMPLES: dict[str, list[Example]] = {
    "POST /v1/jobs": [
        Example("/v1/jobs", JOB),
        Example("/v1/jobs", [JOB, JOB | {"after": ["OWNER-ready"]}]),
        Example("/v1/jobs?if_exists=skip", JOB | {"unique_key": "OWNER-key"}),
    ],
    "GET /v1/jobs": [
        Example("/v1/jobs?queue=QUEUE&tenant=TENANT"),
        Example("/v1/jobs?queue=QUEUE&tenant=TENANT&state=dead"),
        Example("/v1/jobs?queue=QUEUE&tenant=TENANT&summary=true&created_after=5&worker=w"),
    ],
    "POST /v1/jobs/cancel": [
        Example("/v1/jobs/cancel", {"ids": ["OWNER-ready"]}),
        Example("/v1/jobs/cancel", FILTER),
    ],
    "POST /v1/jobs/replay": [
        Example("/v1/jobs/replay", {"ids": ["OWNER-dead"]}),
        Example("/v1/jobs/replay", FILTER | {"state": "dead"}),
    ],
    "POST /v1/jobs/run-now": [
        Example("/v1/jobs/run-now", {"ids": ["OWNER-ready"]}),
        Example("/v1/jobs/run-now", FILTER),
    ],
    "POST /v1/jobs/delete": [
        Example("/v1/jobs/delete", {"ids": ["OWNER-done"]}),
        Example("/v1/jobs/delete", FILTER),
    ],
    "GET /v1/jobs/{id}": [Example("/v1/jobs/OWNER-done")],
    "PATCH /v1/jobs/{id}": [
        Example("/v1/jobs/OWNER-ready", {"priority": 5}),
        Example("/v1/jobs/OWNER-ready", {"delay": 5, "payload": {"n": 2}}),
    ],
    "POST /v1/jobs/{id}/edit-and-replay": [
        Example("/v1/jobs/OWNER-dead/edit-and-replay", {"payload": {"n": 2}}),
    ],
    "POST /v1/bulk": [
        Example("/v1/bulk", {"action": "replay", "filter": FILTER, "dry_run": True}),
        Example("/v1/bulk", {"action": "cancel", "filter": FILTER}),
    ],
    "GET /v1/bulk": [Example("/v1/bulk")],
    "GET /v1/bulk/{id}": [Example("/v1/bulk/OWNER-run")],
    "POST /v1/bulk/{id}/stop": [Example("/v1/bulk/OWNER-run/stop")],
    "GET /v1/jobs/{id}/history": [Example("/v1/jobs/OWNER-done/history")],
    "DELETE /v1/jobs/{id}": [Example("/v1/jobs/OWNER-done")],
    "POST /v1/jobs/{id}/cancel": [Example("/v1/jobs/OWNER-ready/cancel")],
    "POST /v1/jobs/{id}/replay": [Example("/v1/jobs/OWNER-dead/replay")],
    "POST /v1/jobs/{id}/run-now": [Example("/v1/jobs/OWNER-ready/run-now")],
    "POST /v1/jobs/{id}/progress": [
        Example("/v1/jobs/OWNER-leased/progress", {"token": "TOKEN", "percent": 5})
    ],
    "GET /v1/jobs/{id}/why": [
        Example("/v1/jobs/OWNER-ready/why"),
        Example("/v1/jobs/OWNER-leased/why"),
    ],
    "GET /v1/jobs/{id}/steps": [Example("/v1/jobs/OWNER-leased/steps")],
    "POST /v1/jobs/{id}/signals/{name}": [
        Example("/v1/jobs/OWNER-ready/signals/go", {"value": 1}),
        Example("/v1/jobs/OWNER-leased/signals/go", {}),
    ],
    "POST /v1/jobs/{id}/replay-from": [
        Example("/v1/jobs/OWNER-dead/replay-from", {"step": "OWNER-step"})
    ],
    "GET /v1/jobs/{id}/related": [Example("/v1/jobs/OWNER-ready/related")],
    "GET /v1/workers": [Example("/v1/workers"), Example("/v1/workers?queue=QUEUE")],
    "PUT /v1/workers/{name}": [
        Example("/v1/workers/OWNER-worker", {"queues": ["QUEUE"], "running": ["OWNER-leased"]})
    ],
    "GET /v1/jobs/{id}/wait": [Example("/v1/jobs/OWNER-done/wait?timeout=0")],
    "POST /v1/claim": [Example("/v1/claim", {"queues": ["QUEUE"], "tenant": "TENANT"})],
    "POST /v1/ack": [
        Example("/v1/ack", {"jobs": [LEASE]}),
        Example("/v1/ack", {"jobs": [LEASE | {"then": [JOB]}]}),
    ],
    "POST /v1/fail": [Example("/v1/fail", {"jobs": [LEASE]})],
    "POST /v1/extend": [Example("/v1/extend", {"jobs": [LEASE]})],
    "POST /v1/release": [Example("/v1/release", {"jobs": [LEASE]})],
    "GET /metrics": [Example("/metrics")],
    "GET /v1/queues": [Example("/v1/queues")],
    "GET /v1/queues/{queue}": [Example("/v1/queues/QUEUE")],
    "POST /v1/queues/{queue}/pause": [Example("/v1/queues/QUEUE/pause", {"tenant": "TENANT"})],
    "POST /v1/queues/{queue}/resume": [Example("/v1/queues/QUEUE/resume", {"tenant": "TENANT"})],
    "POST /v1/queues/{queue}/reconcile": [
        Example("/v1/queues/QUEUE/reconcile", {"tenant": "TENANT"})
    ],
    "GET /v1/queues/{queue}/limits": [Example("/v1/queues/QUEUE/limits")],
    "PUT /v1/queues/{queue}/limits": [
        Example("/v1/queues/QUEUE/limits", {"tenant": "TENANT", "concurrency": 2})
    ],
    "DELETE /v1/queues/{queue}/limits": [Example("/v1/queues/QUEUE/limits?tenant=TENANT")],
    "GET /v1/queues/{queue}/tenants": [Example("/v1/queues/QUEUE/tenants")],
    "GET /v1/queues/{queue}/tenants/{tenant}/groups": [
        Example("/v1/queues/QUEUE/tenants/OWNER/groups")
    ],
    "GET /v1/queues/{queue}/group-totals": [
        Example("/v1/queues/QUEUE/group-totals"),
        Example("/v1/queues/QUEUE/group-totals?group=g"),
    ],
    "GET /v1/queues/{queue}/groups": [Example("/v1/queues/QUEUE/groups?tenant=TENANT")],
    "GET /v1/dead": [Example("/v1/dead?queue=QUEUE&tenant=TENANT")],
    "POST /v1/dead/replay": [
        Example("/v1/dead/replay", {"ids": ["OWNER-dead"]}),
        Example("/v1/dead/replay", FILTER),
    ],
    "POST /v1/dead/purge": [Example("/v1/dead/purge", {"older_than": 0, "queue": "QUEUE"})],
    "GET /v1/slots/{scope}/{key}": [Example("/v1/slots/QUEUE/OWNER")],
    "PUT /v1/slots/{scope}/{key}/{holder}": [Example("/v1/slots/QUEUE/OWNER/h", {"ttl": 5})],
    "DELETE /v1/slots/{scope}/{key}/{holder}": [Example("/v1/slots/QUEUE/OWNER/OWNER-holder")],
    "GET /v1/schedules": [Example("/v1/schedules")],
    "PUT /v1/schedules/{name}": [Example("/v1/schedules/OWNER-new", SCHEDULE)],
    "DELETE /v1/schedules/{name}": [Example("/v1/schedules/OWNER-schedule")],
    "GET /v1/errors": [Example("/v1/errors?queue=QUEUE")],
    "POST /v1/errors/{group}/mute": [Example("/v1/errors/ERROR/mute")],
    "POST /v1/errors/{group}/unmute": [Example("/v1/errors/ERROR/unmute")],
    "GET /v1/rates": [Example("/v1/rates?queue=QUEUE")],
    "GET /v1/audit": [Example("/v1/audit")],
    "POST /v1/maintain": [Example("/v1/maintain")],
    "POST /v1/ops": [
        *(Example("/v1/ops", {"ops": [op]}) for op in OPS),
        *(Example("/v1/ops", {"ops": [op], "key": f"once{n}"}) for n, op in enumerate(OPS)),
    ],
    "POST /v1/query": [Example("/v1/query", {"query": query}) for query in QUERIES],
    "GET /v1/changes": [Example("/v1/changes")],
    "GET /v1/me": [Example("/v1/me")],
    "GET /v1/overview": [Example("/v1/overview")],
    "GET /v1/search": [Example("/v1/search?q=OWNER")],
    "POST /v1/schedules/{name}/pause": [Example("/v1/schedules/OWNER-schedule/pause")],
    "POST /v1/schedules/{name}/resume": [Example("/v1/schedules/OWNER-schedule/resume")],
    "POST /v1/schedules/{name}/run-now": [Example("/v1/schedules/OWNER-schedule/run-now")],
    # Firecrawl
    "POST /queue/push": [Example("/queue/push", {"teamId": "OWNER", "job": FIRECRAWL_JOB})],
    "POST /queue/pop/{team_id}": [Example("/queue/pop/OWNER", {"workerId": "w"})],
    "POST /queue/complete": [Example("/queue/complete", {"queueKey": "KEY"}, "fc-OWNER-leased")],
    "POST /queue/release": [Example("/queue/release", {"jobId": "fc-OWNER-leased"})],
    "GET /queue/count/team/{team_id}": [Example("/queue/count/team/OWNER")],
    "GET /queue/count/crawl/{crawl_id}": [Example("/queue/count/crawl/OWNER-group")],
    "GET /queue/jobs/team/{team_id}": [Example("/queue/jobs/team/OWNER")],
    "POST /active/push": [Example("/active/push", {"teamId": "OWNER", **MARK})],
    "DELETE /active/remove": [Example("/active/remove", {"teamId": "OWNER", **MARK})],
    "GET /active/count/{team_id}": [Example("/active/count/OWNER")],
    "GET /active/jobs/{team_id}": [Example("/active/jobs/OWNER")],
    "POST /active/crawl/push": [Example("/active/crawl/push", {"crawlId": "OWNER", **MARK})],
    "DELETE /active/crawl/remove": [Example("/active/crawl/remove", {"crawlId": "OWNER", **MARK})],
    "GET /active/crawl/jobs/{crawl_id}": [
        Example("/active/crawl/jobs/OWNER-group"),
        Example("/active/crawl/jobs/OWNER"),
    ],
    "POST /cleanup/expired-jobs": [Example("/cleanup/expired-jobs")],
    "POST /cleanup/expired-active-jobs": [Example("/cleanup/expired-active-jobs")],
    "POST /cleanup/orphaned-claims": [Example("/cleanup/orphaned-claims")],
    "POST /cleanup/stale-counters": [Example("/cleanup/stale-counters")],
    "POST /reconcile/team/queue/{team_id}": [Example("/reconcile/team/queue/OWNER")],
    "POST /reconcile/team/active/{team_id}": [Example("/reconcile/team/active/OWNER")],
    "POST /reconcile/crawl/queue/{crawl_id}": [Example("/reconcile/crawl/queue/OWNER-group")],
    "POST /reconcile/crawl/active/{crawl_id}": [Example("/reconcile/crawl/active/OWNER-group")],
    "GET /sample/teams": [Example("/sample/teams")],
    "GET /sample/crawls": [Example("/sample/crawls")],
    # D1
    "POST /jobs/enqueue": [
        Example("/jobs/enqueue", {"runId": "r", "tenantId": "OWNER", "r2Key": "k"})
    ],
    "POST /runs/{run_id}/enqueue": [
        Example("/runs/OWNER-group/enqueue", {"tenantId": "OWNER", "r2Key": "k"})
    ],
    "POST /jobs/pull": [Example("/jobs/pull", {"max": 100})],
    "POST /jobs/ack": [
        Example("/jobs/ack", {"ids": ["d1-OWNER-leased", "d1-OWNER-done"], "status": "done"}),
        Example("/jobs/ack", {"ids": ["d1-OWNER-leased", "OWNER-leased"], "status": "failed"}),
    ],
    "GET /jobs/stats": [Example("/jobs/stats")],
    # Queuey
    "POST /jobs/create": [Example("/jobs/create", {"binary_addr": "b"})],
    "POST /jobs/claim": [Example("/jobs/claim", {"runner_id": "r"})],
    "GET /jobs/{id}": [Example("/jobs/mesh-OWNER-done")],
    "POST /jobs/{id}/tickle": [Example("/jobs/mesh-OWNER-leased/tickle")],
    "POST /jobs/{id}/complete": [
        Example("/jobs/mesh-OWNER-leased/complete", {"status": "completed"})
    ],
    # EVE Kill
    "GET /api/queue/stats": [Example("/api/queue/stats")],
    "GET /api/queue/failed": [Example("/api/queue/failed")],
    "POST /api/queue/retry": [Example("/api/queue/retry", {"jobId": "OWNER-dead"})],
}
