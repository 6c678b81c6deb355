"""Over HTTP: what holds a job back, and which workers are alive."""

from __future__ import annotations

from tenure import Queue
from tenure.server.auth import Scope
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, token


def test_why_says_what_holds_a_job_back(client: Client, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", delay=60)
    queue.pause("q")

    found = client.get("/v1/jobs/j/why")

    assert (found["id"], found["state"], found["claimable"]) == ("j", "pending", False)
    assert found["now"] == clock.now_ms()
    paused, delayed = found["reasons"]
    assert (paused["code"], paused["scope"], paused["fix"]) == (
        "paused",
        "queue",
        "tenure resume q",
    )
    assert (delayed["code"], delayed["due_at"]) == ("delayed", clock.now_ms() + 60_000)
    assert client.ask("GET", "/v1/jobs/nowhere/why").status == 404


def test_why_has_the_last_error_of_a_job(client: Client, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j")
    assert client.get("/v1/jobs/j/why")["last_error"] is None
    queue.fail(queue.claim("q", worker="w1")[0], ValueError("no luck"), retry_in=60)

    found = client.get("/v1/jobs/j/why")["last_error"]

    assert (found["at"], found["attempt"], found["worker"]) == (clock.now_ms(), 1, "w1")
    assert (found["type"], found["message"]) == ("ValueError", "no luck")
    assert found["text"].startswith("Attempt 1 failed at ")
    assert found["text"].endswith(" on w1: ValueError: no luck")
    assert found["fix"] == ""


def test_why_tells_a_bound_token_nothing_of_others(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("a", Scope.READ, tenants=("a",))]).as_("a")
    queue.limits.set("q", concurrency=1)
    queue.enqueue("q", id="theirs", tenant="b")
    queue.claim("q", worker="secret")
    queue.enqueue("q", id="ours", tenant="a")

    found = client.ask("GET", "/v1/jobs/ours/why")

    assert [one["code"] for one in found.json["reasons"]] == ["limit", "in_line"]
    assert b"theirs" not in found.content
    assert b"secret" not in found.content
    assert client.ask("GET", "/v1/jobs/theirs/why").status == 404


def test_a_worker_in_another_language_reports_itself(
    serve: Serve, queue: Queue, clock: ManualClock
) -> None:
    client = serve(tokens=[token("w", Scope.WORK), token("r", Scope.READ)])
    report = {"queues": ["q"], "host": "box", "pid": 7, "running": ["j1"], "ttl": 5}

    assert client.as_("w").put("/v1/workers/ruby-1", report) == {"ok": True}

    (found,) = client.as_("r").get("/v1/workers?queue=q")
    assert (found["name"], found["host"], found["busy"]) == ("ruby-1", "box", 1)
    assert found["seen_at"] == clock.now_ms()
    assert client.as_("r").get("/v1/workers?queue=other") == []
    assert client.as_("r").ask("PUT", "/v1/workers/x", report).status == 403
    assert client.as_("w").ask("PUT", "/v1/workers/x", {"queues": []}).status == 400
    clock.advance(5)
    assert client.as_("r").get("/v1/workers") == []
