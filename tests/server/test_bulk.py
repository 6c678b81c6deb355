"""Actions on all jobs that a filter matches: counted first, then run in the background."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tenure import NewJob, Queue
from tenure.features.bulk import data as bulk
from tenure.server.auth import Scope, Token, hash_of
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, token
from tests.support.sizes import let

PATIENCE = 30.0  # seconds


def kill(queue: Queue, count: int, *, name: str = "mail", **fields: Any) -> list[str]:
    """Dead jobs."""
    ids = queue.enqueue_many([NewJob(queue=name, **fields) for _ in range(count)])
    queue.fail_many(queue.claim(name, limit=count), "boom", fatal=True)
    return ids


def finished(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    """The run once it has ended. Each request lets it go on."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found: dict[str, Any] = client.get(f"/v1/bulk/{run['id']}")
        if found["state"] != "running":
            return found
    raise AssertionError(found)


def test_a_dry_run_counts_and_changes_nothing(client: Client, queue: Queue) -> None:
    kill(queue, 12, kind="k")
    kill(queue, 3, name="web")
    where = {"queue": "mail", "kind": "k"}
    found = client.post("/v1/bulk", {"action": "replay", "filter": where, "dry_run": True})
    assert (found["count"], found["exact"], len(found["sample"])) == (12, True, 10)
    assert "payload" not in found["sample"][0]
    assert queue.stats().dead == 15
    by_counters = client.post(
        "/v1/bulk", {"action": "delete", "filter": {"queue": "web"}, "dry_run": True}
    )
    assert (by_counters["count"], by_counters["exact"]) == (3, True)
    assert client.get("/v1/bulk") == []


def test_all_that_match_are_changed_in_steps(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_bulk_action=4)
    kill(queue, 10)
    kill(queue, 2, name="web")
    body = {"action": "replay", "filter": {"queue": "mail"}, "reason": "fixed"}
    started = client.ask("POST", "/v1/bulk", body)
    assert started.status == 202
    assert started.json["state"] == "running"
    run = finished(client, started.json)
    assert (run["state"], run["looked_at"], run["changed"]) == ("done", 10, 10)
    assert (run["filter"], run["reason"], run["refused_count"]) == ({"queue": "mail"}, "fixed", 0)
    assert run["ended_at"] is not None
    assert (queue.stats("mail").ready, queue.stats("web").dead) == (10, 2)
    assert [one["id"] for one in client.get("/v1/bulk")] == [run["id"]]


def test_what_is_refused_is_listed_with_the_reason(client: Client, queue: Queue) -> None:
    (dead,) = kill(queue, 1, unique_key="k")
    holder = queue.enqueue("mail", unique_key="k").id
    run = finished(
        client, client.post("/v1/bulk", {"action": "replay", "filter": {"queue": "mail"}})
    )
    assert (run["changed"], run["refused_count"]) == (0, 1)
    assert run["refused"] == [{"id": dead, "reason": f"its unique key is held by {holder}"}]


def test_a_run_can_be_stopped(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_bulk_action=1)
    kill(queue, 200)
    started = client.post("/v1/bulk", {"action": "delete", "filter": {"queue": "mail"}})
    client.post(f"/v1/bulk/{started['id']}/stop")
    run = finished(client, started)
    assert run["state"] == "stopped"
    assert 0 < queue.stats().dead < 200
    assert run["changed"] == 200 - queue.stats().dead
    for path in (f"{started['id']}.stop", "unknown"):
        assert client.ask("GET", f"/v1/bulk/{path}").status == 404
    assert client.ask("POST", f"/v1/bulk/{started['id']}.stop/stop").status == 404


def test_a_run_that_was_interrupted_says_so(
    serve: Serve, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_bulk_action=1)
    kill(queue, 200)
    client = serve()
    started = client.post("/v1/bulk", {"action": "delete", "filter": {"queue": "mail"}})
    client.run(close(client))
    after = serve()
    assert after.get(f"/v1/bulk/{started['id']}")["state"] == "running"
    clock.advance(bulk.SILENT_MS / 1000 + 1)
    found = after.get(f"/v1/bulk/{started['id']}")
    assert found["state"] == "failed"
    assert "interrupted" in found["error"]


async def close(client: Client) -> None:
    client.service.close()


@pytest.mark.parametrize(
    "body",
    [
        {"action": "delete", "filter": {}},
        {"action": "delete", "filter": {"state": "done"}},
        {"action": "replay", "filter": {"queue": "mail", "state": "done"}},
        {"action": "run_now", "filter": {"queue": "mail", "state": "leased"}},
        {"action": "eat", "filter": {"queue": "mail"}},
        {"action": "cancel", "filter": {"nobody": "mail"}},
    ],
)
def test_an_action_that_makes_no_sense_is_rejected(client: Client, body: dict[str, Any]) -> None:
    assert client.ask("POST", "/v1/bulk", body).status == 400


def test_a_run_changes_only_what_its_token_may(serve: Serve, queue: Queue) -> None:
    kill(queue, 3, tenant="a")
    kill(queue, 2, tenant="b")
    tokens = [token("boss"), token("of-a", tenants=("a",)), token("of-b", tenants=("b",))]
    service = serve(tokens=tokens)
    mine, other = service.as_("of-a"), service.as_("of-b")
    body = {"action": "replay", "filter": {"queue": "mail"}}
    counted = mine.post("/v1/bulk", body | {"dry_run": True})
    assert counted["count"] == 3
    run = finished(mine, mine.post("/v1/bulk", body))
    assert (run["changed"], run["by"]) == (3, "of-a")
    assert other.get("/v1/bulk") == []
    assert other.ask("GET", f"/v1/bulk/{run['id']}").status == 404
    assert other.ask("POST", f"/v1/bulk/{run['id']}/stop").status == 404
    assert len(service.as_("boss").get("/v1/bulk")) == 1
    assert queue.stats().dead == 2


@pytest.mark.parametrize("left", [None, token("ops", tenants=("b",)), token("ops", Scope.READ)])
def test_a_run_ends_when_its_token_is_revoked_or_may_less(
    serve: Serve, queue: Queue, monkeypatch: pytest.MonkeyPatch, left: Token | None
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_bulk_action=1)
    client = serve(tokens=[token("ops"), token("boss")])
    kill(queue, 200, tenant="a")
    body = {"action": "delete", "filter": {"queue": "mail"}}
    run = client.as_("ops").post("/v1/bulk", body)
    known = client.service.tokens._by_hash
    known.pop(hash_of("ops"))
    if left is not None:
        known[left.hash] = left
    ended = finished(client.as_("boss"), run)
    assert ended["state"] == "failed"
    assert "token" in ended["error"]
    assert queue.stats("mail").dead > 0
    gone = queue.stats("mail").dead
    client.as_("boss").get("/v1/queues")
    assert queue.stats("mail").dead == gone


def test_a_token_runs_only_some_at_once(
    serve: Serve, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_bulk_action=1)
    let(monkeypatch, bulk_actions_at_once=2)
    client = serve(tokens=[token("ops"), token("boss")])
    kill(queue, 100)
    body = {"action": "delete", "filter": {"queue": "mail"}}
    ops = client.as_("ops")
    runs = [ops.post("/v1/bulk", body) for _ in range(2)]
    refused = ops.ask("POST", "/v1/bulk", body)
    assert (refused.status, refused.json["code"]) == (429, "busy")
    assert client.as_("boss").ask("POST", "/v1/bulk", body).status == 202
    for run in runs:
        ops.post(f"/v1/bulk/{run['id']}/stop")
        finished(ops, run)
    assert ops.ask("POST", "/v1/bulk", body).status == 202
