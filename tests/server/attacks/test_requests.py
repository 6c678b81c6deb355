"""Requests that are small, and ask for much."""

from __future__ import annotations

import time
import tracemalloc
import urllib.parse
from typing import Any

import pytest

import tenure
from tenure import Queue
from tenure.engines import remote
from tenure.model import fields, ops
from tenure.queue import store_of
from tenure.server import route
from tenure.server.auth import Scope
from tests.conformance.state import nothing_changes
from tests.server.conftest import Client, Serve, token
from tests.support.sizes import let

MB = 1_048_576
SPEC = {"id": "x", "queue": "q", "payload": None}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs/cancel", b'{"ids":[' + b'"a",' * 4_000_000 + b'"a"]}'),
        ("/v1/jobs", b"[" + b'{"queue":"q"},' * 1_500_000 + b'{"queue":"q"}]'),
        ("/v1/ops", b'{"ops":[' + b'{"op":"Maintain"},' * 1_000_000 + b'{"op":"Maintain"}]}'),
        ("/v1/claim", b'{"queues":["q"],"not_groups":[' + b'"",' * 9_000_000 + b'""]}'),
    ],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_decoded(
    client: Client, queue: Queue, path: str, body: bytes
) -> None:
    client.get("/healthz")
    tracemalloc.start()
    try:
        with nothing_changes(queue):
            asked = client.ask("POST", path, content=body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (asked.status, asked.json["code"]) == (413, "body_too_large")
    assert peak < 2 * len(body) + 16 * MB


def test_one_payload_of_as_many_values_as_fit_is_accepted(client: Client) -> None:
    payload = b"[" + b"1," * 520_000 + b"1]"
    body = b'{"queue": "q", "payload": ' + payload + b"}"
    assert client.ask("POST", "/v1/jobs", content=body).status == 201


def test_a_batch_has_a_most_of_operations(client: Client, queue: Queue) -> None:
    op = {"op": "Cancel", "ids": ["none"]}
    with nothing_changes(queue):
        asked = client.ask("POST", "/v1/ops", {"ops": [op] * (fields.MAX_OPS + 1)})
    assert asked.status == 400
    assert len(client.post("/v1/ops", {"ops": [op] * 100})["answers"]) == 100


def test_the_engine_for_a_service_keeps_to_the_most_of_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []

    def post(self: Any, path: str, body: bytes, decode: Any) -> list[Any]:
        sent.append(body.count(b'"op"'))
        return [ops.Ok()] * sent[-1]

    monkeypatch.setattr(remote.RemoteEngine, "_post", post)
    let(monkeypatch, operations_of_a_request=100)
    with tenure.connect("http://127.0.0.1:1") as queue:
        leases = [tenure.Lease(str(n), 1) for n in range(250)]
        assert queue.ack_many(leases) == [None] * 250
        once = ops.Once("k", tuple(ops.Ack(str(n), 1) for n in range(250)))
        store_of(queue).do([once])
    assert max(sent) <= 100
    assert sum(sent) == 500


@pytest.mark.parametrize("key", [None, "k"])
def test_a_large_batch_is_committed_in_parts(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Others would have to wait for all of it."""
    let(monkeypatch, jobs_of_a_part_of_a_request=10)
    sizes: list[int] = []
    apply = store_of(queue).engine.apply

    def noting(batch: Any) -> Any:
        sizes.append(len(list(ops.flat(batch))))
        return apply(batch)

    monkeypatch.setattr(store_of(queue).engine, "apply", noting)
    specs = [SPEC | {"id": str(n)} for n in range(24)]
    body: dict[str, Any] = {"ops": [{"op": "Enqueue", "jobs": [one]} for one in specs]}
    body["ops"].append({"op": "Cancel", "ids": [str(n) for n in range(0, 24, 2)]})
    if key is not None:
        body["key"] = key
    answers = client.post("/v1/ops", body)["answers"]
    assert [one["ids"][0] for one in answers[:24]] == [str(n) for n in range(24)]
    assert answers[24]["count"] == 12
    assert len(sizes) > 1
    assert max(sizes) <= 10
    if key is not None:
        with nothing_changes(queue):
            assert client.post("/v1/ops", body)["answers"] == answers
            body["ops"][24]["ids"] = ["1"]
            assert client.ask("POST", "/v1/ops", body).status == 409


def test_a_long_list_is_validated_beside_the_loop(client: Client, queue: Queue) -> None:
    jobs: list[dict[str, Any]] = [{"queue": "q", "id": str(n)} for n in range(300)]
    made = client.post("/v1/jobs", jobs)
    assert [one["id"] for one in made] == [one["id"] for one in jobs]
    with nothing_changes(queue):
        asked = client.ask("POST", "/v1/jobs", [*jobs[:250], {"queue": "q", "tenant": "*"}])
        assert (asked.status, asked.json["field"]) == (400, "jobs[250].tenant")
        assert client.ask("POST", "/v1/jobs", jobs).status == 409
    assert client.post("/v1/jobs", []) == []


@pytest.mark.parametrize("field", ["key", "fingerprint"])
def test_a_batch_has_no_name_that_a_store_cannot_hold(
    client: Client, queue: Queue, field: str
) -> None:
    batch = {"ops": [{"op": "Enqueue", "jobs": [SPEC]}], field: "a\0b"}
    with nothing_changes(queue):
        asked = client.ask("POST", "/v1/ops", batch)
    assert (asked.status, asked.json["field"]) == (400, field)


def test_nesting_without_end_is_refused(client: Client, queue: Queue) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for path in ("/v1/jobs", "/v1/ops", "/v1/claim"):
        for body in (deep, b'{"queue": "q", "payload": ' + deep + b"}"):
            with nothing_changes(queue):
                assert client.ask("POST", path, content=body).status == 400


@pytest.mark.parametrize(("field", "value"), [("cron", "0 0 * * *" + " " * 500), ("tz", "U" * 200)])
def test_a_schedule_has_the_same_bounds_in_a_batch(
    client: Client, queue: Queue, field: str, value: str
) -> None:
    schedule = {"name": "s", "cron": "0 0 * * *", "tz": "UTC"} | {field: value}
    native = {name: text for name, text in schedule.items() if name != "name"}
    batch = {"ops": [{"op": "PutSchedule", "schedule": schedule | {"job": SPEC}}]}
    with nothing_changes(queue):
        assert client.ask("PUT", "/v1/schedules/s", native | {"job": {"queue": "q"}}).status == 400
        assert client.ask("POST", "/v1/ops", batch).status == 400


# A token that may only enqueue -------------------------------------------------------------------


def test_who_may_only_enqueue_gets_a_response_with_after(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("p", Scope.PRODUCE)]).as_("p")
    queue.enqueue("q", id="parent")
    job = client.post("/v1/jobs", {"queue": "q", "id": "child", "after": ["parent"]})
    assert (job["id"], job["state"]) == ("child", "waiting")
    asked = client.ask("POST", "/v1/jobs", {"queue": "q", "id": "other", "after": ["none"]})
    assert asked.status == 404


def test_who_may_only_enqueue_is_not_shown_a_job_that_existed(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("p", Scope.PRODUCE)]).as_("p")
    queue.enqueue("q", "secret", id="a")
    asked = client.ask("POST", "/v1/jobs?if_exists=skip", {"queue": "q", "id": "a"})
    assert (asked.status, asked.json) == (201, {"id": "a", "created": False})
    created = client.post("/v1/jobs?if_exists=skip", {"queue": "q", "id": "b", "payload": 1})
    assert (created["id"], created["state"]) == ("b", "pending")


def test_a_body_of_many_values_is_counted_quickly(client: Client) -> None:
    body = b'{"queue": "q", "payload": "' + b"x" * 30 * MB + b'"}'
    began = time.monotonic()
    assert client.ask("POST", "/v1/jobs", content=body).status == 413
    assert time.monotonic() - began < 10


def test_a_long_query_string_is_not_parsed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of parameters would take tens of milliseconds of the event loop."""
    parsed: list[str] = []
    parse = urllib.parse.parse_qsl

    def noted(text: str, **options: Any) -> Any:
        parsed.append(text)
        return parse(text, **options)

    monkeypatch.setattr(route, "parse_qsl", noted)
    client = serve(tokens=[token("ann")])
    many = "&".join(f"a{n}=1" for n in range(7_000))
    assert client.ask("GET", f"/healthz?{many}").status == 200
    assert client.ask("GET", "/healthz?a=%41").status == 200
    asked = client.as_("ann").ask("GET", f"/v1/jobs?{many}")
    assert (asked.status, asked.json["field"]) == (400, "query")
    assert parsed == []
    assert client.as_("ann").ask("GET", "/v1/jobs?queue=q").status == 404
    assert parsed == ["queue=q"]


@pytest.mark.parametrize("key", [None, "k"])
def test_acks_that_add_many_jobs_are_committed_in_parts(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Others would have to wait for all of them. Each ack is still one change."""
    let(monkeypatch, jobs_of_a_part_of_a_request=10)
    added: list[int] = []
    apply = store_of(queue).engine.apply

    def noting(batch: Any) -> Any:
        added.append(sum(len(op.then) for op in ops.flat(batch) if isinstance(op, ops.Ack)))
        return apply(batch)

    queue.enqueue_many([tenure.NewJob(queue="q") for _ in range(6)])
    jobs = queue.claim("q", limit=6)
    monkeypatch.setattr(store_of(queue).engine, "apply", noting)
    then = [{"queue": "next"}] * 4
    body = {"jobs": [{"id": one.id, "token": one.token, "then": then} for one in jobs]}
    headers = {} if key is None else {"idempotency-key": key}
    for _ in range(2):
        asked = client.ask("POST", "/v1/ack", body, headers=headers)
        assert [one["state"] for one in asked.json["results"]] == ["done"] * 6
        assert queue.stats("next").ready == 24
    assert max(added) == 8
