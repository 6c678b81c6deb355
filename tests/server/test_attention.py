"""What the overview says needs attention: what is stuck, and why."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import NewJob, Queue
from tenure.features.overview.attention import MOST_ATTENTION, MOST_EXPLAINED, MOST_MISSING
from tenure.model import ops
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, token
from tests.support.sizes import let


def told(client: Client) -> dict[str, str]:
    found: list[dict[str, Any]] = client.get("/v1/overview")["attention"]
    return {one["queue"]: f"{one['level']}: {one['text']}" for one in found}


@pytest.fixture(autouse=True)
def worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live worker, and overviews that are computed for each request."""
    client.put("/v1/workers/w-1", {"queues": ["q"], "ttl": 600})
    let(monkeypatch, seconds_that_an_overview_is_kept=-1)


def test_a_pause_says_who_made_it_and_why(client: Client, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q")
    queue.audited(by="ann", reason="the disk is full").pause("q")
    clock.advance(300)
    assert told(client) == {
        "q": "odd: 1 job ready, the oldest for 5 min. The queue 'q' was paused at "
        "2023-11-14 22:13:20 UTC by ann: the disk is full."
    }


def test_a_tenant_that_has_reached_its_limit_is_named(
    client: Client, queue: Queue, clock: ManualClock
) -> None:
    queue.limits.set("q", tenant="acme", concurrency=1)
    queue.enqueue_many([NewJob(queue="q", tenant="acme") for _ in range(3)])
    queue.claim("q", lease=1000)
    clock.advance(90)
    queue.enqueue("q", tenant="bolt")  # newer, and not held back
    text = "odd: 3 jobs ready, the oldest for 1 min. The tenant 'acme' has reached its limit: "
    assert told(client) == {"q": f"{text}1 of 1 run."}


def test_a_paused_tenant_is_named(client: Client, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", tenant="acme")
    queue.pause("q", tenant="acme")
    clock.advance(90)
    assert "The tenant 'acme' was paused at" in told(client)["q"]


def test_a_rate_that_is_used_up_is_named(client: Client, queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("q", rate=1, per=3600)
    queue.enqueue_many([NewJob(queue="q") for _ in range(2)])
    queue.ack(queue.claim("q")[0])
    clock.advance(90)
    assert "The rate of the queue 'q' is used up; the next job may start at" in told(client)["q"]


def test_the_cause_of_most_deaths_is_named(client: Client, queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", max_attempts=1) for _ in range(3)])
    for n, job in enumerate(queue.claim("q", limit=3)):
        queue.fail(job, ConnectionError("x" * 100) if n else ValueError("rare"))
    (one,) = client.get("/v1/overview")["attention"]
    assert one["text"].startswith("3 jobs dead")
    assert ". Most often ConnectionError: xxx" in one["text"]
    assert one["text"].endswith("x…")
    assert (one["link"], one["count"]) == ("errors", 3)


def test_dead_jobs_whose_errors_are_muted_need_no_attention(client: Client, queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", max_attempts=1) for _ in range(2)])
    for error, job in zip([OSError("a"), ValueError("b")], queue.claim("q", limit=2), strict=True):
        queue.fail(job, error)
    first, second = queue.errors.list().errors
    queue.errors.mute(first.group)
    assert second.type in told(client)["q"]
    queue.errors.mute(second.group)
    assert told(client) == {}


def test_a_task_that_no_worker_has_is_named_until_one_has_it(client: Client, queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", kind="old", id=f"{n}") for n in range(2)])
    for job in queue.claim("q", limit=2):
        store_of(queue).do(
            [ops.Release(job.id, job.token, 60_000, "no such task", ops.UNKNOWN_KIND)]
        )
    (one,) = client.get("/v1/overview")["attention"]
    assert one["text"] == "no worker has the task 'old', which 2 jobs need"
    assert (one["link"], one["kind"], one["level"]) == ("pending", "old", "bad")
    queue.run_now(["0", "1"])
    for job in queue.claim("q", limit=2):
        queue.ack(job)
    assert told(client) == {}


def test_only_some_tasks_that_no_worker_has_are_looked_up(client: Client, queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", kind=f"old {n}") for n in "abcdefghijkl"])
    for job in queue.claim("q", limit=12):
        why = f"no task {job.kind!r}"
        store_of(queue).do([ops.Release(job.id, job.token, 60_000, why, ops.UNKNOWN_KIND)])
    assert len(client.get("/v1/overview")["attention"]) == MOST_MISSING < 12


def test_jobs_that_wait_for_one_that_failed_are_told(client: Client, queue: Queue) -> None:
    queue.enqueue("q", id="extract", max_attempts=1)
    queue.enqueue("other", id="load", after=["extract"])
    queue.enqueue("other", id="publish", after=["load"])
    assert told(client) == {}
    queue.cancel("extract")
    (one,) = client.get("/v1/overview")["attention"]
    assert one["text"] == "2 jobs waiting for others. load never runs: extract is cancelled"
    assert (one["queue"], one["link"], one["level"]) == ("other", "waiting", "bad")


def test_schedules_that_do_not_fire_are_told(
    client: Client, queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("hourly", "0 * * * *", NewJob(queue="q"))
    assert told(client) == {}
    clock.advance(2 * 3600)
    assert told(client)[""].startswith("bad: hourly has been due for 1 h")
    client.post("/v1/schedules/hourly/pause", {})
    assert told(client) == {"": "odd: hourly is paused"}


def test_several_schedules_that_do_not_fire_are_counted(
    client: Client, queue: Queue, clock: ManualClock
) -> None:
    for n in range(2):
        queue.schedules.put(f"hourly-{n}", "0 * * * *", NewJob(queue="q"))
    clock.advance(2 * 3600)
    text = "bad: 2 schedules have been due for 1 h; no scheduler fires them"
    assert told(client) == {"": text}


def test_the_worst_comes_first_and_the_rest_is_counted(
    client: Client, queue: Queue, clock: ManualClock
) -> None:
    for n in range(MOST_ATTENTION + 3):
        queue.enqueue_many([NewJob(queue=f"q{n:02}") for _ in range(n + 1)])
    clock.advance(90)
    found = client.get("/v1/overview")
    assert [one["count"] for one in found["attention"]] == list(range(15, 3, -1))
    assert found["attention_left"] == 3


def test_only_a_few_queues_are_explained(client: Client, queue: Queue) -> None:
    for n in range(MOST_EXPLAINED + 2):
        queue.enqueue(f"q{n}")
        queue.pause(f"q{n}")
    texts = [one["text"] for one in client.get("/v1/overview")["attention"]]
    assert sum("was paused at" in text for text in texts) == MOST_EXPLAINED
    assert sum(text.endswith("; the queue is paused") for text in texts) == 2


def test_a_bound_token_is_told_only_of_its_own(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("a", Scope.READ, tenants=("a",))]).as_("a")
    queue.enqueue("q", tenant="a")
    queue.enqueue("q", tenant="secret")
    queue.audited(by="ann", reason="secret").pause("q")
    queue.schedules.put("secret", "0 * * * *", NewJob(queue="q", tenant="b"))
    found = client.ask("GET", "/v1/overview")
    assert [one["text"] for one in found.json["attention"]] == [
        "1 job ready. The queue 'q' is paused."
    ]
    assert b"secret" not in found.content
