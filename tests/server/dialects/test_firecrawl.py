"""The wire of Firecrawl, call by call."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tenure import NewJob, Queue, Settings, StoreError
from tenure.queue import store_of
from tenure.server.dialects.firecrawl import just_before
from tenure.testing import ManualClock
from tests.server.conftest import Client, all_jobs
from tests.support.sizes import let

NOW = 1_700_000_000_000  # where the clock starts
STRANGE = ["a/b", "ä ö?&=#%", "..", "%2F", "名前", "a\nb", "+", "x" * 512, "\U0001f600", "'; --"]


def push(client: Client, id: str = "job-1", team: str = "team", **more: Any) -> Any:
    job = {"id": id, "data": {"url": "https://x.example"}, "priority": 10, "listenable": True}
    job |= {
        name: more.pop(name) for name in ("data", "priority", "listenChannelId") if name in more
    }
    return client.post("/queue/push", {"teamId": team, "job": job, "timeout": None} | more)


def pop(client: Client, team: str = "team", blocked: list[str] | None = None) -> Any:
    body: dict[str, Any] = {"workerId": "worker-1"}
    if blocked is not None:
        body["blockedCrawlIds"] = blocked
    return client.post(f"/queue/pop/{encoded(team)}", body)


def encoded(name: str) -> str:
    """A name in a path; dots too, as clients make `..` a path of its own."""
    return quote(name, safe="").replace(".", "%2E")


def refused(client: Client, method: str, path: str, body: Any, status: int, text: str) -> None:
    asked = client.ask(method, path, body)
    assert asked.status == status, asked
    assert asked.kind == "application/json"
    assert list(asked.json) == ["error"]
    assert text in asked.json["error"], asked


# Health -------------------------------------------------------------------------------------------


def test_health_says_that_the_store_answers(client: Client) -> None:
    assert client.get("/health") == {"status": "ok", "fdbConnected": True}


def test_health_is_degraded_when_the_store_is_away(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(store_of(queue), "do", away)
    assert client.get("/health") == {"status": "degraded", "fdbConnected": False}
    refused(client, "GET", "/queue/count/team/t", None, 503, "the disk is gone")


# Push and pop -------------------------------------------------------------------------------------


def test_a_job_is_popped_as_it_was_pushed(client: Client) -> None:
    body = {
        "teamId": "team",
        "job": {
            "id": "job-1",
            "data": {"deep": [1, 2.5, None, "ä", {"x": True}]},
            "priority": 10,
            "listenable": True,
            "listenChannelId": "channel-1",
        },
        "timeout": 3_600_000,
    }
    assert client.post("/queue/push", body) == {"success": True}
    popped = pop(client)
    assert popped == {
        "job": {
            "id": "job-1",
            "data": {"deep": [1, 2.5, None, "ä", {"x": True}]},
            "priority": 10,
            "listenable": True,
            "createdAt": NOW,
            "timesOutAt": NOW + 3_600_000,
            "listenChannelId": "channel-1",
            "teamId": "team",
        },
        "queueKey": popped["queueKey"],
    }
    assert isinstance(popped["queueKey"], str)


def test_what_has_no_value_is_left_out(client: Client) -> None:
    push(client, data=None, crawlId=None, listenChannelId=None)
    assert pop(client)["job"] == {
        "id": "job-1",
        "data": None,
        "priority": 10,
        "listenable": True,
        "createdAt": NOW,
        "teamId": "team",
    }


@pytest.mark.parametrize("timeout", [None, 0, -1, -0.5])
def test_a_timeout_that_is_none_or_not_above_zero_is_none(client: Client, timeout: Any) -> None:
    push(client, timeout=timeout)
    assert "timesOutAt" not in pop(client)["job"]


def test_a_push_may_leave_the_timeout_out(client: Client) -> None:
    job = {"id": "a", "data": 1, "priority": 0, "listenable": False}
    assert client.post("/queue/push", {"teamId": "team", "job": job}) == {"success": True}
    assert pop(client)["job"]["listenable"] is False


def test_a_fraction_of_a_millisecond_is_a_timeout_too(client: Client, clock: ManualClock) -> None:
    push(client, timeout=0.25)
    assert pop(client)["job"]["timesOutAt"] == NOW + 1


def test_a_job_of_a_crawl_never_times_out(client: Client, clock: ManualClock) -> None:
    push(client, crawlId="crawl", timeout=1000)
    clock.advance(3600)
    assert client.post("/cleanup/expired-jobs") == {"cleaned": 0}
    job = pop(client)["job"]
    assert job["crawlId"] == "crawl"
    assert "timesOutAt" not in job


def test_unknown_fields_are_ignored(client: Client) -> None:
    job = {"id": "a", "data": 1, "priority": 0, "listenable": False, "new": 1}
    body = {"teamId": "team", "job": job, "timeout": None, "newer": {}}
    assert client.post("/queue/push", body) == {"success": True}
    assert client.post("/queue/pop/team?x=1", {"workerId": "w", "more": 1})["job"]["id"] == "a"


def test_no_job_is_null_with_200(client: Client) -> None:
    asked = client.ask("POST", "/queue/pop/team", {"workerId": "w"})
    assert (asked.status, asked.content, asked.kind) == (200, b"null", "application/json")


def test_jobs_are_popped_by_priority_then_by_age(client: Client, clock: ManualClock) -> None:
    for id, priority in (("c", 5), ("a", -1), ("d", 5), ("b", 0)):
        push(client, id, priority=priority)
        clock.advance(0.001)
    assert [pop(client)["job"]["id"] for _ in range(4)] == ["a", "b", "c", "d"]


def test_a_team_gets_only_its_own_jobs(client: Client) -> None:
    push(client, "a", team="one")
    assert pop(client, "two") is None
    assert pop(client, "one")["job"]["id"] == "a"


def test_jobs_of_blocked_crawls_are_passed_over_however_many(client: Client) -> None:
    for n in range(150):
        push(client, f"blocked-{n}", priority=0, crawlId="full")
    push(client, "other", priority=5, crawlId="other")
    push(client, "none", priority=6)
    blocked = ["full", "never seen"]
    assert pop(client, blocked=blocked)["job"]["id"] == "other"
    assert pop(client, blocked=[*blocked, "other"])["job"]["id"] == "none"
    assert pop(client, blocked=blocked) is None
    assert pop(client, blocked=[])["job"]["id"] == "blocked-0"


def test_more_crawls_may_be_blocked_than_a_claim_can_skip(client: Client) -> None:
    push(client, "first", priority=0, crawlId="blocked-2999")
    push(client, "second", priority=1, crawlId="open")
    many = [f"blocked-{n}" for n in range(3_000)]
    assert pop(client, blocked=many)["job"]["id"] == "second"
    assert pop(client, blocked=many) is None
    assert pop(client)["job"]["id"] == "first"


def test_a_blocked_crawl_is_never_popped(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If more blocked crawls have jobs than a claim can skip, a pop finds nothing, as there."""
    let(monkeypatch, groups_of_a_call_of_firecrawl=2)
    for n in range(3):
        push(client, f"j{n}", priority=n, crawlId=f"c{n}")
    push(client, "open", priority=9, crawlId="open")
    assert pop(client, blocked=["c0", "c1", "c2"]) is None
    assert client.get("/queue/count/team/team") == {"count": 4}
    assert pop(client, blocked=["c0", "c1"])["job"]["id"] == "j2"


