"""The native API, route by route: the exact request, the exact answer, and the errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure import Queue
from tenure.server import native
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, Serve, all_jobs, token

NOW = 1_700_000_000_000


def refused(
    client: Client, method: str, path: str, body: Any, status: int, code: str, text: str = ""
) -> Asked:
    """An error has the shape of RFC 9457, and says what is wrong."""
    asked = client.ask(method, path, body)
    assert asked.status == status, asked
    assert asked.kind == "application/problem+json"
    problem = asked.json
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:tenure:{code}"
    assert problem["title"] == code.replace("_", " ")
    assert text in problem["detail"], asked
    return asked


def counts(**some: int) -> dict[str, int]:
    names = ("waiting", "delayed", "ready", "leased", "done", "dead", "cancelled")
    return {name: some.get(name, 0) for name in names}


def plain(id: str, **more: Any) -> dict[str, Any]:
    """A job as it is shown right after it was enqueued."""
    return {
        "id": id,
        "queue": "q",
        "state": "pending",
        "payload": None,
        "priority": 0,
        "run_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
        "attempts": 0,
        "max_attempts": 3,
        "result": None,
    } | more


# Jobs ---------------------------------------------------------------------------------------------


def test_a_job_is_enqueued(client: Client, queue: Queue) -> None:
    asked = client.ask("POST", "/v1/jobs", {"queue": "q", "id": "a", "payload": {"n": [1]}})
    assert asked.status == 201
    assert asked.json == plain("a", payload={"n": [1]})
    assert client.get("/v1/jobs/a") == asked.json


def test_a_job_is_enqueued_with_everything(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "parent"})
    body = {
        "queue": "q",
        "payload": "p",
        "kind": "k",
        "tenant": "t",
        "group": "g",
        "priority": -5,
        "max_attempts": 7,
        "run_at": NOW + 5000,
        "id": "ä/ö",
        "unique_key": "u",
        "after": ["parent"],
        "if_parent_fails": "cancel",
        "backoff": {"kind": "fixed", "base_ms": 10},
        "expires_in": 60,
        "timeout": 2.5,
    }
    assert client.post("/v1/jobs", body) == plain(
        "ä/ö",
        state="waiting",
        payload="p",
        kind="k",
        tenant="t",
        group="g",
        priority=-5,
        max_attempts=7,
        run_at=NOW + 5000,
        unique_key="u",
        after=["parent"],
        if_parent_fails="cancel",
        backoff={"kind": "fixed", "base_ms": 10},
        expires_at=NOW + 60_000,
        timeout_ms=2500,
    )
    assert client.get("/v1/jobs/%C3%A4%2F%C3%B6")["kind"] == "k"


def test_a_job_may_be_delayed(client: Client) -> None:
    job = client.post("/v1/jobs", {"queue": "q", "delay": 1.5})
    assert job["run_at"] == NOW + 1500


def test_many_jobs_are_enqueued_all_or_none(client: Client, queue: Queue) -> None:
    asked = client.ask("POST", "/v1/jobs", [{"queue": "q", "id": "a"}, {"queue": "q", "id": "b"}])
    assert asked.status == 201
    assert asked.json == [{"id": "a", "created": True}, {"id": "b", "created": True}]
    more = [{"queue": "q", "id": "c"}, {"queue": "q", "id": "a"}]
    refused(client, "POST", "/v1/jobs", more, 409, "duplicate", "'a' is held by job 'a'")
    assert [job.id for job in all_jobs(queue)] == ["a", "b"]
    assert client.post("/v1/jobs?if_exists=skip", more) == [
        {"id": "c", "created": True},
        {"id": "a", "created": False},
    ]
    assert client.post("/v1/jobs", []) == []


def test_an_id_that_is_held_is_a_conflict_or_skipped(client: Client) -> None:
    first = client.post("/v1/jobs", {"queue": "q", "id": "a", "payload": 1})
    again = {"queue": "q", "id": "a", "payload": 2}
    asked = refused(client, "POST", "/v1/jobs", again, 409, "duplicate")
    assert (asked.json["field"], asked.json["id"]) == ("id", "a")
    assert client.post("/v1/jobs?if_exists=skip", again) == first


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "missing required field `queue`"),
        ({"queue": ""}, "length >= 1"),
        ({"queue": "q", "nme": 1}, "unknown field `nme`"),
        ({"queue": "q", "priority": 2**31}, "at `priority`"),
        ({"queue": "q", "max_attempts": 0}, "at `max_attempts`"),
        ({"queue": "q", "delay": -1}, "at `delay`"),
        ({"queue": "q", "delay": 1, "run_at": 5}, "run_at or delay, not both"),
        ({"queue": "q", "run_at": 10**15}, "at `run_at`"),
        ({"queue": "q", "expires_in": 0}, "at `expires_in`"),
        ({"queue": "q", "tenant": "*"}, "is reserved"),
        ({"queue": "q", "tenant": "\0"}, "NUL"),
        ({"queue": "q", "id": "x" * 513}, "at `id`"),
        ({"queue": "q", "if_parent_fails": "no"}, "at `if_parent_fails`"),
        ({"queue": "q", "backoff": {"kind": "no", "base_ms": 1}}, "at `backoff.kind`"),
        ({"queue": "q", "backoff": {"kind": "fixed", "base_ms": -1}}, "at `backoff.base_ms`"),
        ([{"queue": "q"}, {"queue": 1}], "got `int`"),
        ("q", "Expected"),
        (None, "Expected"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    client: Client, queue: Queue, body: Any, text: str
) -> None:
    asked = client.ask("POST", "/v1/jobs", content=msgspec.json.encode(body))
    assert asked.status == 400, asked
    assert text in asked.json["detail"]
    assert all_jobs(queue) == []


def test_a_parent_that_is_not_there_is_404(client: Client, queue: Queue) -> None:
    body = {"queue": "q", "after": ["never"]}
    refused(client, "POST", "/v1/jobs", body, 404, "dependency_not_found", "'never'")
    cycle = [
        {"queue": "q", "id": "a", "after": ["b"]},
        {"queue": "q", "id": "b", "after": ["a"]},
    ]
    refused(client, "POST", "/v1/jobs", cycle, 400, "dependency_cycle")
    assert all_jobs(queue) == []


def test_a_payload_over_the_limit_is_413(client: Client, queue: Queue) -> None:
    body = {"queue": "q", "payload": "x" * 1_048_577}
    refused(client, "POST", "/v1/jobs", body, 413, "payload_too_large", "the limit is 1,048,576")
    client.service.max_body = 100
    refused(client, "POST", "/v1/jobs", body, 413, "body_too_large", "at most 100")
    assert all_jobs(queue) == []


def test_jobs_are_listed_newest_first(client: Client) -> None:
    for id in ("a", "b", "c"):
        client.post("/v1/jobs", {"queue": "q", "id": id, "tenant": id, "kind": "k", "group": "g"})
    page = client.get("/v1/jobs?limit=2")
    assert [job["id"] for job in page["jobs"]] == ["c", "b"]
    rest = client.get(f"/v1/jobs?limit=2&cursor={page['cursor']}")
    assert [job["id"] for job in rest["jobs"]] == ["a"]
    assert rest["cursor"] is None
    query = "queue=q&state=pending&tenant=b&group=g&kind=k"
    assert [job["id"] for job in client.get(f"/v1/jobs?{query}")["jobs"]] == ["b"]
    assert client.get("/v1/jobs?kind=other")["jobs"] == []


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("limit=0", 400, "limit"),
        ("limit=1001", 400, "limit"),
        ("state=no", 400, "state"),
        ("cursor=no", 400, "'no' is not a cursor returned by a list"),
        ("who=me", 400, "who: is not a parameter"),
        ("queue=", 400, "queue"),
        ("queue=a&queue=b", 400, "given twice"),
        ("state=null", 400, "state"),
        ("limit=null", 400, "limit"),
        ("queue=null", 404, "there is no queue 'null'"),
        ("queue=never", 404, "there is no queue 'never'"),
    ],
)
def test_a_list_that_cannot_be_is_refused(
    client: Client, query: str, status: int, text: str
) -> None:
    for path in ("/v1/jobs", "/v1/dead"):
        asked = client.ask("GET", f"{path}?{query}")
        assert asked.status == status, asked
        assert text in asked.json["detail"]


def test_what_is_not_there_is_404(client: Client) -> None:
    for method, path, body in (
        ("GET", "/v1/jobs/x", None),
        ("DELETE", "/v1/jobs/x", None),
        ("POST", "/v1/jobs/x/cancel", None),
        ("POST", "/v1/jobs/x/replay", None),
        ("POST", "/v1/jobs/x/run-now", None),
        ("POST", "/v1/jobs/x/progress", {"token": 1, "percent": 5}),
        ("GET", "/v1/jobs/x/wait?timeout=0", None),
    ):
        asked = refused(client, method, path, body, 404, "job_not_found", "there is no job 'x'")
        assert asked.json["id"] == "x"
    for method, path in (
        ("GET", "/v1/queues/x"),
        ("POST", "/v1/queues/x/resume"),
        ("POST", "/v1/queues/x/reconcile"),
        ("DELETE", "/v1/queues/x/limits"),
        ("GET", "/v1/queues/x/tenants"),
        ("GET", "/v1/queues/x/groups"),
        ("GET", "/v1/queues/x/tenants/t/groups"),
    ):
        refused(client, method, path, None, 404, "queue_not_found", "there is no queue 'x'")
    refused(client, "DELETE", "/v1/schedules/x", None, 404, "schedule_not_found")
    refused(client, "GET", "/v1/nothing", None, 404, "no_such_route", "GET /v1/nothing")


def test_a_name_in_the_path_that_cannot_be_is_400(client: Client) -> None:
    for part in ("%00", "x" * 513, "%FF"):
        refused(client, "GET", f"/v1/jobs/{part}", None, 400, "invalid")
        refused(client, "GET", f"/v1/queues/{part}", None, 400, "invalid")
        refused(client, "GET", f"/v1/slots/{part}/k", None, 400, "invalid")
        refused(client, "DELETE", f"/v1/schedules/{part}", None, 400, "invalid")


def test_a_method_that_a_path_has_not_is_405(client: Client, queue: Queue) -> None:
    for method, path, allowed in (
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("PUT", "/v1/jobs/x", "GET, HEAD, PATCH, DELETE"),
        ("OPTIONS", "/v1/claim", "POST"),
        ("HEAD", "/v1/claim", "POST"),
        ("BREW", "/v1/queues/q/limits", "GET, HEAD, PUT, DELETE"),
        ("TRACE", "/healthz", "GET, HEAD"),
    ):
        asked = client.ask(method, path, {"queue": "q"})
        assert (asked.status, asked.headers["allow"]) == (405, allowed)
        if method != "HEAD":
            assert asked.json["code"] == "wrong_method"
            assert asked.json["detail"] == f"there is no {method} here, only {allowed}"
    assert all_jobs(queue) == []


def test_jobs_are_cancelled_replayed_and_deleted(client: Client) -> None:
    for id in ("a", "b", "c", "d"):
        client.post("/v1/jobs", {"queue": "q", "id": id, "tenant": "t" if id == "d" else ""})
    assert client.post("/v1/jobs/a/cancel") == {"count": 1}
    assert client.post("/v1/jobs/a/cancel") == {"count": 0}
    assert client.post("/v1/jobs/cancel", {"ids": ["b", "c", "never"]}) == {"count": 2}
    assert client.post("/v1/jobs/cancel", {"queue": "q", "tenant": "t"}) == {"count": 1}
    assert client.post("/v1/jobs/a/replay") == {"count": 1}
    assert client.post("/v1/jobs/replay", {"ids": ["b", "a"]}) == {"count": 1}
    body = {"queue": "q", "state": "cancelled"}
    assert client.post("/v1/jobs/replay", body) == {"count": 2}
    assert client.delete("/v1/jobs/a") == {"count": 1}
    assert client.post("/v1/jobs/delete", {"ids": ["b", "a"]}) == {"count": 1}
    assert client.post("/v1/jobs/delete", {"tenant": "t"}) == {"count": 1}
    assert client.post("/v1/jobs/delete", {"state": "pending"}) == {"count": 1}
    assert client.get("/v1/jobs")["jobs"] == []


def test_which_jobs_must_be_said(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a"})
    for call in ("cancel", "delete"):
        refused(client, "POST", f"/v1/jobs/{call}", {}, 400, "invalid", "say which jobs")
    for call in ("cancel", "replay", "delete"):
        both = {"ids": ["a"], "queue": "q"}
        refused(client, "POST", f"/v1/jobs/{call}", both, 400, "invalid", "not by both")
        for bad in ({"ids": "a"}, {"ids": [""]}, {"state": "no"}, {"all": True}):
            refused(client, "POST", f"/v1/jobs/{call}", bad, 400, "invalid")
    body = {"state": "done"}
    refused(client, "POST", "/v1/jobs/replay", body, 400, "invalid", "only dead and cancelled")
    refused(client, "POST", "/v1/jobs/cancel", {"state": "done"}, 400, "invalid", "state")
    assert client.get("/v1/jobs/a")["state"] == "pending"


def test_a_replay_that_would_break_a_unique_key_is_a_conflict(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a", "unique_key": "u"})
    client.post("/v1/jobs/a/cancel")
    client.post("/v1/jobs", {"queue": "q", "id": "b", "unique_key": "u"})
    refused(client, "POST", "/v1/jobs/a/replay", None, 409, "duplicate", "held by job 'b'")


def test_progress_is_reported(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a"})
    (job,) = client.post("/v1/claim", {"queues": ["q"]})["jobs"]
    body = {"token": job["token"], "percent": 40, "note": "at it"}
    assert client.post("/v1/jobs/a/progress", body) == {"ok": True}
    shown = client.get("/v1/jobs/a")
    assert (shown["progress"], shown["note"]) == (40, "at it")
    old = body | {"token": job["token"] + 1}
    refused(client, "POST", "/v1/jobs/a/progress", old, 409, "lease_lost")
    for bad in ({"percent": 101}, {"percent": -1}, {"percent": 1.5}, {"note": 1}, {"token": -1}):
        refused(client, "POST", "/v1/jobs/a/progress", body | bad, 400, "invalid")


def test_a_job_is_waited_for(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a"})
    assert client.get("/v1/jobs/a/wait?timeout=0")["state"] == "pending"
    (job,) = client.post("/v1/claim", {"queues": ["q"]})["jobs"]
    client.post("/v1/ack", {"jobs": [{"id": "a", "token": job["token"], "result": [1]}]})
    done = client.get("/v1/jobs/a/wait")
    assert (done["state"], done["result"]) == ("done", [1])
    for timeout in ("61", "-1", "x"):
        refused(client, "GET", f"/v1/jobs/a/wait?timeout={timeout}", None, 400, "invalid")


# Working ------------------------------------------------------------------------------------------


def test_jobs_are_claimed(client: Client, clock: ManualClock) -> None:
    for id, group in (("a", "full"), ("b", ""), ("c", "")):
        job = {"queue": "q", "id": id, "group": group, "tenant": "t"}
        client.post("/v1/jobs", job)
    body = {
        "queues": ["other", "q"],
        "limit": 1,
        "lease": 5,
        "worker": "w",
        "tenant": "t",
        "not_groups": ["full"],
        "wait": 0,
    }
    (claimed,) = client.post("/v1/claim", body)["jobs"]
    assert claimed == plain(
        "b",
        state="leased",
        attempts=1,
        tenant="t",
        started_at=NOW,
        lease_until=NOW + 5000,
        token=claimed["token"],
        worker="w",
    )
    assert [job["id"] for job in client.post("/v1/claim", {"queues": ["q"]})["jobs"]] == ["a"]
    clock.advance(5)
    again = client.post("/v1/claim", {"queues": ["q"], "limit": 9})["jobs"]
    assert [(job["id"], job["attempts"], job["worker"]) for job in again] == [
        ("b", 2, "http"),
        ("c", 1, "http"),
    ]
    assert client.post("/v1/claim", {"queues": ["q"], "wait": 0.01}) == {"jobs": []}


@pytest.mark.parametrize(
    "bad",
    [
        {"queues": []},
        {"queues": "q"},
        {"queues": [""]},
        {"queues": ["q"] * 101},
        {"queues": ["\0"]},
        {"limit": 0},
        {"limit": 1001},
        {"lease": 0},
        {"lease": 86_401},
        {"lease": 1e-9},
        {"worker": ""},
        {"not_groups": [1]},
        {"wait": 61},
        {"more": 1},
    ],
)
def test_a_claim_that_cannot_be_is_refused(client: Client, bad: Any) -> None:
    client.post("/v1/jobs", {"queue": "q"})
    refused(client, "POST", "/v1/claim", {"queues": ["q"]} | bad, 400, "invalid")
    assert client.get("/v1/queues/q")["ready"] == 1


def claimed(client: Client, *ids: str) -> list[dict[str, Any]]:
    """Leases on new jobs."""
    client.post("/v1/jobs", [{"queue": "q", "id": id} for id in ids])
    jobs = client.post("/v1/claim", {"queues": ["q"], "limit": 100})["jobs"]
    return [{"id": job["id"], "token": job["token"]} for job in jobs]


@pytest.mark.parametrize("call", ["ack", "fail", "extend", "release"])
def test_an_id_that_cannot_be_is_refused_with_all(client: Client, call: str) -> None:
    (a,) = claimed(client, "a")
    asked = refused(
        client, "POST", f"/v1/{call}", {"jobs": [a, {"id": "\0", "token": 1}]}, 400, "invalid"
    )
    assert asked.json["field"] == "id"
    assert client.get("/v1/jobs/a")["state"] == "leased"


GONE = {"code": "job_not_found", "message": "there is no job 'x'"}


def lost(id: str, state: str) -> dict[str, str]:
    message = (
        f"job '{id}' is no longer leased under this token (it is {state}); "
        "discard what was done for it"
    )
    return {"code": "lease_lost", "message": message}


def test_jobs_are_acked_each_for_itself(client: Client) -> None:
    a, b = claimed(client, "a", "b")
    jobs = [
        a | {"result": {"x": 1}, "then": [{"queue": "q", "id": "next", "payload": 2}]},
        b | {"keep": False},
        {"id": "x", "token": 1},
        a,
    ]
    assert client.post("/v1/ack", {"jobs": jobs}) == {
        "results": [
            {"id": "a", "ok": True, "state": "done"},
            {"id": "b", "ok": True, "state": "done"},
            {"id": "x", "ok": False, "error": GONE},
            {"id": "a", "ok": True, "state": "done"},
        ]
    }
    assert client.get("/v1/jobs/a")["result"] == {"x": 1}
    assert client.ask("GET", "/v1/jobs/b").status == 404
    assert client.get("/v1/jobs/next")["payload"] == 2
    assert client.post("/v1/ack", {"jobs": []}) == {"results": []}


def test_a_result_that_cannot_be_is_refused(client: Client) -> None:
    (a,) = claimed(client, "a")
    for text, status in ((b"1e999", 400), (b'"\xff"', 400), (b'"' + b"x" * 1_048_577 + b'"', 413)):
        body = msgspec.json.encode({"jobs": [a | {"result": "HERE"}]}).replace(b'"HERE"', text)
        assert client.ask("POST", "/v1/ack", content=body).status == status
    bad_then = {"jobs": [a | {"then": [{"queue": ""}]}]}
    refused(client, "POST", "/v1/ack", bad_then, 400, "invalid", "then")
    assert client.get("/v1/jobs/a")["state"] == "leased"


def test_jobs_fail_each_for_itself(client: Client) -> None:
    a, b, c, d = claimed(client, "a", "b", "c", "d")
    jobs = [
        a | {"message": "no", "type": "E", "traceback": "tb", "retry_in": 2.5},
        b | {"fatal": True},
        c | {"cancel": True},
        d,
        {"id": "x", "token": 1},
        a,
    ]
    assert client.post("/v1/fail", {"jobs": jobs}) == {
        "results": [
            {"id": "a", "ok": True, "state": "pending"},
            {"id": "b", "ok": True, "state": "dead"},
            {"id": "c", "ok": True, "state": "cancelled"},
            {"id": "d", "ok": True, "state": "pending"},
            {"id": "x", "ok": False, "error": GONE},
            {"id": "a", "ok": False, "error": lost("a", "pending")},
        ]
    }
    shown = client.get("/v1/jobs/a")
    assert shown["run_at"] == NOW + 2500
    assert shown["errors"] == [
        {
            "at": NOW,
            "attempt": 1,
            "message": "no",
            "type": "E",
            "traceback": "tb",
            "worker": "http",
            "group": shown["errors"][0]["group"],
        }
    ]


def test_leases_are_extended_each_for_itself(client: Client) -> None:
    (a,) = claimed(client, "a")
    assert client.post("/v1/extend", {"jobs": [a, {"id": "x", "token": 1}], "lease": 500}) == {
        "results": [
            {"id": "a", "ok": True, "state": "leased"},
            {"id": "x", "ok": False, "error": GONE},
        ]
    }
    assert client.get("/v1/jobs/a")["lease_until"] == NOW + 500_000
    client.post("/v1/extend", {"jobs": [a]})
    assert client.get("/v1/jobs/a")["lease_until"] == NOW + 60_000


def test_jobs_are_released_each_for_itself(client: Client) -> None:
    a, b = claimed(client, "a", "b")
    jobs = [a, b | {"delay": 3}, {"id": "x", "token": 1}]
    assert client.post("/v1/release", {"jobs": jobs}) == {
        "results": [
            {"id": "a", "ok": True, "state": "pending"},
            {"id": "b", "ok": True, "state": "pending"},
            {"id": "x", "ok": False, "error": GONE},
        ]
    }
    shown = client.get("/v1/jobs/b")
    assert (shown["run_at"], shown["attempts"]) == (NOW + 3000, 0)


@pytest.mark.parametrize("call", ["ack", "fail", "extend", "release"])
def test_what_finishes_a_job_needs_its_lease(client: Client, call: str) -> None:
    (a,) = claimed(client, "a")
    path = f"/v1/{call}"
    bad: Any
    for bad in (
        {"jobs": [{"id": "a"}]},
        {"jobs": [{"token": 1}]},
        {"jobs": [a | {"token": "1"}]},
        {"jobs": [a | {"token": 2**63}]},
        {"jobs": [a | {"id": ""}]},
        {"jobs": [a | {"more": 1}]},
        {"jobs": [a] * 1001},
        {"jobs": a},
        {},
        [],
    ):
        refused(client, "POST", path, bad, 400, "invalid")
    assert client.get("/v1/jobs/a")["state"] == "leased"


# Queues -------------------------------------------------------------------------------------------


def test_queues_are_counted(client: Client) -> None:
    assert client.get("/v1/queues") == counts() | {"queues": {}, "log_bytes": None, "away": []}
    claimed(client, "a")
    client.post("/v1/jobs", [{"queue": "q", "delay": 1}, {"queue": "r"}])
    q = counts(leased=1, delayed=1) | {"queue": "q", "paused": False}
    r = counts(ready=1) | {"queue": "r", "paused": False}
    assert client.get("/v1/queues/q") == q
    overall = counts(leased=1, delayed=1, ready=1)
    both: dict[str, Any] = {"queues": {"q": q, "r": r}, "log_bytes": None, "away": []}
    assert client.get("/v1/queues") == overall | both


def test_queues_are_paused_and_resumed(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "tenant": "t", "group": "g"})
    for body in (None, {}, {"tenant": "t"}, {"tenant": "t", "group": "g"}, {"group": "g"}):
        assert client.post("/v1/queues/q/pause", body) == {"ok": True}
        assert client.post("/v1/claim", {"queues": ["q"]}) == {"jobs": []}
        assert client.post("/v1/queues/q/resume", body) == {"ok": True}
    assert len(client.post("/v1/claim", {"queues": ["q"]})["jobs"]) == 1
    for bad in ({"tenant": "*"}, {"group": "*"}, {"group": ""}, {"who": "t"}):
        refused(client, "POST", "/v1/queues/q/pause", bad, 400, "invalid")


def test_limits_are_set_listed_and_cleared(client: Client) -> None:
    limits = "/v1/queues/q/limits"
    assert client.get(limits) == []
    assert client.put(limits, {"concurrency": 5, "rate": 10, "per": 1.5}) == {"ok": True}
    assert client.put(limits, {"tenant": "*", "weight": 2}) == {"ok": True}
    assert client.put(limits, {"tenant": "t", "group": "g", "concurrency": 1}) == {"ok": True}
    client.post("/v1/queues/q/pause", {"tenant": "t"})
    assert client.get(limits) == [
        {"queue": "q", "concurrency": 5, "rate": 10, "per_ms": 1500},
        {"queue": "q", "tenant": "*", "weight": 2},
        {"queue": "q", "tenant": "t", "paused": True},
        {"queue": "q", "tenant": "t", "group": "g", "concurrency": 1},
    ]
    assert client.delete(limits) == {"ok": True}
    assert client.delete(f"{limits}?tenant=t&group=g") == {"ok": True}
    assert client.delete(f"{limits}?tenant=*") == {"ok": True}
    assert client.get(limits) == [{"queue": "q", "tenant": "t", "paused": True}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"concurrency": 0},
        {"concurrency": 10**10},
        {"rate": 1},
        {"per": 1},
        {"rate": 1, "per": 1, "tenant": "t"},
        {"weight": 1},
        {"weight": 0, "tenant": "t"},
        {"concurrency": 1, "group": ""},
        {"concurrency": 1, "tenant": "\0"},
        {"speed": 1},
    ],
)
def test_a_limit_that_cannot_be_is_refused(client: Client, body: Any) -> None:
    refused(client, "PUT", "/v1/queues/q/limits", body, 400, "invalid")
    assert client.get("/v1/queues/q/limits") == []


def test_tenants_and_groups_are_counted(client: Client) -> None:
    client.post(
        "/v1/jobs",
        [
            {"queue": "q", "tenant": tenant, "group": group}
            for tenant in ("", "a", "ä/ö")
            for group in ("", "g1", "g2")
        ],
    )
    one = counts(ready=3) | {"queue": "q", "wait_ms": None}
    assert client.get("/v1/queues/q/tenants") == [
        one | {"tenant": ""},
        one | {"tenant": "a"},
        one | {"tenant": "ä/ö"},
    ]
    assert client.get("/v1/queues/q/tenants?limit=1&after=") == [one | {"tenant": "a"}]
    group = counts(ready=1) | {"queue": "q", "tenant": "ä/ö"}
    both = [group | {"group": "g1"}, group | {"group": "g2"}]
    path = "/v1/queues/q/tenants/%C3%A4%2F%C3%B6/groups"
    assert client.get(path) == both
    assert client.get(f"{path}?limit=1&after=g1") == both[1:]
    assert client.get("/v1/queues/q/groups?tenant=%C3%A4%2F%C3%B6") == both
    assert [one["group"] for one in client.get("/v1/queues/q/groups")] == ["g1", "g2"]
    for bad in ("limit=0", "limit=10001", "by=x"):
        refused(client, "GET", f"/v1/queues/q/tenants?{bad}", None, 400, "invalid")
        refused(client, "GET", f"{path}?{bad}", None, 400, "invalid")
        refused(client, "GET", f"/v1/queues/q/groups?{bad}", None, 400, "invalid")


def test_counters_are_reconciled(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "tenant": "t"})
    for body in (None, {"tenant": "t"}, {"tenant": "t", "group": "g"}):
        assert client.post("/v1/queues/q/reconcile", body) == {"corrected": {}}
    refused(client, "POST", "/v1/queues/q/reconcile", {"group": ""}, 400, "invalid")


# The dead -----------------------------------------------------------------------------------------


def test_the_dead_are_listed_replayed_and_purged(client: Client, clock: ManualClock) -> None:
    leases = claimed(client, "a", "b", "c")
    for lease in leases:
        client.post("/v1/fail", {"jobs": [lease | {"fatal": True}]})
        clock.advance(1)
    client.post("/v1/jobs", {"queue": "q", "id": "alive"})
    page = client.get("/v1/dead?limit=2")
    assert [job["id"] for job in page["jobs"]] == ["c", "b"]
    rest = client.get(f"/v1/dead?cursor={page['cursor']}")
    assert [job["id"] for job in rest["jobs"]] == ["a"]
    assert client.post("/v1/dead/replay", {"ids": ["a", "alive"]}) == {"count": 1}
    assert client.post("/v1/dead/replay", {"queue": "q", "tenant": "none"}) == {"count": 0}
    assert client.post("/v1/dead/purge", {"older_than": 60}) == {"count": 0}
    assert client.post("/v1/dead/purge", {"older_than": 1.5, "queue": "q"}) == {"count": 1}
    assert client.post("/v1/dead/purge", {"older_than": 0, "state": ["done"]}) == {"count": 0}
    assert client.post("/v1/dead/replay", {}) == {"count": 1}
    assert client.get("/v1/dead")["jobs"] == []
    for bad in ({}, {"older_than": -1}, {"older_than": 1, "state": ["pending"]}):
        refused(client, "POST", "/v1/dead/purge", bad, 400, "invalid")
    refused(client, "POST", "/v1/dead/replay", {"ids": [1]}, 400, "invalid")


# Slots and schedules ------------------------------------------------------------------------------


def test_slots_are_taken_listed_and_dropped(client: Client, clock: ManualClock) -> None:
    key = "/v1/slots/a%2Fb/key"
    assert client.get(key) == []
    taken = {"answer": "Slots", "count": 1, "held": True}
    assert client.put(f"{key}/h1", {"ttl": 5, "limit": 1}) == taken
    assert client.put(f"{key}/h2", {"ttl": 5, "limit": 1}) == taken | {"held": False}
    assert client.put(f"{key}/h2", {"ttl": 2.5}) == taken | {"count": 2}
    assert client.get(key) == [
        {"holder": "h1", "expires_at": NOW + 5000},
        {"holder": "h2", "expires_at": NOW + 2500},
    ]
    assert client.delete(f"{key}/h1") == {"count": 1}
    clock.advance(2.5)
    assert client.get(key) == []
    for bad in ({}, {"ttl": 0}, {"ttl": 1e-9}, {"ttl": 1, "limit": 0}, {"ttl": "1"}):
        refused(client, "PUT", f"{key}/h1", bad, 400, "invalid")


def test_schedules_are_put_listed_and_dropped(client: Client, queue: Queue) -> None:
    body = {
        "cron": "0 3 * * *",
        "job": {"queue": "q", "payload": [1]},
        "tz": "Europe/Oslo",
        "catch_up": "all",
    }
    shown = client.put("/v1/schedules/night%2Fly", body)
    id = shown["job"].pop("id")
    assert id
    assert shown == {
        "name": "night/ly",
        "cron": "0 3 * * *",
        "job": shown["job"],
        "next_at": NOW + (3 * 3600 + 46 * 60 + 40) * 1000,
        "tz": "Europe/Oslo",
        "catch_up": "all",
    }
    assert (shown["job"]["queue"], shown["job"]["payload"]) == ("q", [1])
    (listed,) = client.get("/v1/schedules")
    assert listed["name"] == "night/ly"
    assert client.delete("/v1/schedules/night%2Fly") == {"ok": True}
    assert client.get("/v1/schedules") == []


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"tz": "Mars/Base"}, "tz"),
        ({"catch_up": "some"}, "catch_up"),
        ({"job": {"queue": "q", "id": "fixed"}}, "must not be set"),
        ({"job": {}}, "queue"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(client: Client, bad: Any, text: str) -> None:
    body = {"cron": "* * * * *", "job": {"queue": "q"}} | bad
    refused(client, "PUT", "/v1/schedules/s", body, 400, "invalid", text)
    assert client.get("/v1/schedules") == []


# Upkeep, operations and queries -------------------------------------------------------------------


def test_upkeep_answers_with_what_it_found(client: Client, clock: ManualClock) -> None:
    claimed(client, "a")
    client.post("/v1/jobs", [{"queue": "q", "delay": 1}, {"queue": "q", "expires_in": 1}])
    client.put("/v1/slots/s/k/h", {"ttl": 1})
    clock.advance(60)
    found = {"promoted": 1, "leases": 1, "expired": 1, "slots": 1, "purged": 0}
    whole = {"answer": "Maintained", "after": None}
    assert client.post("/v1/maintain") == whole | found
    zero = dict.fromkeys(found, 0)
    assert client.post("/v1/maintain", {"limit": 5}) == whole | zero
    refused(client, "POST", "/v1/maintain", {"limit": 0}, 400, "invalid")


def test_a_batch_of_operations_is_answered_one_by_one(client: Client, queue: Queue) -> None:
    batch = [
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": {"x": 1}}]},
        {"op": "Claim", "queues": ["q"], "worker": "w", "lease_ms": 1000},
        {"op": "Ack", "id": "x", "token": 1},
        {"op": "Pause", "queue": "q"},
    ]
    answers = client.post("/v1/ops", {"ops": batch})["answers"]
    assert answers[0] == {"answer": "Enqueued", "ids": ["a"], "created": [True], "at": NOW}
    assert (answers[1]["answer"], answers[1]["jobs"][0]["id"]) == ("Leased", "a")
    assert (answers[2]["answer"], answers[2]["code"]) == ("Refused", "job_not_found")
    assert answers[3] == {"answer": "Ok"}
    assert client.post("/v1/ops", {"ops": []}) == {"answers": []}
    assert queue.get("a").payload == {"x": 1}


def test_operations_under_a_key_are_applied_once(client: Client, queue: Queue) -> None:
    spec = {"id": "a", "queue": "q", "payload": 1}
    body = {"key": "k", "ops": [{"op": "Enqueue", "jobs": [spec]}]}
    first = client.post("/v1/ops", body)
    assert client.post("/v1/ops", body) == first
    assert len(all_jobs(queue)) == 1


def test_a_key_that_was_used_for_other_operations_is_a_conflict(serve: Serve, queue: Queue) -> None:
    for who in (serve(), serve(tokens=[token("ours", tenants=("t",))]).as_("ours")):
        ids = [f"t/{who.token}-{n}" for n in range(3)]
        batch = [
            {"op": "Enqueue", "jobs": [{"id": id, "queue": "q", "payload": 1, "tenant": "t"}]}
            for id in ids
        ]
        who.post("/v1/ops", {"key": "k", "ops": batch[:1]})
        for others in (batch[1:], batch[1:2], []):
            refused(who, "POST", "/v1/ops", {"key": "k", "ops": others}, 409, "conflict", "'k'")
        assert [job.id for job in all_jobs(queue) if job.id in ids] == ids[:1]


def test_a_key_that_cannot_be_is_refused(client: Client, queue: Queue) -> None:
    batch = [{"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1}]}]
    for key in ("", "\0", "x" * 513, 1):
        refused(client, "POST", "/v1/ops", {"key": key, "ops": batch}, 400, "invalid")
    assert all_jobs(queue) == []


@pytest.mark.parametrize(
    "op",
    [
        {"op": "Nothing"},
        {"op": "Once", "key": "k", "ops": []},
        {"op": "Enqueue", "jobs": [{"id": "", "queue": "q", "payload": 1}]},
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1, "priority": 2**31}]},
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1, "tenant": "*"}]},
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1, "delay_ms": -1}]},
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1, "max_attempts": 0}]},
        {"op": "Enqueue", "jobs": [{"id": "a", "queue": "q", "payload": 1, "unique_key": ""}]},
        {"op": "Claim", "queues": [], "worker": "w", "lease_ms": 1},
        {"op": "Claim", "queues": ["q"], "worker": "", "lease_ms": 1},
        {"op": "Claim", "queues": ["q"], "worker": "w", "lease_ms": 0},
        {"op": "Claim", "queues": ["q"], "worker": "w", "lease_ms": 1, "limit": 0},
        {"op": "Ack", "id": "a", "token": 2**63},
        {"op": "Fail", "id": "a", "token": 1, "retry_in_ms": 10**20},
        {"op": "Cancel", "ids": ["\0"]},
        {"op": "SetLimit", "queue": "q", "concurrency": 0},
        {"op": "TakeSlot", "scope": "s", "key": "k", "holder": "h", "ttl_ms": 0},
        {"op": "Maintain", "limit": 0},
    ],
)
def test_an_operation_that_cannot_be_is_refused_with_its_batch(
    client: Client, queue: Queue, op: Any
) -> None:
    good = {"op": "Enqueue", "jobs": [{"id": "good", "queue": "q", "payload": 1}]}
    refused(client, "POST", "/v1/ops", {"ops": [good, op]}, 400, "invalid")
    assert all_jobs(queue) == []


@pytest.mark.parametrize("text", [b"1e999", b'"\xff"'])
def test_a_payload_in_a_batch_is_json_all_through(
    client: Client, queue: Queue, text: bytes
) -> None:
    spec = b'{"id":"a","queue":"q","payload":' + text + b"}"
    body = b'{"ops":[{"op":"Enqueue","jobs":[' + spec + b"]}]}"
    assert client.ask("POST", "/v1/ops", content=body).status == 400
    assert all_jobs(queue) == []


def test_queries_are_answered(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a", "tenant": "t", "group": "g"})
    client.put("/v1/slots/s/k/h", {"ttl": 1})
    job = client.get("/v1/jobs/a")
    tenant = counts(ready=1) | {"queue": "q", "tenant": "t"}
    for query, found in (
        ({"query": "GetJob", "id": "a"}, job),
        (
            {"query": "ListJobs"},
            {"answer": "Page", "jobs": [job], "cursor": None, "scanned": 1, "scanned_to": None},
        ),
        (
            {"query": "GetJobs", "ids": ["b", "a"]},
            {"answer": "Page", "jobs": [job], "cursor": None, "scanned": 0, "scanned_to": None},
        ),
        (
            {"query": "FindIds", "filter": {"queue": "q"}},
            {"answer": "Ids", "ids": ["a"], "cursor": None, "scanned": 1},
        ),
        ({"query": "NextDue", "queues": ["q"]}, {"answer": "Due", "at": None}),
        (
            {"query": "OldestReady", "queues": ["q"]},
            {"answer": "Due", "at": job["run_at"]},
        ),
        (
            {"query": "GetStats", "queue": "q"},
            [counts(ready=1) | {"queue": "q", "paused": False}],
        ),
        ({"query": "ListTenants", "queue": "q"}, [tenant]),
        ({"query": "ListGroups", "queue": "q", "tenant": "t"}, [tenant | {"group": "g"}]),
        ({"query": "ListLimits"}, []),
        (
            {"query": "ListSlots", "scope": "s", "key": "k"},
            [{"holder": "h", "expires_at": NOW + 1000}],
        ),
        ({"query": "ListSchedules"}, []),
    ):
        assert client.post("/v1/query", {"query": query}) == {"found": found}
    body = {"query": {"query": "GetJob", "id": "x"}}
    refused(client, "POST", "/v1/query", body, 404, "job_not_found")


@pytest.mark.parametrize(
    "query",
    [
        {"query": "No"},
        {"query": "GetJob"},
        {"query": "GetJob", "id": "\0"},
        {"query": "ListJobs", "limit": 0},
        {"query": "ListJobs", "limit": -1},
        {"query": "ListJobs", "limit": 10**30},
        {"query": "ListJobs", "cursor": "x"},
        {"query": "FindIds", "limit": 10**19},
        {"query": "FindIds", "filter": {"finished_before": 10**30}},
        {"query": "FindIds", "filter": {"tenant": "\0"}},
        {"query": "ListTenants", "queue": "q", "limit": -1},
        {"query": "ListTenants", "queue": "q", "after": "\0"},
        {"query": "ListGroups", "queue": "", "limit": 1},
        {"query": "NextDue", "queues": []},
        {"query": "OldestReady", "queues": []},
        {"query": "ListSlots", "scope": "", "key": "k"},
    ],
)
def test_a_query_that_cannot_be_is_refused(client: Client, query: Any) -> None:
    refused(client, "POST", "/v1/query", {"query": query}, 400, "invalid")


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b'"\\ud800"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_json_is_400(client: Client, queue: Queue, text: bytes) -> None:
    for route in native.ROUTES:
        if route.body is not None and (text or route.body_required):
            path = route.path.replace("{", "").replace("}", "")
            asked = client.ask(route.method, path, content=text)
            assert asked.status == 400, (route, asked)
            assert asked.json["code"] == "invalid"
    assert all_jobs(queue) == []


def test_head_is_a_get_without_its_body(client: Client) -> None:
    client.post("/v1/jobs", {"queue": "q", "id": "a"})
    asked = client.ask("HEAD", "/v1/jobs/a")
    assert (asked.status, asked.content) == (200, b"")
    assert int(asked.headers["content-length"]) > 100
