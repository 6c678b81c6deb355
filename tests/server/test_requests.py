"""What goes with a request: its id, its trace, what the log says of it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenure import Queue
from tenure.observe.logs import JsonFormatter, TextFormatter
from tenure.queue import Calls
from tenure.server.auth import Scope
from tests.server.conftest import Client, Serve, token

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_has_an_id_that_is_answered(client: Client) -> None:
    first, second = (client.ask("GET", "/healthz").headers["x-request-id"] for _ in range(2))
    assert first != second
    asked = client.ask("GET", "/healthz", headers={"x-request-id": "from-the-proxy"})
    assert asked.headers["x-request-id"] == "from-the-proxy"


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "é"])
def test_an_id_that_would_spoil_the_log_is_replaced(client: Client, given: str) -> None:
    asked = client.ask("GET", "/healthz", headers={"x-request-id": given.encode()})  # type: ignore[dict-item]
    assert asked.headers["x-request-id"].split("-")[1].isdigit()


def test_a_trace_that_comes_with_a_request_is_carried_by_its_jobs(
    client: Client, queue: Queue
) -> None:
    headers = {"traceparent": TRACE}
    one = client.post("/v1/jobs", {"queue": "mail"}, headers=headers)
    assert one["trace"] == TRACE
    (many,) = client.post("/v1/jobs", [{"queue": "mail"}], headers=headers)
    assert queue.get(many["id"]).trace == TRACE
    pushed = {"teamId": "t", "job": {"id": "p", "data": {}, "priority": 0, "listenable": False}}
    client.post("/queue/push", pushed, headers=headers)
    assert [job.trace for job in queue.jobs(tenant="t").jobs] == [TRACE]
    assert "trace" not in client.post("/v1/jobs", {"queue": "mail"})


def test_a_trace_in_the_body_comes_first_and_is_checked(client: Client) -> None:
    other = TRACE.replace("b7", "c8")
    asked = client.post(
        "/v1/jobs", {"queue": "mail", "trace": other}, headers={"traceparent": TRACE}
    )
    assert asked["trace"] == other
    refused = client.ask("POST", "/v1/jobs", {"queue": "mail", "trace": "nonsense"})
    assert (refused.status, "traceparent" in refused.json["detail"]) == (400, True)
    job = {"id": "a", "queue": "mail", "payload": 1, "trace": "nonsense"}
    refused = client.ask("POST", "/v1/ops", {"ops": [{"op": "Enqueue", "jobs": [job]}]})
    assert (refused.status, "traceparent" in refused.json["detail"]) == (400, True)


def test_a_header_that_is_no_trace_is_passed_over(client: Client) -> None:
    asked = client.post("/v1/jobs", {"queue": "mail"}, headers={"traceparent": "nonsense"})
    assert "trace" not in asked


def test_a_request_is_a_span_in_the_trace_of_its_caller(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    job = client.post("/v1/jobs", {"queue": "mail"}, headers={"traceparent": TRACE})
    client.ask("GET", "/v1/jobs/none")

    spans = {span.name: span for span in exporter.get_finished_spans()}
    request, enqueue = spans["POST /v1/jobs"], spans["enqueue mail"]
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" in TRACE
    assert enqueue.parent == request.get_span_context()
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 201
    missed = spans["GET /v1/jobs/{id}"]
    assert missed.attributes is not None
    assert missed.attributes["http.response.status_code"] == 404
    context = enqueue.get_span_context()
    assert context is not None
    assert f"{context.span_id:016x}" in job["trace"]


def said(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = [one for one in caplog.records if one.name == "tenure.service"]
    entry: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return entry


def test_the_log_says_which_request_and_job_and_nothing_that_is_in_them(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(tokens=[token("s3cret", Scope.PRODUCE)]).as_("s3cret")
    caplog.set_level(logging.DEBUG, "tenure.service")
    job = client.post("/v1/jobs", {"queue": "mail", "payload": "private"})
    entry = said(caplog)
    assert entry["message"] == "POST /v1/jobs: 201"
    assert (entry["job"], entry["status"], entry["token"]) == (job["id"], 201, "s3cret")
    assert entry["request"]
    assert entry["ms"] >= 0
    assert "private" not in json.dumps(entry)


def test_the_log_says_why_a_request_was_refused(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tenure.service")
    client.ask("GET", "/v1/jobs/none")
    entry = said(caplog)
    assert (entry["status"], entry["error"], entry["job"]) == (404, "job_not_found", "none")
    (record,) = caplog.records
    text = TextFormatter().format(record)
    assert f"GET /v1/jobs/none: 404 request={entry['request']} error=job_not_found" in text


def test_requests_are_not_logged_unless_asked_for(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.service")
    client.get("/healthz")
    assert not caplog.records


def test_a_failure_of_the_service_is_logged_with_the_id_that_is_answered(
    client: Client, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_(*details: object, **named: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Calls, "astats", break_)
    asked = client.ask("GET", "/v1/queues")
    assert asked.status == 500
    failure, request = caplog.records
    assert failure.request in asked.json["detail"]  # type: ignore[attr-defined]
    assert "a mistake of ours" in JsonFormatter().format(failure)
    assert request.levelname == "WARNING"


def test_a_worker_writes_its_log_as_json_if_it_is_told_to(tmp_path: Any) -> None:
    (tmp_path / "tasks.py").write_text(
        "import tenure\n"
        f"app = tenure.Tenure('sqlite:///{tmp_path}/jobs.db')\n"
        "@app.task(queue='mail', max_attempts=1)\n"
        "def send(to): raise ValueError('hung up')\n"
        "if __name__ == '__main__': send.using(tenant='acme').enqueue('private')\n"
    )
    for command in (["tasks.py"], ["-m", "tenure", "worker", "tasks:app", "--burst"]):
        ran = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={"PYTHONPATH": ":".join(sys.path), "TENURE_LOG_FORMAT": "json"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    entries = [json.loads(line) for line in ran.stderr.splitlines()]
    (failed,) = [entry for entry in entries if entry["level"] == "error"]
    assert (failed["queue"], failed["kind"], failed["tenant"]) == ("mail", "send", "acme")
    assert failed["job"] in failed["message"]
    assert "private" not in ran.stderr
