"""The header Idempotency-Key on the native routes: a repeated request is applied once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure import Queue, State
from tenure.model.ops import ONCE_MS
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.server.route import Route
from tenure.server.routes import routes_of
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, Serve, token
from tests.support.sizes import let

KEYED = [route for route in routes_of(()) if route.takes_key]


def ask(client: Client, key: str, method: str, path: str, json: Any = None) -> Asked:
    return client.ask(method, path, json, headers={"idempotency-key": key})


def same(client: Client, method: str, path: str, json: Any = None, key: str = "k") -> Any:
    """What a request returns whose repetition returns the same."""
    first = ask(client, key, method, path, json)
    second = ask(client, key, method, path, json)
    assert (first.status, first.content) == (second.status, second.content)
    assert first.status < 300, first
    return first.json


def test_one_job_is_enqueued_for_one_key(client: Client, queue: Queue) -> None:
    job = same(client, "POST", "/v1/jobs", {"queue": "q", "payload": 1})
    many = same(client, "POST", "/v1/jobs", [{"queue": "q"}, {"queue": "q"}], "many")
    assert queue.stats("q").ready == 3
    assert queue.get(job["id"]).payload == 1
    assert {queue.get(one["id"]).state for one in many} == {State.PENDING}
    other = ask(client, "another", "POST", "/v1/jobs", {"queue": "q", "payload": 1})
    assert other.json["id"] != job["id"]


def test_another_request_with_the_same_key_is_a_conflict(client: Client, queue: Queue) -> None:
    ask(client, "k", "POST", "/v1/jobs", {"queue": "q", "payload": 1})
    others: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"queue": "q", "payload": 2}),
        ("POST", "/v1/jobs?if_exists=skip", {"queue": "q", "payload": 1}),
        ("POST", "/v1/queues/q/pause", None),
    ]
    for method, path, body in others:
        refused = ask(client, "k", method, path, body)
        assert refused.status == 409
        assert "Idempotency-Key was used for another request" in refused.json["detail"]
    assert queue.stats("q").ready == 1
    assert queue.claim("q")  # it is not paused


def test_tokens_do_not_share_keys(serve: Serve, queue: Queue) -> None:
    both = [token("a", Scope.PRODUCE), token("b", Scope.PRODUCE)]
    client = serve(tokens=both)
    body = {"queue": "q"}
    ids = {ask(client.as_(who), "k", "POST", "/v1/jobs", body).json["id"] for who in ("a", "b")}
    assert len(ids) == 2


def test_a_key_is_forgotten_after_a_while(client: Client, queue: Queue, clock: ManualClock) -> None:
    def sent() -> Any:
        return ask(client, "k", "POST", "/v1/jobs/cancel", {"queue": "q"}).json

    queue.enqueue("q")
    assert sent() == sent() == {"count": 1}
    queue.enqueue("q")
    clock.advance(ONCE_MS / 1000 + 1)
    assert sent() == {"count": 1}


def test_what_a_filter_selects_is_changed_once(client: Client, queue: Queue) -> None:
    queue.enqueue("q")
    assert same(client, "POST", "/v1/jobs/cancel", {"queue": "q"}) == {"count": 1}
    late = queue.enqueue("q")
    assert ask(client, "k", "POST", "/v1/jobs/cancel", {"queue": "q"}).json == {"count": 1}
    assert queue.get(late.id).state is State.PENDING


def test_a_claim_returns_the_jobs_that_it_still_holds(client: Client, queue: Queue) -> None:
    for _ in range(3):
        queue.enqueue("q")
    first = same(client, "POST", "/v1/claim", {"queues": ["q"], "limit": 2})["jobs"]
    assert len(first) == 2
    assert queue.stats("q").leased == 2
    lease = {"id": first[0]["id"], "token": first[0]["token"]}
    acked = same(client, "POST", "/v1/ack", {"jobs": [lease | {"then": [{"queue": "then"}]}]}, "a")
    assert acked["results"][0]["state"] == "done"
    assert queue.stats("then").ready == 1
    left = ask(client, "k", "POST", "/v1/claim", {"queues": ["q"], "limit": 2}).json["jobs"]
    assert [job["id"] for job in left] == [first[1]["id"]]
    waits = ask(client, "w", "POST", "/v1/claim", {"queues": ["q"], "wait": 5})
    assert (waits.status, waits.json["field"]) == (400, "wait")


def test_a_failed_attempt_counts_once(client: Client, queue: Queue) -> None:
    job = queue.enqueue("q", max_attempts=5)
    (held,) = queue.claim("q")
    lease = {"id": held.id, "token": held.token}
    same(client, "POST", "/v1/fail", {"jobs": [lease | {"message": "boom"}]})
    assert len(queue.get(job.id).errors) == 1


def test_an_edited_job_is_replayed_once(client: Client, queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.cancel("a")
    found = same(client, "POST", "/v1/jobs/a/edit-and-replay", {"payload": 2})
    assert queue.get(found["id"]).payload == 2
    assert queue.stats("q").ready == 1


def test_a_changed_job_is_returned_as_it_was_then(client: Client, queue: Queue) -> None:
    queue.enqueue("q", id="a")
    found = same(client, "PATCH", "/v1/jobs/a", {"priority": 5})
    queue.delete("a")
    assert same(client, "PATCH", "/v1/jobs/a", {"priority": 5}) == found


def test_a_schedule_is_run_once(client: Client, queue: Queue) -> None:
    client.put("/v1/schedules/s", {"cron": "0 0 * * *", "job": {"queue": "q"}})
    same(client, "POST", "/v1/schedules/s/run-now")
    assert queue.stats("q").ready == 1


def test_a_batch_of_operations_is_applied_once(client: Client, queue: Queue) -> None:
    job = {"queue": "q", "payload": 1, "id": "a"}
    batch = {"ops": [{"op": "Enqueue", "jobs": [job]}]}
    first = same(client, "POST", "/v1/ops", batch)
    assert first["answers"][0]["created"] == [True]


def test_one_bulk_run_is_started(client: Client, queue: Queue) -> None:
    queue.enqueue("q")
    body = {"action": "cancel", "filter": {"queue": "q"}}
    same(client, "POST", "/v1/bulk", body)
    assert len(client.get("/v1/bulk")) == 1


def test_an_error_can_be_repeated(client: Client, queue: Queue) -> None:
    queue.enqueue("q", id="a")
    for _ in range(2):
        assert ask(client, "k", "POST", "/v1/jobs", {"queue": "q", "id": "a"}).status == 409
    queue.delete("a")
    assert ask(client, "k", "POST", "/v1/jobs", {"queue": "q", "id": "a"}).status == 409


def test_a_key_is_bounded(client: Client) -> None:
    for key in ("", "x" * 513):
        assert ask(client, key, "POST", "/v1/jobs", {"queue": "q"}).json["field"] == (
            "Idempotency-Key"
        )


@pytest.mark.parametrize("route", KEYED, ids=map(repr, KEYED))
def test_every_route_that_changes_something_describes_the_header(
    client: Client, route: Route
) -> None:
    document = client.get("/openapi.json")
    parameters = document["paths"][route.path][route.method.lower()]["parameters"]
    assert [one["name"] for one in parameters if one["in"] == "header"] == ["Idempotency-Key"]


def test_a_route_that_only_reads_has_no_key(client: Client) -> None:
    native = [route for route in routes_of(()) if route.tag == "native" and not route.takes_key]
    changing = {repr(one) for one in native if one.method != "GET" and one.scope is not None}
    assert changing == {"POST /v1/query"}


# What a repetition must not do --------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/jobs?if_exists=skip", "/v1/jobs"])
def test_a_token_that_may_not_read_does_not_get_a_result_by_a_repetition(
    serve: Serve, queue: Queue, path: str
) -> None:
    shop = serve(tokens=[token("shop", Scope.PRODUCE)]).as_("shop")
    parent = queue.enqueue("other")
    queue.ack(queue.claim("other")[0])
    body = {"queue": "q", "after": [] if "?" in path else [parent.id]}
    job = ask(shop, "k", "POST", path, body).json
    (held,) = queue.claim("q")
    queue.ack(held, {"secret": 42})
    again = ask(shop, "k", "POST", path, body)
    assert (again.status, again.json["id"]) == (201, job["id"])
    assert b"secret" not in again.content


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("PATCH", "/v1/jobs/a", {"priority": 5}),
        ("POST", "/v1/claim", {"queues": ["q"], "tenant": "acme"}),
    ],
)
def test_a_response_is_not_shown_to_a_token_whose_rights_were_reduced(
    serve: Serve, queue: Queue, method: str, path: str, json: Any
) -> None:
    queue.enqueue("q", {"password": "secret"}, id="a", tenant="acme")
    wide = serve(tokens=[token("t")]).as_("t")
    narrow = serve(tokens=[token("t", tenants=("ajax",))]).as_("t")
    hiding = serve(tokens=[token("t")], redact=["password"]).as_("t")
    assert b"secret" in ask(wide, "k", method, path, json).content
    for client in (narrow, hiding):
        again = ask(client, "k", method, path, json)
        assert again.status in (403, 409)
        assert b"secret" not in again.content
    assert b"secret" in ask(wide, "k", method, path, json).content


def together(client: Client, method: str, path: str, json: Any = None) -> list[Asked]:
    """The same request with the same key twice, at once."""

    async def act() -> list[Asked]:
        headers = {"idempotency-key": "k"}
        asked = (client._ask(method, path, json, None, dict(headers)) for _ in range(2))
        return await asyncio.gather(*asked)

    return client.run(act())


@pytest.mark.parametrize("path", ["/v1/schedules/s/run-now", "/v1/jobs/a/edit-and-replay"])
def test_two_requests_at_the_same_time_add_one_job(client: Client, queue: Queue, path: str) -> None:
    client.put("/v1/schedules/s", {"cron": "0 0 * * *", "job": {"queue": "q"}})
    queue.enqueue("q", id="a")
    queue.cancel("a")
    first, second = together(client, "POST", path, {"payload": 2} if "edit" in path else None)
    assert (first.status, first.content) == (second.status, second.content)
    assert queue.stats("q").ready == 1


def test_a_filter_is_not_applied_twice_at_the_same_time(client: Client, queue: Queue) -> None:
    for _ in range(3):
        queue.enqueue("q")
    found = together(client, "POST", "/v1/jobs/cancel", {"queue": "q"})
    assert {one.status for one in found} <= {200, 409}  # or one after the other
    again = ask(client, "k", "POST", "/v1/jobs/cancel", {"queue": "q"})
    assert (again.status, again.json) == (200, {"count": 3})


def test_one_bulk_run_is_started_by_two_requests_at_the_same_time(
    client: Client, queue: Queue
) -> None:
    queue.enqueue("q")
    found = together(client, "POST", "/v1/bulk", {"action": "cancel", "filter": {"queue": "q"}})
    assert {one.status for one in found} <= {202, 409}
    assert len(client.get("/v1/bulk")) == 1


def test_a_request_that_failed_does_not_keep_its_repetition_waiting(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"action": "cancel", "filter": {"queue": "q"}}
    with monkeypatch.context() as patched:
        let(patched, bulk_actions_at_once=0)
        assert ask(client, "k", "POST", "/v1/bulk", body).status == 429
    assert ask(client, "k", "POST", "/v1/bulk", body).status == 202


def test_a_token_that_may_only_read_stores_nothing(
    serve: Serve, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = serve(tokens=[token("r", Scope.READ)]).as_("r")
    wanted: list[Any] = []
    inner = store_of(queue).ado

    def noted(one: Any) -> Any:
        wanted.append(one)
        return inner(one)

    monkeypatch.setattr(store_of(queue), "ado", noted)
    bodies: list[Any] = [{"ops": []}, {"ops": [], "key": "k"}]
    for body in bodies:
        assert ask(reader, "k", "POST", "/v1/ops", body).json == {"answers": []}
    assert wanted == []
