"""The wire of queuey-queue, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Queue
from tenure.server.auth import Scope
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, all_jobs, token

NOW = 1_700_000_000_000
BINARY = "59ae214373240a255f453cc2fa8d26ab60d6b532"
INPUT = "7a293b5b7ac61a1691848e375a110f19de3de698"


def create(client: Client, **more: Any) -> str:
    id: str = client.post("/jobs/create", {"binary_addr": BINARY} | more)["job_id"]
    return id


def claim(client: Client, runner: str = "runner-1") -> Any:
    return client.post("/jobs/claim", {"runner_id": runner})


def refused(client: Client, method: str, path: str, body: Any, status: int, text: str) -> None:
    asked = client.ask(method, path, body)
    assert asked.status == status, asked
    assert list(asked.json) == ["error"]
    assert text in asked.json["error"], asked


def test_a_ping_is_answered(client: Client) -> None:
    asked = client.ask("GET", "/ping")
    assert (asked.status, asked.content) == (200, b"pong")
    assert asked.kind == "text/plain; charset=utf-8"


def test_a_job_is_created_pending(client: Client) -> None:
    job = client.post("/jobs/create", {"binary_addr": BINARY, "input_addr": INPUT})
    assert job == {
        "id": job["id"],
        "job_id": job["job_id"],
        "binary_addr": BINARY,
        "input_addr": INPUT,
        "output_addr": None,
        "created_at": NOW,
        "updated_at": NOW,
        "completed_at": None,
        "status": "pending",
        "run_attempts": 0,
        "runner_id": None,
    }
    assert client.get(f"/jobs/{job['job_id']}") == job


@pytest.mark.parametrize("more", [{}, {"input_addr": None}])
def test_the_input_is_optional(client: Client, more: dict[str, Any]) -> None:
    id = create(client, **more)
    assert client.get(f"/jobs/{id}")["input_addr"] is None


def test_the_same_request_with_its_key_makes_one_job(client: Client, queue: Queue) -> None:
    ids = {
        client.post("/jobs/create", {"binary_addr": BINARY}, headers={"idempotency-key": "k"})[
            "job_id"
        ]
        for _ in range(3)
    }
    assert [job.id for job in all_jobs(queue)] == list(ids)


def test_a_repeated_request_tells_no_more_than_the_first(serve: Serve, queue: Queue) -> None:
    shop = serve(["queuey"], [token("shop", Scope.PRODUCE)]).as_("shop")
    asked = ("/jobs/create", {"binary_addr": BINARY})
    first = shop.post(*asked, headers={"idempotency-key": "k"})
    (job,) = queue.claim("queuey")
    queue.ack(job, {"output_addr": "secret"})
    assert shop.post(*asked, headers={"idempotency-key": "k"}) == first


def test_the_oldest_pending_job_is_claimed(client: Client, clock: ManualClock) -> None:
    first = create(client)
    second = create(client)
    clock.advance(2)
    assert claim(client) == {
        "id": first,
        "job_id": first,
        "binary_addr": BINARY,
        "input_addr": None,
        "output_addr": None,
        "created_at": NOW,
        "updated_at": NOW + 2000,
        "completed_at": None,
        "status": "active",
        "run_attempts": 1,
        "runner_id": "runner-1",
    }
    assert claim(client, "runner-2")["job_id"] == second


def test_no_job_is_204_without_a_body(client: Client) -> None:
    asked = client.ask("POST", "/jobs/claim", {"runner_id": "r"})
    assert (asked.status, asked.content) == (204, b"")
    assert "content-type" not in asked.headers
    assert "content-length" not in asked.headers


def test_a_tickle_keeps_a_job(client: Client, clock: ManualClock) -> None:
    id = create(client)
    claim(client)
    for _ in range(5):
        clock.advance(299)
        assert client.post(f"/jobs/{id}/tickle") == {}
    job = client.get(f"/jobs/{id}")
    assert (job["status"], job["run_attempts"]) == ("active", 1)
    assert job["updated_at"] == clock.now_ms()


def test_a_job_without_a_tickle_is_abandoned(client: Client, clock: ManualClock) -> None:
    id = create(client)
    claim(client)
    clock.advance(299.999)
    assert client.get(f"/jobs/{id}")["status"] == "active"
    clock.advance(0.001)
    job = client.get(f"/jobs/{id}")
    assert (job["status"], job["runner_id"], job["run_attempts"]) == ("pending", None, 1)
    assert job["updated_at"] == clock.now_ms()
    assert job["completed_at"] is None


@pytest.mark.parametrize("call", ["tickle", "complete"])
def test_an_abandoned_job_is_no_longer_its_runners(
    client: Client, clock: ManualClock, call: str
) -> None:
    id = create(client)
    claim(client)
    clock.advance(300)
    refused(client, "POST", f"/jobs/{id}/{call}", {"status": "completed"}, 400, "is not active")
    assert client.get(f"/jobs/{id}")["status"] == "pending"


def test_a_job_fails_once_its_claims_are_used_up(client: Client, clock: ManualClock) -> None:
    id = create(client)
    for attempt in (1, 2, 3):
        assert claim(client)["run_attempts"] == attempt
        clock.advance(300)
    job = client.get(f"/jobs/{id}")
    assert (job["status"], job["run_attempts"]) == ("failed", 3)
    assert job["completed_at"] == clock.now_ms()
    assert client.ask("POST", "/jobs/claim", {"runner_id": "r"}).status == 204


@pytest.mark.parametrize("status", ["completed", "Completed"])
def test_a_job_is_completed(client: Client, clock: ManualClock, status: str) -> None:
    id = create(client)
    claim(client)
    clock.advance(7)
    body = {"status": status, "output_addr": "out-1"}
    assert client.post(f"/jobs/{id}/complete", body) == {}
    job = client.get(f"/jobs/{id}")
    assert job["status"] == "completed"
    assert job["output_addr"] == "out-1"
    assert job["completed_at"] == job["updated_at"] == NOW + 7000
    assert job["runner_id"] == "runner-1"


@pytest.mark.parametrize("status", ["failed", "Failed"])
@pytest.mark.parametrize("output", [None, "log-1"])
def test_a_job_that_its_runner_failed_is_final(
    client: Client, queue: Queue, status: str, output: str | None
) -> None:
    id = create(client)
    claim(client)
    body = {"status": status, "output_addr": output}
    assert client.post(f"/jobs/{id}/complete", body) == {}
    job = client.get(f"/jobs/{id}")
    assert (job["status"], job["run_attempts"], job["output_addr"]) == ("failed", 1, output)
    assert job["completed_at"] == NOW
    assert client.ask("POST", "/jobs/claim", {"runner_id": "r"}).status == 204


def test_an_output_need_not_be_said(client: Client) -> None:
    id = create(client)
    claim(client)
    assert client.post(f"/jobs/{id}/complete", {"status": "completed"}) == {}
    assert client.get(f"/jobs/{id}")["output_addr"] is None


@pytest.mark.parametrize("id", ["never", "foreign"])
def test_what_is_not_there_is_404(client: Client, queue: Queue, id: str) -> None:
    queue.enqueue("other", id="foreign")
    queue.claim("other")
    refused(client, "GET", f"/jobs/{id}", None, 404, "there is no job")
    refused(client, "POST", f"/jobs/{id}/tickle", None, 404, "there is no job")
    refused(client, "POST", f"/jobs/{id}/complete", {"status": "failed"}, 404, "there is no job")
    assert queue.get("foreign").state == "leased"


def test_what_is_not_active_is_400(client: Client) -> None:
    pending, done = create(client), create(client)
    for _ in range(2):
        claim(client)
    client.post(f"/jobs/{done}/complete", {"status": "completed"})
    client.post(f"/jobs/{pending}/complete", {"status": "failed"})
    waiting = create(client)
    for id in (pending, done, waiting):
        refused(client, "POST", f"/jobs/{id}/tickle", None, 400, "is not active")
        body = {"status": "completed", "output_addr": "late"}
        refused(client, "POST", f"/jobs/{id}/complete", body, 400, "is not active")
        assert client.get(f"/jobs/{id}")["output_addr"] is None


def test_a_cancelled_job_counts_as_failed(client: Client, queue: Queue) -> None:
    id = create(client)
    queue.cancel(id)
    assert client.get(f"/jobs/{id}")["status"] == "failed"


def test_a_job_that_came_by_other_means_is_shown_too(client: Client, queue: Queue) -> None:
    queue.enqueue("queuey", [1], id="n/1")
    job = client.get("/jobs/n%2F1")
    assert (job["job_id"], job["binary_addr"], job["input_addr"]) == ("n/1", "", None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs/create", {}),
        ("/jobs/create", {"binary_addr": ""}),
        ("/jobs/create", {"binary_addr": 1}),
        ("/jobs/create", {"binary_addr": None}),
        ("/jobs/create", {"binary_addr": "a", "input_addr": 1}),
        ("/jobs/create", {"binary_addr": "x" * 5000}),
        ("/jobs/create", []),
        ("/jobs/claim", {}),
        ("/jobs/claim", {"runner_id": ""}),
        ("/jobs/claim", {"runner_id": None}),
        ("/jobs/claim", {"runner_id": "a\0"}),
        ("/jobs/claim", {"runner_id": "x" * 513}),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    client: Client, queue: Queue, path: str, body: Any
) -> None:
    refused(client, "POST", path, body, 400, "")
    assert all_jobs(queue) == []


@pytest.mark.parametrize(
    "body",
    [{}, {"status": "done"}, {"status": "COMPLETED"}, {"status": "failed", "output_addr": 1}],
)
def test_a_completion_that_cannot_be_is_refused(client: Client, body: Any) -> None:
    id = create(client)
    claim(client)
    refused(client, "POST", f"/jobs/{id}/complete", body, 400, "")
    assert client.get(f"/jobs/{id}")["status"] == "active"


def test_a_name_that_cannot_be_is_refused(client: Client) -> None:
    for part, text in (("%00", "NUL"), ("%FF", "is not UTF-8"), ("x" * 513, "513 characters")):
        refused(client, "GET", f"/jobs/{part}", None, 400, text)
        refused(client, "POST", f"/jobs/{part}/tickle", None, 400, text)


def test_a_runner_needs_no_more_than_its_scope(serve: Serve) -> None:
    tokens = [token("p", Scope.PRODUCE), token("w", Scope.WORK), token("r", Scope.READ)]
    client = serve(["queuey"], tokens)
    id = create(client.as_("p"))
    assert claim(client.as_("w"))["job_id"] == id
    assert client.as_("w").post(f"/jobs/{id}/tickle") == {}
    assert client.as_("w").post(f"/jobs/{id}/complete", {"status": "completed"}) == {}
    assert client.as_("r").get(f"/jobs/{id}")["status"] == "completed"
    refused(client.as_("p"), "GET", f"/jobs/{id}", None, 403, "needs the scope 'read'")
    refused(client.as_(None), "GET", f"/jobs/{id}", None, 401, "a token is needed")
    assert client.as_(None).ask("GET", "/ping").status == 200


@pytest.mark.parametrize("scope", [Scope.READ, Scope.ADMIN])
def test_redacted_fields_of_a_job_are_hidden(serve: Serve, queue: Queue, scope: Scope) -> None:
    client = serve(
        tokens=[token("p", Scope.PRODUCE, Scope.WORK), token("r", scope)],
        redact=["input_addr", "output_addr"],
    )
    job = client.as_("p").post("/jobs/create", {"binary_addr": "b", "input_addr": "secret"})
    assert client.as_("p").post("/jobs/claim", {"runner_id": "r"})["input_addr"] == "secret"
    done = {"status": "failed", "output_addr": "secret"}
    client.as_("p").post(f"/jobs/{job['id']}/complete", done)
    found = client.as_("r").get(f"/jobs/{job['id']}")
    assert (found["binary_addr"], found["input_addr"]) == ("b", "[redacted]")
    assert found["output_addr"] == "[redacted]"
