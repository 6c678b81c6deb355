"""Steps and signals over HTTP: what each kind of token may do."""

from __future__ import annotations

import asyncio
from typing import Any

import tenure
from tenure import Queue, Settings
from tenure.server.auth import Scope, Tokens
from tenure.server.routes import make_app
from tests.server.conftest import Serve, token
from tests.server.host import host


def claimed(queue: Queue, tenant: str = "") -> dict[str, Any]:
    queue.enqueue("q", id="a", tenant=tenant)
    (job,) = queue.claim("q")
    return {"id": job.id, "token": job.token}


def test_a_worker_in_another_language_records_steps_and_waits_for_a_signal(
    serve: Serve, queue: Queue
) -> None:
    client, lease = serve(), claimed(queue)
    step = {"op": "Checkpoint", **lease, "name": "charge", "result": {"paid": 3}}
    wait = {"op": "Suspend", **lease, "name": "approval", "kind": "wait"}
    answers = client.post("/v1/ops", {"ops": [step, step, wait]})["answers"]
    assert [one.get("created") for one in answers] == [True, False, None]
    assert answers[2]["state"] == "pending"
    assert client.get("/v1/jobs/a/why")["reasons"][0]["code"] == "suspended"
    assert client.post("/v1/jobs/a/signals/approval", {"value": {"by": "ann"}}) == {"count": 1}
    assert client.post("/v1/jobs/a/signals/approval", {}) == {"count": 0}
    found = client.get("/v1/jobs/a/steps")
    assert [one["name"] for one in found["steps"]] == ["charge", "approval"]
    assert found["signals"][0]["value"] == {"by": "ann"}
    (job,) = client.post("/v1/claim", {"queues": ["q"], "worker": "w"})["jobs"]
    recall = {"op": "Recall", "id": "a", "token": job["token"]}
    (answer,) = client.post("/v1/ops", {"ops": [recall]})["answers"]
    assert answer["steps"]["steps"][0]["result"] == {"paid": 3}


def test_a_token_sees_and_signals_only_jobs_of_its_tenant(serve: Serve, queue: Queue) -> None:
    scopes = (Scope.READ, Scope.PRODUCE, Scope.WORK)
    client = serve(
        tokens=[
            token("own", *scopes, tenants=("acme",)),
            token("other", *scopes, tenants=("bolt",)),
            token("reader", Scope.READ),
        ]
    )
    lease = claimed(queue, "acme")
    step = {"op": "Checkpoint", **lease, "name": "charge", "result": {"paid": 3}}
    (hidden,) = client.as_("other").post("/v1/ops", {"ops": [step]})["answers"]
    assert hidden["code"] == "job_not_found"
    (answer,) = client.as_("own").post("/v1/ops", {"ops": [step]})["answers"]
    assert answer["created"]
    assert len(client.as_("own").get("/v1/jobs/a/steps")["steps"]) == 1
    assert client.as_("other").ask("GET", "/v1/jobs/a/steps").json.get("steps", []) == []
    assert client.as_("other").ask("POST", "/v1/jobs/a/signals/go", {}).status == 404
    assert client.as_("reader").ask("POST", "/v1/jobs/a/signals/go", {}).status == 403
    assert client.as_("own").post("/v1/jobs/a/signals/go", {}) == {"count": 1}
    assert client.as_("own").ask("POST", "/v1/jobs/a/replay-from", {"step": "x"}).status == 403


def test_a_token_that_is_not_for_a_queue_adds_no_jobs_there_by_steps(
    serve: Serve, queue: Queue
) -> None:
    client = serve(
        tokens=[token("q", Scope.WORK, Scope.PRODUCE, queues=("q",)), token("w", Scope.WORK)]
    )
    lease = claimed(queue)
    spec = {"id": "x", "queue": "others", "payload": 1}
    gather = {"op": "Suspend", **lease, "name": "g", "kind": "gather", "then": [spec]}
    undo = {"op": "Checkpoint", **lease, "name": "u", "kind": "undo", "then": [spec]}
    for op in (gather, undo):
        assert client.as_("q").ask("POST", "/v1/ops", {"ops": [op]}).status == 403
        assert client.as_("w").ask("POST", "/v1/ops", {"ops": [op]}).status == 403


def test_readers_get_results_redacted_and_workers_do_not(serve: Serve, queue: Queue) -> None:
    client, lease = serve(redact=["card"]), claimed(queue)
    step = {"op": "Checkpoint", **lease, "name": "charge", "result": {"card": "4111"}}
    recall = {"op": "Recall", **lease}
    _, answer = client.post("/v1/ops", {"ops": [step, recall]})["answers"]
    assert answer["steps"]["steps"][0]["result"] == {"card": "4111"}
    (shown,) = client.get("/v1/jobs/a/steps")["steps"]
    assert shown["result"] == {"card": "[redacted]"}


def test_a_worker_with_the_scope_work_alone_goes_on_with_what_it_has_recorded(
    queue: Queue,
) -> None:
    service = make_app(queue, tokens=Tokens([token("w", Scope.WORK)]), redact=["card"])
    name, seen = f"steps-{id(queue)}", list[dict[str, str]]()
    host().services[name] = service
    app = tenure.Tenure(f"{host().url}/{name}", settings=Settings(token="w"))

    async def charge() -> dict[str, str]:
        return {"card": "4111"}

    @app.task(queue="q", name="pay")
    async def pay() -> None:
        seen.append(await tenure.current_job().step(charge))
        if len(seen) == 1:
            raise tenure.Snooze(0)

    queue.enqueue("q", {}, kind="pay")
    try:
        with app:
            asyncio.run(app.worker(queues=["q"], burst=True, schedule=False).run())
    finally:
        host().services.pop(name)
        service.close()
    assert seen == [{"card": "4111"}] * 2
