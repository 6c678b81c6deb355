"""Each dialect from start to end, by a small client that goes the way its seed describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tenure
from tenure import Queue
from tenure.testing import ManualClock
from tests.server.conftest import ENGINES, Client, Serve, all_jobs, token
from tests.support import audit_postgres, fdb, postgres

# The flows run on every engine; all the rest of the dialects would take too long.
EVERY = ENGINES | {"postgresql": postgres.url_of, "fdb-sim-faults": fdb.faulty_url}


@pytest.fixture(params=sorted(EVERY))
def queue(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Queue]:
    url = EVERY[request.param](tmp_path)
    with tenure.connect(url, settings=tenure.Settings(), clock=clock) as queue:
        yield queue
    if request.param == "postgresql":
        schema = postgres.schema_of(tmp_path)
        assert audit_postgres.audit(postgres.shared_url(), schema) == []
        postgres.give_back(tmp_path)


class FirecrawlWorker:
    """What fdb-queue-client does: pop, ask whether the crawl has room, release if not."""

    def __init__(self, client: Client, crawl_room: dict[str, int]) -> None:
        self.client = client
        self.crawl_room = crawl_room  # how many jobs of a crawl may be active

    def push(self, team: str, id: str, crawl: str | None = None, **more: Any) -> None:
        job = {"id": id, "data": {"url": id}, "priority": 10, "listenable": False}
        timeout = more.pop("timeout", None)
        body = {"teamId": team, "job": job | more, "timeout": timeout, "crawlId": crawl}
        assert self.client.post("/queue/push", body) == {"success": True}

    def pop(self, team: str) -> Any:
        blocked: list[str] = []
        while True:
            body = {"workerId": "worker", "blockedCrawlIds": blocked}
            popped = self.client.post(f"/queue/pop/{quote(team, safe='')}", body)
            crawl = None if popped is None else popped["job"].get("crawlId")
            if crawl is None or self.has_room(crawl):
                return popped
            assert self.client.post("/queue/release", {"jobId": popped["job"]["id"]})["success"]
            assert crawl not in blocked
            blocked.append(crawl)

    def has_room(self, crawl: str) -> bool:
        active = self.client.get(f"/active/crawl/jobs/{quote(crawl, safe='')}")["jobIds"]
        return len(active) < self.crawl_room.get(crawl, 1_000)

    def start(self, team: str) -> Any:
        """Pop a job, complete it in this queue, and mark it as active."""
        popped = self.pop(team)
        if popped is None:
            return None
        job = popped["job"]
        self.client.post("/active/push", {"teamId": team, "jobId": job["id"], "timeout": 60_000})
        if "crawlId" in job:
            body = {"crawlId": job["crawlId"], "jobId": job["id"], "timeout": 60_000}
            self.client.post("/active/crawl/push", body)
        assert self.client.post("/queue/complete", {"queueKey": popped["queueKey"]})["success"]
        return job

    def end(self, team: str, job: Any) -> None:
        self.client.delete("/active/remove", {"teamId": team, "jobId": job["id"]})
        if "crawlId" in job:
            body = {"crawlId": job["crawlId"], "jobId": job["id"]}
            self.client.delete("/active/crawl/remove", body)

    def janitor(self) -> dict[str, int]:
        """One round: clean, then recount every team and crawl, a few at a time."""
        kinds = ("expired-jobs", "expired-active-jobs", "orphaned-claims", "stale-counters")
        cleaned = {kind: self.client.post(f"/cleanup/{kind}")["cleaned"] for kind in kinds}
        for plural, kind in (("teams", "team"), ("crawls", "crawl")):
            after = ""
            while True:
                path = f"/sample/{plural}?limit=2&after={quote(after, safe='')}"
                ids = self.client.get(path)["ids"]
                for id in ids:
                    for what in ("queue", "active"):
                        path = f"/reconcile/{kind}/{what}/{quote(id, safe='')}"
                        assert self.client.post(path) == {"correction": 0}
                if len(ids) < 2:
                    break
                after = ids[-1]
        return cleaned


def test_firecrawl_from_push_to_janitor(serve: Serve, queue: Queue, clock: ManualClock) -> None:
    client = serve(["firecrawl"])
    worker = FirecrawlWorker(client, {"crawl/1": 2})
    team = "team/1"
    for n in range(5):
        worker.push(team, f"crawled-{n}", crawl="crawl/1", timeout=1_000)
    worker.push(team, "single", priority=20)
    worker.push(team, "hurried", priority=30, timeout=30_000)
    worker.push("team-2", "other", crawl="crawl/2")
    assert client.get("/queue/count/team/team%2F1") == {"count": 7}
    assert client.get("/queue/count/crawl/crawl%2F1") == {"count": 5}

    # Two of the crawl run; then it is full, and what is behind its jobs is reached.
    first, second, third = (worker.start(team) for _ in range(3))
    assert [job["id"] for job in (first, second, third)] == ["crawled-0", "crawled-1", "single"]
    assert client.get("/active/count/team%2F1") == {"count": 3}
    assert client.get("/active/crawl/jobs/crawl%2F1") == {"jobIds": ["crawled-0", "crawled-1"]}
    assert client.get("/queue/jobs/team/team%2F1") == {
        "jobIds": ["crawled-2", "crawled-3", "crawled-4", "hurried"]
    }
    worker.end(team, first)
    assert worker.start(team)["id"] == "crawled-2"

    # A worker dies with a claim and two marks; the hurried job is never come to.
    worker.end(team, second)
    claimed = client.post("/queue/pop/team%2F1", {"workerId": "doomed"})
    assert claimed["job"]["id"] == "crawled-3"
    clock.advance(299)
    assert client.get("/active/count/team%2F1") == {"count": 0}  # the marks are over
    assert worker.janitor() == {
        "expired-jobs": 1,
        "expired-active-jobs": 0,  # the first call of a round looks after all kinds
        "orphaned-claims": 0,
        "stale-counters": 0,
    }
    clock.advance(1)
    assert client.post("/cleanup/orphaned-claims") == {"cleaned": 1}
    assert worker.start(team)["id"] == "crawled-3"
    late = client.post("/queue/complete", {"queueKey": claimed["queueKey"]})
    assert late == {"success": False}
    assert worker.start(team)["id"] == "crawled-4"
    assert worker.start(team) is None
    assert worker.start("team-2")["id"] == "other"
    assert client.get("/queue/count/team/team%2F1") == {"count": 0}
    assert client.get("/queue/count/crawl/crawl%2F1") == {"count": 0}
    assert all_jobs(queue) == []
    assert client.get("/sample/teams") == client.get("/sample/crawls") == {"ids": []}


def test_d1_from_enqueue_to_stats(serve: Serve, clock: ManualClock) -> None:
    client = serve(["d1"], [token("jwt-secret")], d1_max_attempts=3).as_("jwt-secret")
    files = [f"uploads/{n}.pdf" for n in range(4)]
    ids = []
    for file in files[:2]:
        body = {"runId": "run_1", "tenantId": "tenant_001", "r2Key": file}
        ids.append(client.post("/jobs/enqueue", body)["jobId"])
    for file in files[2:]:
        body = {"tenantId": "tenant_001", "r2Key": file}
        ids.append(client.post("/runs/run_1/enqueue", body)["jobId"])

    def agent(max: int = 10) -> list[Any]:
        jobs: list[Any] = client.post("/jobs/pull", {"max": max, "visibilitySeconds": 60})["jobs"]
        return jobs

    def stats() -> Any:
        return client.get("/jobs/stats")["stats"]

    # An agent takes two jobs and crashes.
    assert [job["r2Key"] for job in agent(2)] == files[:2]
    assert stats() == {"pending": 2, "leased": 2, "done": 0, "failed": 0}
    clock.advance(59)
    assert [job["r2Key"] for job in agent()] == files[2:]
    assert agent() == []
    clock.advance(1)
    again = agent()
    assert [(job["id"], job["attempts"]) for job in again] == [(ids[0], 2), (ids[1], 2)]

    # One is done; one fails and is tried again, until no attempt is left.
    assert client.post("/jobs/ack", {"ids": ids[:1], "status": "done"})["results"] == [
        {"id": ids[0], "status": "done"}
    ]
    assert client.post("/jobs/ack", {"ids": [ids[1]], "status": "failed"})["results"] == [
        {"id": ids[1], "status": "pending"}
    ]
    assert [job["attempts"] for job in agent(1)] == [3]
    late = client.post("/jobs/ack", {"ids": [*ids, "unknown"], "status": "failed"})
    assert late["results"] == [
        {"id": ids[0], "status": "not_leased"},
        {"id": ids[1], "status": "failed"},
        {"id": ids[2], "status": "pending"},
        {"id": ids[3], "status": "pending"},
        {"id": "unknown", "status": "not_found"},
    ]
    assert stats() == {"pending": 2, "leased": 0, "done": 1, "failed": 1}
    client.post("/jobs/ack", {"ids": [job["id"] for job in agent()], "status": "done"})
    assert stats() == {"pending": 0, "leased": 0, "done": 3, "failed": 1}


def test_queuey_from_create_to_complete(serve: Serve, clock: ManualClock) -> None:
    client = serve(["queuey"])
    assert client.ask("GET", "/ping").content == b"pong"
    made = client.post("/jobs/create", {"binary_addr": "bin", "input_addr": "in"})
    id, other = made["job_id"], client.post("/jobs/create", {"binary_addr": "bin2"})["job_id"]

    def claim(runner: str) -> Any:
        asked = client.ask("POST", "/jobs/claim", {"runner_id": runner})
        return None if asked.status == 204 else asked.json

    # A runner tickles its job for a while, then is not heard of again.
    assert claim("runner-1")["job_id"] == id
    for _ in range(3):
        clock.advance(200)
        assert client.post(f"/jobs/{id}/tickle") == {}
    clock.advance(300)
    abandoned = client.get(f"/jobs/{id}")
    assert (abandoned["status"], abandoned["runner_id"]) == ("pending", None)

    # The oldest comes first, though the other was never claimed.
    again = claim("runner-2")
    assert (again["job_id"], again["run_attempts"]) == (id, 2)
    assert client.ask("POST", f"/jobs/{id}/complete", {"status": "Done"}).status == 400
    body = {"status": "completed", "output_addr": "out"}
    assert client.post(f"/jobs/{id}/complete", body) == {}
    assert client.ask("POST", f"/jobs/{id}/complete", body).status == 400
    done = client.get(f"/jobs/{id}")
    assert (done["status"], done["output_addr"]) == ("completed", "out")
    assert done["runner_id"] == "runner-2"

    # The other is abandoned by all that take it.
    for runner in ("a", "b", "c"):
        assert claim(runner)["job_id"] == other
        clock.advance(301)
    assert claim("d") is None
    assert client.get(f"/jobs/{other}")["status"] == "failed"


def test_evekill_from_dispatch_to_retry(serve: Serve, queue: Queue, clock: ManualClock) -> None:
    client = serve(["evekill"])
    queue.enqueue("killmails", {"killmailId": 7}, kind="process", id="7")
    queue.enqueue("esi", {"id": 9}, kind="fetch", delay=300)
    for attempt in (1, 2, 3):
        (job,) = queue.claim("killmails", worker="fetcher")
        assert job.attempts == attempt
        queue.fail(job, f"ESI returned {500 + attempt}", retry_in=attempt * attempt)
        clock.advance(attempt * attempt)
    stats = client.get("/api/queue/stats")
    assert stats["overall"] == {"pending": 1, "processing": 0, "completed": 0, "failed": 1}
    assert stats["queues"]["killmails"]["failed"] == 1
    (failed,) = client.get("/api/queue/failed")["jobs"]
    assert (failed["id"], failed["type"], failed["attempts"]) == ("7", "process", 3)
    assert failed["error"] == "ESI returned 503"
    assert client.post("/api/queue/retry", {"jobId": failed["id"]}) == {"status": "retrying"}
    (job,) = queue.claim("killmails")
    assert job.attempts == 1
    queue.ack(job)
    stats = client.get("/api/queue/stats")["queues"]["killmails"]
    assert stats == {"pending": 0, "processing": 0, "completed": 1, "failed": 0}


def test_all_dialects_are_served_side_by_side(client: Client, queue: Queue) -> None:
    """Their paths overlap: /jobs/stats is d1's, /jobs/<id> is queuey's."""
    file = {"runId": "r", "tenantId": "t", "r2Key": "k"}
    d1 = client.post("/jobs/enqueue", file)["jobId"]
    mesh = client.post("/jobs/create", {"binary_addr": "b"})["job_id"]
    job = {"id": "f", "data": 1, "priority": 0, "listenable": False}
    client.post("/queue/push", {"teamId": "t", "job": job})
    assert client.get("/jobs/stats")["stats"]["pending"] == 1
    assert client.get(f"/jobs/{mesh}")["status"] == "pending"
    assert client.ask("GET", f"/jobs/{d1}").status == 404  # not of the mesh
    assert [one["id"] for one in client.post("/jobs/pull")["jobs"]] == [d1]
    assert client.post("/jobs/claim", {"runner_id": "r"})["job_id"] == mesh
    assert client.get("/api/queue/stats")["overall"]["processing"] == 2
    assert sorted(client.get("/v1/queues")["queues"]) == ["d1", "firecrawl", "queuey"]


def test_a_dialect_that_is_off_is_not_there(serve: Serve) -> None:
    client = serve(["evekill"])
    for method, path in (
        ("GET", "/health"),
        ("POST", "/queue/push"),
        ("POST", "/jobs/enqueue"),
        ("GET", "/ping"),
    ):
        assert client.ask(method, path).status == 404
    assert client.get("/api/queue/stats")["queues"] == {}
