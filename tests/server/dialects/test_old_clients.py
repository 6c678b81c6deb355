"""What the unmodified clients of the originals send, and a strict service would reject.

Firecrawl's client stops calling a service after three errors, so odd requests must not be errors.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tenure import Queue
from tenure.server.auth import Scope
from tenure.testing import ManualClock
from tests.server.conftest import Client, Serve, all_jobs, token
from tests.server.dialects.test_firecrawl import NOW, pop, push

CENTURY = 100 * 366 * 86_400_000  # milliseconds


def complete(client: Client, popped: Any) -> bool:
    done: bool = client.post("/queue/complete", {"queueKey": popped["queueKey"]})["success"]
    return done


# Numbers out of range -----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [1e13, 10**30, 1e300])
def test_a_very_long_timeout_is_shortened_to_a_century(client: Client, timeout: float) -> None:
    assert push(client, timeout=timeout) == {"success": True}
    assert pop(client)["job"]["timesOutAt"] == NOW + CENTURY


@pytest.mark.parametrize("timeout", [1e13, 1e300])
def test_a_very_long_mark_is_shortened_to_a_century(
    client: Client, queue: Queue, timeout: float
) -> None:
    body = {"teamId": "t", "crawlId": "c", "jobId": "j", "timeout": timeout}
    assert client.post("/active/push", body) == {"success": True}
    assert client.post("/active/crawl/push", body) == {"success": True}
    for scope, key in (("team", "t"), ("crawl", "c")):
        (slot,) = queue.slots.list(f"firecrawl/{scope}", key)
        assert slot.expires_at == NOW + CENTURY


@pytest.mark.parametrize("timeout", [0, -1, -1e300, 0.25])
def test_a_mark_of_no_time_ends_at_once(client: Client, clock: ManualClock, timeout: float) -> None:
    body = {"teamId": "t", "crawlId": "c", "jobId": "j", "timeout": timeout}
    assert client.post("/active/push", body) == {"success": True}
    assert client.post("/active/crawl/push", body) == {"success": True}
    clock.advance(0.001)
    assert client.get("/active/count/t") == {"count": 0}
    assert client.get("/active/crawl/jobs/c") == {"jobIds": []}


@pytest.mark.parametrize("limit", [10_001, 100_001, 10**9, 10**30])
def test_a_limit_above_the_largest_is_the_largest(client: Client, limit: int) -> None:
    push(client, crawlId="crawl")
    assert client.get(f"/queue/jobs/team/team?limit={limit}") == {"jobIds": ["job-1"]}
    assert client.get(f"/sample/teams?limit={limit}") == {"ids": ["team"]}
    assert client.get(f"/sample/crawls?limit={limit}") == {"ids": ["crawl"]}


# Keys of other claims -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"1",
        b".1",
        b"1.",
        b"x.job-1",
        b"1.none",
        b"\x01\x00\x00\x00\x04team\x80\x00\x00\x0a",  # as the original packs it
        b"\xff\xfe",
    ],
)
def test_a_key_of_no_claim_completes_nothing(client: Client, key: bytes) -> None:
    push(client)
    pop(client)
    body = {"queueKey": b64encode(key).decode()}
    assert client.post("/queue/complete", body) == {"success": False}
    assert client.get("/queue/count/team/team") == {"count": 1}


# The same id in several teams ---------------------------------------------------------------------


def test_the_same_id_in_two_teams_is_two_jobs(client: Client, queue: Queue) -> None:
    for team in ("one", "two", "three"):
        assert push(client, "same", team, data=team) == {"success": True}
        assert push(client, "same", team, data="again") == {"success": True}
    assert len(all_jobs(queue)) == 3
    for team in ("one", "two", "three"):
        assert client.get(f"/queue/jobs/team/{team}") == {"jobIds": ["same"]}
        assert client.get(f"/queue/count/team/{team}") == {"count": 1}
        popped = pop(client, team)
        assert (popped["job"]["id"], popped["job"]["data"]) == ("same", team)
        assert pop(client, team) is None
        assert complete(client, popped)
        assert not complete(client, popped)
    assert all_jobs(queue) == []


def test_a_push_is_not_doubled_when_the_other_team_is_done(client: Client, queue: Queue) -> None:
    push(client, "same", "one")
    push(client, "same", "two")
    assert complete(client, pop(client, "one"))
    assert push(client, "same", "two") == {"success": True}
    assert len(all_jobs(queue)) == 1
    assert complete(client, pop(client, "two"))
    assert pop(client, "two") is None


def test_an_id_of_another_queue_is_free_for_a_push(client: Client, queue: Queue) -> None:
    queue.enqueue("other", id="taken")
    assert push(client, "taken") == {"success": True}
    assert pop(client)["job"]["id"] == "taken"
    assert queue.get("taken").queue == "other"


@pytest.mark.parametrize("ended", ["timed out", "cancelled"])
def test_an_id_of_two_teams_is_free_again_when_its_job_ended(
    client: Client, queue: Queue, clock: ManualClock, ended: str
) -> None:
    push(client, "same", "one")
    push(client, "same", "two", timeout=1000)
    if ended == "timed out":
        clock.advance(1)
    else:
        queue.cancel(tenant="two")
    assert push(client, "same", "two", data="again") == {"success": True}
    assert pop(client, "two")["job"]["data"] == "again"


def test_a_job_of_two_teams_is_released_by_the_id_that_the_client_knows(client: Client) -> None:
    for team in ("one", "two"):
        push(client, "same", team)
    old = pop(client, "two")
    assert pop(client, "two") is None
    assert client.post("/queue/release", {"jobId": "same"}) == {"success": True}
    assert not complete(client, old)
    assert complete(client, pop(client, "two"))
    assert complete(client, pop(client, "one"))


def test_the_stored_id_is_no_name_for_a_release(client: Client, queue: Queue) -> None:
    for team in ("one", "two"):
        push(client, "same", team)
    popped = pop(client, "two")
    (stored,) = [job.id for job in all_jobs(queue) if job.tenant == "two"]
    assert stored != "same"
    assert client.post("/queue/release", {"jobId": stored}) == {"success": True}
    assert complete(client, popped)


def test_a_job_that_was_pushed_before_ids_were_per_team_keeps_its_team(
    client: Client, queue: Queue
) -> None:
    queue.enqueue("firecrawl", {"data": 1, "listenable": True}, id="same", tenant="one")
    for team in ("one", "two"):
        assert push(client, "same", team) == {"success": True}
    assert len(all_jobs(queue)) == 2
    assert complete(client, pop(client, "one"))
    assert complete(client, pop(client, "two"))


def test_a_key_of_the_native_api_is_not_taken_for_an_id(client: Client, queue: Queue) -> None:
    queue.enqueue("firecrawl", 1, id="native", unique_key="key", tenant="team")
    assert pop(client)["job"]["id"] == "native"
    assert client.get("/queue/jobs/team/team") == {"jobIds": ["native"]}


def test_tokens_of_two_teams_do_not_see_each_others_ids(serve: Serve) -> None:
    scopes = (Scope.PRODUCE, Scope.WORK, Scope.READ)
    tokens = [token(team, *scopes, tenants=(team,)) for team in ("one", "two")]
    client = serve(["firecrawl"], tokens)
    one, two = client.as_("one"), client.as_("two")
    assert push(one, "same", "one") == {"success": True}
    assert push(two, "same", "two") == {"success": True}
    claimed, other = pop(one, "one"), pop(two, "two")
    assert one.post("/queue/release", {"jobId": "same"}) == {"success": True}
    assert not complete(one, claimed)
    assert complete(two, other)  # the release of another team does not reach it


# The other dialects -------------------------------------------------------------------------------


def test_a_job_of_the_mesh_has_its_id_under_both_names(client: Client) -> None:
    made = client.post("/jobs/create", {"binary_addr": "b"})
    assert made["id"] == made["job_id"]
    assert client.get(f"/jobs/{made['id']}")["id"] == made["id"]