def test_an_empty_name_among_the_blocked_crawls_blocks_nothing(client: Client) -> None:
    push(client)
    assert pop(client, blocked=["", "x"])["job"]["id"] == "job-1"


def test_blocked_crawls_may_be_null(client: Client) -> None:
    push(client)
    body = {"workerId": "w", "blockedCrawlIds": None}
    assert client.post("/queue/pop/team", body)["job"]["id"] == "job-1"


def test_a_push_that_is_sent_again_makes_no_second_job(client: Client, queue: Queue) -> None:
    for _ in range(3):
        assert push(client) == {"success": True}
    assert len(all_jobs(queue)) == 1
    popped = pop(client)
    assert push(client) == {"success": True}  # it is claimed, not gone
    assert pop(client) is None
    assert client.post("/queue/complete", {"queueKey": popped["queueKey"]}) == {"success": True}
    assert pop(client) is None


def test_a_second_push_changes_nothing(client: Client) -> None:
    push(client, data="first", priority=1)
    push(client, data="second", priority=2, crawlId="c", timeout=1000)
    job = pop(client)["job"]
    assert (job["data"], job["priority"]) == ("first", 1)
    assert "crawlId" not in job


def test_an_id_is_free_again_when_its_job_was_completed(client: Client) -> None:
    push(client)
    client.post("/queue/complete", {"queueKey": pop(client)["queueKey"]})
    push(client, data="again")
    assert pop(client)["job"]["data"] == "again"


