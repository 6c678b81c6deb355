"""A service whose store is several shards: tenants on different ones, and tokens that are bound to
one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Queue, Settings
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.server.routes import make_app
from tenure.testing import ManualClock
from tests.engines.sharded.test_away import away
from tests.engines.sharded.test_reshard import reshard
from tests.server.conftest import Client, Serve, token
from tests.server.test_bulk import finished
from tests.server.test_events import Reader
from tests.support.sizes import let

HERE, THERE = "c", "a"  # on shard 0, and on shard 1


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs-{{0..1}}.db"


@pytest.fixture
def queue(url: str, clock: ManualClock) -> Iterator[Queue]:
    with tenure.connect(url, settings=Settings(), clock=clock) as queue:
        assert [store_of(queue).engine.placing.of_tenant(one) for one in (HERE, THERE)] == [0, 1]  # type: ignore
        yield queue


def add(client: Client, tenant: str, **fields: Any) -> str:
    job: dict[str, str] = client.post("/v1/jobs", {"queue": "mail", "tenant": tenant, **fields})
    return job["id"]


def test_jobs_of_all_shards_are_added_claimed_finished_and_listed(client: Client) -> None:
    ids = {add(client, tenant, payload=n) for n in range(3) for tenant in (HERE, THERE)}
    assert {job["id"] for job in client.get("/v1/jobs?queue=mail")["jobs"]} == ids
    claimed = client.post("/v1/claim", {"queues": ["mail"], "worker": "w", "limit": 10})["jobs"]
    assert {job["id"] for job in claimed} == ids
    leases = [{"id": job["id"], "token": job["token"]} for job in claimed]
    done = client.post("/v1/ack", {"jobs": leases})
    assert len(done["results"]) == 6
    stats = client.get("/v1/queues")
    assert (stats["done"], stats["ready"]) == (6, 0)
    tenants = client.get("/v1/queues/mail/tenants")
    assert [one["tenant"] for one in tenants] == [THERE, HERE]
    page = client.get("/v1/jobs?limit=4")
    rest = client.get(f"/v1/jobs?limit=4&cursor={page['cursor']}")
    assert {job["id"] for job in (*page["jobs"], *rest["jobs"])} == ids


def test_a_queue_that_only_another_shard_has_is_empty_and_not_unknown(client: Client) -> None:
    add(client, HERE)
    assert client.get(f"/v1/jobs?queue=mail&tenant={THERE}")["jobs"] == []
    assert client.get(f"/v1/queues/mail/tenants/{THERE}/groups") == []
    assert client.ask("GET", f"/v1/jobs?queue=nothing&tenant={THERE}").status == 404


def test_an_action_on_all_that_match_reaches_all_shards(client: Client, queue: Queue) -> None:
    for tenant in (HERE, THERE):
        for _ in range(4):
            add(client, tenant, max_attempts=1)
    queue.fail_many(queue.claim("mail", limit=8), "boom", fatal=True)
    body = {"action": "replay", "filter": {"queue": "mail"}}
    assert client.post("/v1/bulk", body | {"dry_run": True})["count"] == 8
    run = finished(client, client.post("/v1/bulk", body))
    assert (run["state"], run["changed"]) == ("done", 8)
    assert queue.stats().ready == 8


def test_events_of_all_shards_are_told(client: Client) -> None:
    async def follow() -> set[str]:
        async with Reader(client.service, "queue=mail") as reader:
            for tenant in (HERE, THERE):
                await client._ask("POST", "/v1/jobs", {"queue": "mail", "tenant": tenant}, None, {})
            return {(await reader.next()).data["tenant"] for _ in range(2)}

    assert client.run(asyncio.wait_for(follow(), 10)) == {HERE, THERE}


def test_a_bound_token_neither_sees_nor_changes_what_is_on_another_shard(
    serve: Serve, queue: Queue
) -> None:
    theirs = queue.enqueue("mail", tenant=THERE, id="a/1", unique_key="k")
    queue.schedules.put("theirs", "0 3 * * *", tenure.NewJob(queue="mail", tenant=THERE))
    (leased,) = queue.claim("mail", tenant=THERE)
    before = queue.get(theirs.id)
    mine = serve(tokens=[token("mine", tenants=(HERE,))]).as_("mine")
    add(mine, HERE)
    lease = {"id": theirs.id, "token": leased.token}
    for path in ("", "/why", "/related", "/wait?timeout=0"):
        assert mine.ask("GET", f"/v1/jobs/a%2F1{path}").status == 404
    for path in ("cancel", "replay", "run-now"):
        assert mine.ask("POST", f"/v1/jobs/a%2F1/{path}").status == 404
    then = {"then": [{"queue": "mail", "tenant": HERE}]}
    requests = [("ack", {}), ("ack", then), ("fail", {}), ("extend", {}), ("release", {})]
    for path, more in requests:  # the answer is that for a job which does not exist
        answer = mine.ask("POST", f"/v1/{path}", {"jobs": [lease | more]})
        missing = mine.ask("POST", f"/v1/{path}", {"jobs": [lease | more | {"id": "a/2"}]})
        assert (answer.status, missing.status) == (200, 200)
        assert b"job_not_found" in missing.content
        assert answer.content.replace(b"a/1", b"a/2") == missing.content
    assert {job["tenant"] for job in mine.get("/v1/jobs")["jobs"]} == {HERE}
    assert mine.get("/v1/queues")["leased"] == 0
    assert mine.get("/v1/schedules") == []
    assert mine.ask("DELETE", "/v1/schedules/theirs").status in (403, 404)
    claimed = mine.post("/v1/claim", {"queues": ["mail"], "worker": "w", "limit": 10})["jobs"]
    assert {job["tenant"] for job in claimed} == {HERE}
    assert queue.get(theirs.id) == before
    assert [one.name for one in queue.schedules.list()] == ["theirs"]


def test_a_service_goes_on_while_tenants_move_to_more_shards(
    url: str, clock: ManualClock, serve: Serve, queue: Queue
) -> None:
    queue.close()
    more = url.replace("..1", "..3")
    with tenure.connect(more, settings=Settings()) as wide, asyncio.Runner() as runner:
        service = make_app(wide)
        client = Client(service, runner)
        ids = [add(client, f"t{n}") for n in range(20)]
        assert reshard(url, more).tenants > 5
        for n, job_id in enumerate(ids):
            assert client.get(f"/v1/jobs/{job_id}")["tenant"] == f"t{n}"
            assert len(client.get(f"/v1/jobs?tenant=t{n}")["jobs"]) == 1
            add(client, f"t{n}")
        assert client.get("/v1/queues")["ready"] == 40
        service.close()


def test_the_overview_shows_the_other_shards_while_one_is_away(
    client: Client, serve: Serve, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)
    for tenant in (HERE, THERE):
        add(client, tenant)
    queue.schedules.put("nightly", "0 3 * * *", tenure.NewJob(queue="mail", tenant=HERE))
    with away(queue):
        client.get("/v1/queues")  # finds out
        assert client.get("/v1/queues")["away"] == ["1"]
        found = client.get("/v1/overview")
        bound = serve(tokens=[token("b", Scope.READ, queues=("mail",))]).as_("b")
        assert bound.get("/v1/queues")["away"] == []
    assert [(one["queue"], one["ready"]) for one in found["queues"]] == [("mail", 1)]
    assert found["attention"][0]["text"].startswith("shard '1' is away: its jobs")
