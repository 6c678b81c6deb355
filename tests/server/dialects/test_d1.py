"""The wire of the D1-backed queue, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Queue
from tenure.server.auth import Scope
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, all_jobs, token

SECRET = "edge-api-token"
FILE = {"runId": "run_1", "tenantId": "tenant_001", "r2Key": "path/to/file.pdf"}


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve(["d1"], [token(SECRET)]).as_(SECRET)


def enqueue(client: Client, **more: str) -> str:
    id: str = client.post("/jobs/enqueue", FILE | more)["jobId"]
    return id


def pull(client: Client, **body: Any) -> list[Any]:
    jobs: list[Any] = client.post("/jobs/pull", body)["jobs"]
    return jobs


def ack(client: Client, ids: list[str], status: str) -> list[Any]:
    answer = client.post("/jobs/ack", {"ids": ids, "status": status})
    assert answer["success"] is True
    return [(one["id"], one["status"]) for one in answer["results"]]


def refused(client: Client, path: str, body: Any, status: int, text: str) -> None:
    asked = client.ask("POST", path, body)
    assert asked.status == status, asked
    assert list(asked.json) == ["error"]
    assert text in asked.json["error"], asked


def test_a_job_is_enqueued(client: Client, queue: Queue) -> None:
    answer = client.post("/jobs/enqueue", FILE)
    (job,) = all_jobs(queue)
    assert answer == {"success": True, "jobId": job.id, "runId": "run_1", "status": "pending"}
    assert (job.queue, job.tenant, job.group) == ("d1", "tenant_001", "run_1")
    assert job.payload == {"r2Key": "path/to/file.pdf"}


def test_a_job_is_enqueued_for_the_run_of_the_path(client: Client, queue: Queue) -> None:
    answer = client.post("/runs/run%2F1%20%C3%A4/enqueue", {"tenantId": "t", "r2Key": "k"})
    (job,) = all_jobs(queue)
    assert answer == {"success": True, "jobId": job.id, "runId": "run/1 ä", "status": "pending"}
    assert pull(client)[0]["runId"] == "run/1 ä"


def test_the_same_request_with_its_key_makes_one_job(client: Client, queue: Queue) -> None:
    key = {"idempotency-key": "k-1"}
    first = client.post("/jobs/enqueue", FILE, headers=key)
    assert client.post("/jobs/enqueue", FILE, headers=key) == first
    (job,) = pull(client)
    assert client.post("/jobs/enqueue", FILE, headers=key) == first
    assert ack(client, [job["id"]], "done") == [(first["jobId"], "done")]
    assert client.post("/jobs/enqueue", FILE, headers=key) == first
    assert len(all_jobs(queue)) == 1
    other = FILE | {"r2Key": "other"}
    assert client.post("/jobs/enqueue", other, headers=key)["jobId"] != first["jobId"]
    client.post("/jobs/enqueue", FILE)  # without a key each is a job
    assert len(all_jobs(queue)) == 3


def test_a_key_that_cannot_be_is_refused(client: Client, queue: Queue) -> None:
    for key in ("", "x" * 513):
        asked = client.ask("POST", "/jobs/enqueue", FILE, headers={"idempotency-key": key})
        assert (asked.status, "Idempotency-Key" in asked.json["error"]) == (400, True)
    assert all_jobs(queue) == []


def test_jobs_are_pulled(client: Client, queue: Queue) -> None:
    id = enqueue(client)
    assert client.post("/jobs/pull", {"max": 10, "visibilitySeconds": 60}) == {
        "jobs": [
            {
                "id": id,
                "runId": "run_1",
                "tenantId": "tenant_001",
                "r2Key": "path/to/file.pdf",
                "attempts": 1,
            }
        ]
    }
    assert client.post("/jobs/pull", {"max": 10}) == {"jobs": []}
    assert queue.get(id).worker == SECRET


def test_a_pull_has_defaults(client: Client, clock: ManualClock) -> None:
    for _ in range(12):
        enqueue(client)
    assert len(client.post("/jobs/pull")["jobs"]) == 10
    assert len(pull(client, max=None, visibilitySeconds=None)) == 2
    clock.advance(59.999)
    assert pull(client) == []
    clock.advance(0.001)
    assert len(pull(client)) == 10


def test_a_pull_takes_leases_that_ran_out(client: Client, clock: ManualClock) -> None:
    id = enqueue(client)
    assert pull(client, visibilitySeconds=5)[0]["attempts"] == 1
    clock.advance(5)
    (again,) = pull(client)
    assert (again["id"], again["attempts"]) == (id, 2)


def test_the_largest_pull(client: Client) -> None:
    for _ in range(3):
        enqueue(client)
    assert len(pull(client, max=100, visibilitySeconds=43_200)) == 3


def test_done_jobs_are_done(client: Client, queue: Queue) -> None:
    ids = [enqueue(client) for _ in range(2)]
    pull(client)
    assert client.post("/jobs/ack", {"ids": ids, "status": "done"}) == {
        "success": True,
        "results": [{"id": ids[0], "status": "done"}, {"id": ids[1], "status": "done"}],
    }
    assert [job.state for job in all_jobs(queue)] == ["done", "done"]


def test_failed_jobs_are_pending_again_however_often(client: Client) -> None:
    id = enqueue(client)
    for attempt in range(1, 30):
        (job,) = pull(client)  # at once: nothing is waited for
        assert job["attempts"] == attempt
        assert ack(client, [id], "failed") == [(id, "pending")]


def test_attempts_can_be_limited(queue: Queue, serve: Serve) -> None:
    client = serve(["d1"], d1_max_attempts=3)
    id = enqueue(client)
    for attempt, status in ((1, "pending"), (2, "pending"), (3, "failed")):
        (job,) = pull(client)  # at once: nothing is waited for
        assert job["attempts"] == attempt
        assert ack(client, [id], "failed") == [(id, status)]
    assert pull(client) == []


def test_each_id_is_answered_for_itself(client: Client, queue: Queue) -> None:
    queue.enqueue("other", id="foreign")
    (foreign,) = queue.claim("other")
    waiting, leased = enqueue(client, tenantId="b"), enqueue(client, tenantId="a")
    assert pull(client, max=1)[0]["id"] == leased
    ids = ["never", waiting, leased, "foreign", leased]
    assert ack(client, ids, "done") == [
        ("never", "not_found"),
        (waiting, "not_leased"),
        (leased, "done"),
        ("foreign", "not_found"),
        (leased, "done"),
    ]
    assert ack(client, [leased], "done") == [(leased, "not_leased")]
    assert queue.get("foreign").token == foreign.token
    assert queue.get("foreign").state == "leased"
    assert ack(client, [], "done") == []


def test_stats_count_by_status(client: Client, serve: Serve, clock: ManualClock) -> None:
    zero = {"pending": 0, "leased": 0, "done": 0, "failed": 0}
    assert client.get("/jobs/stats") == {"stats": zero, "timestamp": 1_700_000_000}
    client = serve(["d1"], d1_max_attempts=3)
    ids = [enqueue(client) for _ in range(6)]
    pulled = [job["id"] for job in pull(client, max=5)]
    assert pulled == ids[:5]
    ack(client, ids[:2], "done")
    for _ in range(3):
        ack(client, ids[2:3], "failed")
        pull(client, max=1)
    clock.advance(1.5)
    stats = client.get("/jobs/stats")
    assert stats["timestamp"] == 1_700_000_001
    assert sum(stats["stats"].values()) == 6
    assert stats["stats"] == {"pending": 0, "leased": 3, "done": 2, "failed": 1}


def test_a_job_that_came_by_other_means_is_pulled_too(client: Client, queue: Queue) -> None:
    queue.enqueue("d1", 7, id="n")
    (job,) = pull(client)
    assert job == {"id": "n", "runId": "", "tenantId": "", "r2Key": "", "attempts": 1}


@pytest.mark.parametrize("name", sorted(FILE))
def test_a_file_needs_all_its_fields(client: Client, queue: Queue, name: str) -> None:
    less = {key: value for key, value in FILE.items() if key != name}
    refused(client, "/jobs/enqueue", less, 400, f"missing required field `{name}`")
    for value, text in (("", "length"), (1, "got `int`"), ("x" * 2000, "length")):
        refused(client, "/jobs/enqueue", FILE | {name: value}, 400, text)
    if name != "r2Key":
        for value in ("a\0", "*"):
            refused(client, "/jobs/enqueue", FILE | {name: value}, 400, "")
    assert all_jobs(queue) == []


@pytest.mark.parametrize(
    "body",
    [
        {"max": 0},
        {"max": 101},
        {"max": "1"},
        {"max": 1.5},
        {"visibilitySeconds": 0},
        {"visibilitySeconds": 43_201},
        {"visibilitySeconds": -1},
        {"visibilitySeconds": 10**30},
        [],
    ],
)
def test_a_pull_that_cannot_be_is_refused(client: Client, body: Any) -> None:
    enqueue(client)
    refused(client, "/jobs/pull", body, 400, "body: Expected")
    assert len(pull(client)) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"ids": ["a"]},
        {"status": "done"},
        {"ids": "a", "status": "done"},
        {"ids": [""], "status": "done"},
        {"ids": [1], "status": "done"},
        {"ids": ["a\0"], "status": "done"},
        {"ids": ["a"] * 1001, "status": "done"},
        {"ids": ["a"], "status": "pending"},
        {"ids": ["a"], "status": None},
    ],
)
def test_an_ack_that_cannot_be_is_refused(client: Client, body: Any) -> None:
    id = enqueue(client)
    pull(client)
    if isinstance(body.get("ids"), list):
        body = body | {"ids": [id, *body["ids"]]}
    refused(client, "/jobs/ack", body, 400, "")
    assert client.get("/jobs/stats")["stats"]["leased"] == 1


def test_every_call_needs_the_token(client: Client, queue: Queue) -> None:
    for other in (client.as_(None), client.as_("wrong")):
        for method, path in (
            ("POST", "/jobs/enqueue"),
            ("POST", "/runs/r/enqueue"),
            ("POST", "/jobs/pull"),
            ("POST", "/jobs/ack"),
            ("GET", "/jobs/stats"),
        ):
            asked = other.ask(method, path, FILE if method == "POST" else None)
            assert asked.status == 401
            assert list(asked.json) == ["error"]
            assert asked.headers["www-authenticate"] == "Bearer"
    assert all_jobs(queue) == []


def test_a_token_that_may_not_is_refused(serve: Serve, queue: Queue) -> None:
    reader = serve(["d1"], [token("r", Scope.READ)]).as_("r")
    refused(reader, "/jobs/enqueue", FILE, 403, "needs the scope 'produce'")
    refused(reader, "/jobs/pull", {}, 403, "needs the scope 'work'")
    assert all_jobs(queue) == []


def test_a_worker_needs_no_more_than_its_scope(serve: Serve) -> None:
    tokens = [token("p", Scope.PRODUCE), token("w", Scope.WORK)]
    client = serve(["d1"], tokens)
    id = enqueue(client.as_("p"))
    assert pull(client.as_("w"))[0]["id"] == id
    assert ack(client.as_("w"), [id], "done") == [(id, "done")]


def test_a_body_that_is_too_large_is_refused(client: Client) -> None:
    client.service.max_body = 10
    refused(client, "/jobs/enqueue", FILE, 413, "at most 10")