@pytest.mark.parametrize("cleaned", [False, True])
def test_an_id_is_free_again_when_its_job_timed_out(
    client: Client, queue: Queue, clock: ManualClock, cleaned: bool
) -> None:
    push(client, timeout=1000)
    clock.advance(1)
    if cleaned:
        queue.maintain()
    push(client, data="again")
    assert pop(client)["job"]["data"] == "again"


def test_an_id_is_free_again_when_its_job_was_cancelled(client: Client, queue: Queue) -> None:
    push(client)
    queue.cancel("job-1")
    push(client, data="again")
    assert pop(client)["job"]["data"] == "again"


@pytest.mark.parametrize("name", STRANGE)
def test_names_may_hold_any_character(client: Client, name: str) -> None:
    push(client, id=name, team=name, crawlId=name)
    part = encoded(name)
    assert client.get(f"/queue/count/team/{part}") == {"count": 1}
    assert client.get(f"/queue/count/crawl/{part}") == {"count": 1}
    assert client.get(f"/queue/jobs/team/{part}") == {"jobIds": [name]}
    assert client.get("/sample/teams") == {"ids": [name]}
    assert client.get("/sample/crawls") == {"ids": [name]}
    assert client.post(f"/reconcile/team/queue/{part}") == {"correction": 0}
    assert client.post(f"/reconcile/crawl/queue/{part}") == {"correction": 0}
    assert pop(client, name, blocked=[name]) is None
    popped = pop(client, name)
    assert [popped["job"][field] for field in ("id", "teamId", "crawlId")] == [name] * 3
    client.post("/active/push", {"teamId": name, "jobId": name, "timeout": 1000})
    assert client.get(f"/active/jobs/{part}") == {"jobIds": [name]}
    assert client.post("/queue/complete", {"queueKey": popped["queueKey"]}) == {"success": True}


# Complete and release -----------------------------------------------------------------------------


def test_a_completed_job_is_gone(client: Client, queue: Queue) -> None:
    push(client)
    key = pop(client)["queueKey"]
    assert client.post("/queue/complete", {"queueKey": key}) == {"success": True}
    assert all_jobs(queue) == []
    assert client.post("/queue/complete", {"queueKey": key}) == {"success": False}


def test_a_claim_that_ended_completes_nothing(client: Client, clock: ManualClock) -> None:
    push(client)
    old = pop(client)["queueKey"]
    clock.advance(300)
    new = pop(client)["queueKey"]
    assert client.post("/queue/complete", {"queueKey": old}) == {"success": False}
    assert client.get("/queue/count/team/team") == {"count": 1}
    assert client.post("/queue/complete", {"queueKey": new}) == {"success": True}


def test_a_claim_lasts_for_five_minutes(client: Client, clock: ManualClock) -> None:
    push(client)
    pop(client)
    clock.advance(299.999)
    assert pop(client) is None
    clock.advance(0.001)
    assert pop(client)["job"]["id"] == "job-1"


def test_how_long_a_claim_lasts_can_be_set(
    client: Client, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of(queue), "settings", Settings(pop_lease=10))
    push(client)
    pop(client)
    clock.advance(9.999)
    assert pop(client) is None
    clock.advance(0.001)
    assert pop(client)["job"]["id"] == "job-1"


