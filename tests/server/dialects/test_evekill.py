"""The wire of EVE Kill's queue, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Queue
from tenure.testing import ManualClock
from tests.server.conftest import Client


def refused(client: Client, method: str, path: str, body: Any, status: int, text: str) -> None:
    asked = client.ask(method, path, body)
    assert asked.status == status, asked
    assert list(asked.json) == ["error"]
    assert text in asked.json["error"], asked


def die(queue: Queue, id: str, **options: Any) -> None:
    queue.enqueue("doomed", id=id, **options)
    (job,) = queue.claim("doomed")
    queue.fail(job, f"no {id}", fatal=True)


def test_stats_are_overall_and_by_queue(client: Client, queue: Queue) -> None:
    zero = {"pending": 0, "processing": 0, "completed": 0, "failed": 0}
    assert client.get("/api/queue/stats") == {"overall": zero, "queues": {}}
    queue.enqueue("esi", delay=60)
    queue.enqueue("esi", after=[queue.enqueue("esi")])
    for n in range(2):
        queue.enqueue("killmails", n)
    queue.ack(queue.claim("killmails")[0])
    queue.claim("killmails")
    die(queue, "dead")
    queue.cancel(queue.enqueue("doomed"))
    assert client.get("/api/queue/stats") == {
        "overall": {"pending": 3, "processing": 1, "completed": 1, "failed": 1},
        "queues": {
            "doomed": {"pending": 0, "processing": 0, "completed": 0, "failed": 1},
            "esi": {"pending": 3, "processing": 0, "completed": 0, "failed": 0},
            "killmails": {"pending": 0, "processing": 1, "completed": 1, "failed": 0},
        },
    }


def test_failed_jobs_come_newest_first(client: Client, queue: Queue, clock: ManualClock) -> None:
    assert client.get("/api/queue/failed") == {"jobs": []}
    die(queue, "a", kind="process", payload={"killmailId": 1}, priority=-10, max_attempts=5)
    clock.advance(1.5)
    die(queue, "b")
    queue.enqueue("alive")
    jobs = client.get("/api/queue/failed")["jobs"]
    assert [job["id"] for job in jobs] == ["b", "a"]
    assert jobs[1] == {
        "id": "a",
        "queue": "doomed",
        "type": "process",
        "payload": {"killmailId": 1},
        "status": "failed",
        "availableAt": "2023-11-14T22:13:20.000Z",
        "reservedAt": "2023-11-14T22:13:20.000Z",
        "processedAt": "2023-11-14T22:13:20.000Z",
        "createdAt": "2023-11-14T22:13:20.000Z",
        "attempts": 1,
        "maxAttempts": 5,
        "error": "no a",
        "priority": -10,
    }
    assert jobs[0]["processedAt"] == "2023-11-14T22:13:21.500Z"


def test_failed_jobs_are_limited(client: Client, queue: Queue) -> None:
    for n in range(60):
        die(queue, f"{n:02}")
    assert len(client.get("/api/queue/failed")["jobs"]) == 50
    jobs = client.get("/api/queue/failed?limit=2")["jobs"]
    assert [job["id"] for job in jobs] == ["59", "58"]


def test_a_failed_job_is_retried_from_the_start(client: Client, queue: Queue) -> None:
    die(queue, "a")
    assert client.post("/api/queue/retry", {"jobId": "a"}) == {"status": "retrying"}
    job = queue.get("a")
    assert (job.state, job.attempts) == ("pending", 0)
    assert client.get("/api/queue/failed") == {"jobs": []}
    assert client.get("/api/queue/stats")["overall"]["pending"] == 1


def test_a_retry_of_what_has_not_failed_is_answered_the_same(client: Client, queue: Queue) -> None:
    queue.enqueue("q", id="ready")
    queue.enqueue("q", id="done")
    queue.ack(queue.claim("q")[0])
    queue.enqueue("q", id="leased")
    queue.claim("q")
    before = [queue.get(id) for id in ("ready", "done", "leased")]
    for job in before:
        assert client.post("/api/queue/retry", {"jobId": job.id}) == {"status": "retrying"}
    assert [queue.get(job.id) for job in before] == before
    refused(client, "POST", "/api/queue/retry", {"jobId": "b"}, 404, "there is no job 'b'")


def test_a_retry_of_what_waits_for_its_next_attempt_runs_it_now(
    client: Client, queue: Queue
) -> None:
    queue.enqueue("q", id="a")
    queue.fail(queue.claim("q")[0], "no luck", retry_in=3600)
    assert client.post("/api/queue/retry", {"jobId": "a"}) == {"status": "retrying"}
    assert [job.id for job in queue.claim("q")] == ["a"]


def test_a_number_is_the_id_of_a_job(client: Client, queue: Queue) -> None:
    die(queue, "1234")
    assert client.post("/api/queue/retry", {"jobId": 1234}) == {"status": "retrying"}
    assert queue.get("1234").state == "pending"


def test_a_retry_does_not_break_what_is_unique(client: Client, queue: Queue) -> None:
    die(queue, "a", unique_key="key")
    queue.enqueue("doomed", id="b", unique_key="key")
    refused(client, "POST", "/api/queue/retry", {"jobId": "a"}, 409, "held by job 'b'")
    assert queue.get("a").state == "dead"


@pytest.mark.parametrize(
    "body", [{}, {"jobId": ""}, {"jobId": 5.5}, {"jobId": None}, {"jobId": "\0"}, {"jobId": True}]
)
def test_a_retry_that_cannot_be_is_refused(client: Client, body: Any) -> None:
    refused(client, "POST", "/api/queue/retry", body, 400, "")


def test_a_limit_above_the_largest_is_the_largest(client: Client, queue: Queue) -> None:
    die(queue, "a")
    for limit in (1_001, 10**9, 10**30):
        assert len(client.get(f"/api/queue/failed?limit={limit}")["jobs"]) == 1


@pytest.mark.parametrize("limit", ["0", "-1", "x", ""])
def test_a_limit_that_cannot_be_is_refused(client: Client, limit: str) -> None:
    refused(client, "GET", f"/api/queue/failed?limit={limit}", None, 400, "limit")