def test_a_job_outlives_any_number_of_workers(client: Client, clock: ManualClock) -> None:
    push(client)
    for _ in range(20):
        assert pop(client)["job"]["id"] == "job-1"
        clock.advance(300)
    assert client.get("/queue/count/team/team") == {"count": 1}


@pytest.mark.parametrize("key", ["x", "!!!!", "ä", "MS5qMQ", "MS5q MQ=="])
def test_a_key_that_is_not_base64_is_refused(client: Client, key: str) -> None:
    push(client, "j1")
    pop(client)
    refused(client, "POST", "/queue/complete", {"queueKey": key}, 400, "queueKey: is not one")
    assert client.get("/queue/count/team/team") == {"count": 1}


def test_a_released_job_is_the_next_again(client: Client, queue: Queue) -> None:
    push(client, "a")
    push(client, "b")
    key = pop(client)["queueKey"]
    assert client.post("/queue/release", {"jobId": "a"}) == {"success": True}
    assert queue.get("a").attempts == 0
    assert client.post("/queue/complete", {"queueKey": key}) == {"success": False}
    assert pop(client)["job"]["id"] == "a"


def test_release_is_a_success_when_nothing_was_claimed(client: Client, queue: Queue) -> None:
    push(client, "a")
    queue.enqueue("other", id="foreign")
    queue.claim("other")
    for id in ("a", "never", "foreign"):
        assert client.post("/queue/release", {"jobId": id}) == {"success": True}
    assert queue.get("foreign").state == "leased"  # it is not Firecrawl's


# Counts and lists ---------------------------------------------------------------------------------


def test_counts_include_claimed_jobs(client: Client) -> None:
    for n in range(3):
        push(client, f"a{n}", crawlId="crawl")
    push(client, "b")
    push(client, "c", team="two", crawlId="crawl")
    key = pop(client)["queueKey"]
    assert client.get("/queue/count/team/team") == {"count": 4}
    assert client.get("/queue/count/team/two") == {"count": 1}
    assert client.get("/queue/count/crawl/crawl") == {"count": 4}
    client.post("/queue/complete", {"queueKey": key})
    assert client.get("/queue/count/team/team") == {"count": 3}
    assert client.get("/queue/count/crawl/crawl") == {"count": 3}


def test_counts_of_what_is_not_there_are_zero(client: Client) -> None:
    for path in ("/queue/count/team/x", "/queue/count/crawl/x", "/active/count/x"):
        assert client.get(path) == {"count": 0}
    for path in ("/queue/jobs/team/x", "/active/jobs/x", "/active/crawl/jobs/x"):
        assert client.get(path) == {"jobIds": []}
    assert client.get("/sample/teams") == client.get("/sample/crawls") == {"ids": []}
    push(client)
    for path in ("/queue/count/team/x", "/queue/count/crawl/x"):
        assert client.get(path) == {"count": 0}


@pytest.mark.parametrize(
    "other", ["crawk", "crawl\x01", "crawla", "crawm", "craw", "crawk\U0010ffff"]
)
def test_a_crawl_is_counted_among_names_like_its_own(client: Client, other: str) -> None:
    push(client, "a", crawlId=other)
    assert client.get("/queue/count/crawl/crawl") == {"count": 0}
    push(client, "b", crawlId="crawl")
    assert client.get("/queue/count/crawl/crawl") == {"count": 1}


@pytest.mark.parametrize(
    ("name", "before"),
    [("b", "a" + "\U0010ffff" * 511), ("a\x01", "a"), ("\x01", ""), ("x" * 512, "x" * 511 + "w")],
)
def test_the_name_just_before_another(name: str, before: str) -> None:
    assert just_before(name) == before
    assert just_before("\ue000")[0] == "\ud7ff"


def test_a_teams_jobs_are_listed_in_the_order_of_the_queue(client: Client) -> None:
    for id, priority in (("c", 5), ("a", -1), ("d", 5), ("b", 0)):
        push(client, id, priority=priority)
    push(client, "x", team="two", priority=-5)
    pop(client)
    assert client.get("/queue/jobs/team/team") == {"jobIds": ["a", "b", "c", "d"]}
    assert client.get("/queue/jobs/team/team?limit=2") == {"jobIds": ["a", "b"]}


def test_a_list_of_many_jobs_is_in_order_too(client: Client, queue: Queue) -> None:
    queue.enqueue_many(
        NewJob(queue="firecrawl", id=f"{n:04}", priority=(n * 7) % 5, tenant="team")
        for n in range(2_500)
    )
    first = [f"{n:04}" for n in range(2_500) if (n * 7) % 5 == 0][:30]
    assert client.get("/queue/jobs/team/team?limit=30") == {"jobIds": first}
    assert len(client.get("/queue/jobs/team/team")["jobIds"]) == 2_500


def test_a_job_that_came_by_other_means_is_popped_too(client: Client, queue: Queue) -> None:
    queue.enqueue("firecrawl", {"any": "thing"}, id="n", tenant="team")
    popped = pop(client)["job"]
    assert (popped["data"], popped["listenable"]) == ({"any": "thing"}, False)


# Active jobs --------------------------------------------------------------------------------------


def test_a_teams_active_jobs_are_counted_until_they_expire(
    client: Client, clock: ManualClock
) -> None:
    for id, timeout in (("b", 2000), ("a", 1000)):
        body = {"teamId": "team", "jobId": id, "timeout": timeout}
        assert client.post("/active/push", body) == {"success": True}
    assert client.get("/active/count/team") == {"count": 2}
    assert client.get("/active/jobs/team") == {"jobIds": ["a", "b"]}
    assert client.get("/active/count/other") == {"count": 0}
    clock.advance(1)
    assert client.get("/active/count/team") == {"count": 1}
    assert client.get("/active/jobs/team") == {"jobIds": ["b"]}


def test_a_second_mark_renews_and_counts_once(client: Client, clock: ManualClock) -> None:
    body = {"teamId": "team", "jobId": "a", "timeout": 1000}
    client.post("/active/push", body)
    clock.advance(0.9)
    client.post("/active/push", body)
    clock.advance(0.9)
    assert client.get("/active/count/team") == {"count": 1}


def test_a_mark_is_removed(client: Client) -> None:
    client.post("/active/push", {"teamId": "team", "jobId": "a", "timeout": 1000})
    for _ in range(2):
        body = {"teamId": "team", "jobId": "a"}
        assert client.delete("/active/remove", body) == {"success": True}
    assert client.get("/active/count/team") == {"count": 0}


def test_a_crawls_active_jobs_are_its_own(client: Client, clock: ManualClock) -> None:
    body = {"crawlId": "same", "jobId": "a", "timeout": 1000}
    assert client.post("/active/crawl/push", body) == {"success": True}
    client.post("/active/push", {"teamId": "same", "jobId": "b", "timeout": 1000})
    assert client.get("/active/crawl/jobs/same") == {"jobIds": ["a"]}
    assert client.get("/active/jobs/same") == {"jobIds": ["b"]}
    body = {"crawlId": "same", "jobId": "a"}
    assert client.delete("/active/crawl/remove", body) == {"success": True}
    assert client.get("/active/crawl/jobs/same") == {"jobIds": []}


# Upkeep -------------------------------------------------------------------------------------------


def test_jobs_that_timed_out_are_cleaned(client: Client, queue: Queue, clock: ManualClock) -> None:
    push(client, "a", timeout=1000)
    push(client, "b", timeout=9000)
    push(client, "c")
    queue.enqueue("firecrawl", id="failed", tenant="other")
    (failed,) = queue.claim("firecrawl", tenant="other")
    queue.fail(failed, fatal=True)
    clock.advance(1)
    assert client.post("/cleanup/expired-jobs") == {"cleaned": 1}
    assert client.post("/cleanup/expired-jobs") == {"cleaned": 0}
    assert [job.id for job in all_jobs(queue)] == ["b", "c", "failed"]
    assert client.get("/queue/count/team/team") == {"count": 2}


def test_what_a_pop_found_timed_out_is_cleaned_too(client: Client, clock: ManualClock) -> None:
    push(client, timeout=1000)
    clock.advance(1)
    assert pop(client) is None
    assert client.post("/cleanup/expired-jobs") == {"cleaned": 1}


def test_marks_whose_time_is_over_are_cleaned(client: Client, clock: ManualClock) -> None:
    client.post("/active/push", {"teamId": "t", "jobId": "a", "timeout": 1000})
    client.post("/active/crawl/push", {"crawlId": "c", "jobId": "a", "timeout": 1000})
    client.post("/active/push", {"teamId": "t", "jobId": "b", "timeout": 2000})
    clock.advance(1)
    assert client.post("/cleanup/expired-active-jobs") == {"cleaned": 2}
    assert client.post("/cleanup/expired-active-jobs") == {"cleaned": 0}


def test_claims_that_were_given_up_are_cleaned(client: Client, clock: ManualClock) -> None:
    push(client)
    pop(client)
    assert client.post("/cleanup/orphaned-claims") == {"cleaned": 0}
    clock.advance(300)
    assert client.post("/cleanup/orphaned-claims") == {"cleaned": 1}
    assert pop(client)["job"]["id"] == "job-1"


def test_counters_that_are_right_need_no_correction(client: Client) -> None:
    assert client.post("/cleanup/stale-counters") == {"cleaned": 0}
    push(client, crawlId="crawl")
    client.post("/active/push", {"teamId": "team", "jobId": "job-1", "timeout": 1000})
    client.post("/active/crawl/push", {"crawlId": "crawl", "jobId": "job-1", "timeout": 1000})
    assert client.post("/cleanup/stale-counters") == {"cleaned": 0}
    for path in ("team/queue/team", "team/active/team", "crawl/queue/crawl", "crawl/active/crawl"):
        assert client.post(f"/reconcile/{path}") == {"correction": 0}
        kind = path.rpartition("/")[0]
        assert client.post(f"/reconcile/{kind}/never-seen") == {"correction": 0}


def test_a_correction_is_what_is_there_less_what_was_counted(
    client: Client, queue: Queue, tmp_path: Path
) -> None:
    if not queue.settings.url.startswith("sqlite"):
        pytest.skip("this store counts by counting")
    for n in range(3):
        push(client, f"job-{n}", crawlId="crawl")
    client.post("/active/push", {"teamId": "team", "jobId": "a", "timeout": 1000})
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        for table in ("lanes", "tenants", "queues"):
            db.execute(f"UPDATE tenure_{table} SET ready = 5")
        db.execute("UPDATE tenure_slot_counts SET count = 0")
        db.commit()
    assert client.get("/queue/count/team/team") == {"count": 5}
    assert client.post("/reconcile/crawl/queue/crawl") == {"correction": -2}
    assert client.post("/reconcile/crawl/queue/crawl") == {"correction": 0}
    assert client.post("/reconcile/team/active/team") == {"correction": 1}
    assert client.get("/queue/count/team/team") == {"count": 3}
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.execute("UPDATE tenure_tenants SET ready = 1, leased = 1")
        db.commit()
    assert client.post("/reconcile/team/queue/team") == {"correction": 1}
    assert client.post("/cleanup/stale-counters") == {"cleaned": 0}


def test_samples_go_on_after_a_name(client: Client) -> None:
    for n in range(5):
        push(client, f"job-{n}", team=f"team-{n % 3}", crawlId=f"crawl-{n}")
    push(client, "plain", team="team-3")
    assert client.get("/sample/teams") == {"ids": ["team-0", "team-1", "team-2", "team-3"]}
    assert client.get("/sample/teams?limit=2&after=team-0") == {"ids": ["team-1", "team-2"]}
    assert client.get("/sample/crawls?limit=3") == {"ids": ["crawl-0", "crawl-1", "crawl-2"]}
    assert client.get("/sample/crawls?after=crawl-2") == {"ids": ["crawl-3", "crawl-4"]}
    assert client.get("/sample/crawls?after=crawl-4") == {"ids": []}


# Errors -------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {
    "/queue/push": {
        "teamId": "t",
        "job": {"id": "j", "data": 1, "priority": 0, "listenable": False},
        "timeout": None,
    },
    "/queue/pop/t": {"workerId": "w"},
    "/queue/complete": {"queueKey": "MS5q"},
    "/queue/release": {"jobId": "j"},
    "/active/push": {"teamId": "t", "jobId": "j", "timeout": 1},
    "/active/crawl/push": {"crawlId": "c", "jobId": "j", "timeout": 1},
}


@pytest.mark.parametrize("path", GOOD)
def test_every_field_is_needed_and_has_its_type(client: Client, queue: Queue, path: str) -> None:
    body = GOOD[path]
    for name in body:
        if (path, name) != ("/queue/push", "timeout"):
            less = {key: value for key, value in body.items() if key != name}
            refused(client, "POST", path, less, 400, f"missing required field `{name}`")
        refused(client, "POST", path, body | {name: [1]}, 400, f"at `{name}`")
    for text in (b"", b"{", b"[]", b"null", b'"x"', b"\xff"):
        assert client.ask("POST", path, content=text).status == 400
    assert all_jobs(queue) == []


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("id", "", "length >= 1"),
        ("id", "x" * 513, "length <= 512"),
        ("id", "a\0b", "NUL"),
        ("priority", 2**31, "<= 2147483647"),
        ("priority", -(2**31) - 1, ">= -2147483648"),
        ("priority", 1.5, "got `float`"),
        ("priority", 10**30, "<= 2147483647"),
        ("listenable", "yes", "got `str`"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    client: Client, queue: Queue, field: str, value: Any, text: str
) -> None:
    job = {"id": "j", "data": 1, "priority": 0, "listenable": False} | {field: value}
    refused(client, "POST", "/queue/push", {"teamId": "t", "job": job}, 400, text)
    assert all_jobs(queue) == []


def test_a_team_that_cannot_be_is_refused(client: Client, queue: Queue) -> None:
    job = {"id": "j", "data": 1, "priority": 0, "listenable": False}
    for team, text in (("", "length"), ("x" * 513, "length"), ("a\0", "NUL"), ("*", "'*'")):
        refused(client, "POST", "/queue/push", {"teamId": team, "job": job}, 400, text)
    refused(client, "POST", "/queue/pop/%00", {"workerId": "w"}, 400, "NUL")
    for path in ("/queue/count/team/", "/queue/count/crawl/", "/queue/jobs/team/", "/active/jobs/"):
        refused(client, "GET", f"{path}%00", None, 400, "NUL")
        refused(client, "GET", f"{path}%ED%A0%80", None, 400, "is not UTF-8")
        refused(client, "GET", f"{path}{'x' * 513}", None, 400, "513 characters long")
        assert client.ask("GET", path).status == 404
    assert all_jobs(queue) == []


@pytest.mark.parametrize("timeout", ["1", True, []])
def test_a_timeout_that_cannot_be_is_refused(client: Client, queue: Queue, timeout: Any) -> None:
    refused(client, "POST", "/queue/push", GOOD["/queue/push"] | {"timeout": timeout}, 400, "")
    body = {"teamId": "t", "jobId": "j", "timeout": timeout}
    refused(client, "POST", "/active/push", body, 400, "")
    assert all_jobs(queue) == []
    assert queue.slots.list("firecrawl/team", "t") == []


def test_a_mark_needs_a_time(client: Client) -> None:
    body = {"teamId": "t", "jobId": "j", "timeout": None}
    refused(client, "POST", "/active/push", body, 400, "timeout")


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=x", "limit=1.5", "limit=1&limit=2"]
)
def test_a_limit_that_cannot_be_is_refused(client: Client, query: str) -> None:
    for path in ("/queue/jobs/team/t", "/sample/teams", "/sample/crawls"):
        refused(client, "GET", f"{path}?{query}", None, 400, "limit")


def test_data_over_the_limit_is_too_large(client: Client, queue: Queue) -> None:
    job = {"id": "j", "data": "x" * 1_048_577, "priority": 0, "listenable": False}
    refused(client, "POST", "/queue/push", {"teamId": "t", "job": job}, 413, "the limit is")
    client.service.max_body = 10
    refused(client, "POST", "/queue/push", {"teamId": "t", "job": job}, 413, "at most 10")
    assert all_jobs(queue) == []
