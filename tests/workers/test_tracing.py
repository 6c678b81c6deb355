"""Traces: from the call that enqueues a job, through the store, to the task that runs it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tenure import Duplicate, InvalidInput, NewJob, Snooze, Tenure, current_job
from tests.workers.conftest import work_off

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where the spans of this test go; OpenTelemetry itself has one place for the whole process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


@pytest.mark.parametrize("place", ["loop", "thread"])
def test_a_task_runs_in_the_trace_of_whoever_enqueued_it(
    app: Tenure, spans: InMemorySpanExporter, place: str
) -> None:
    tracer = trace.get_tracer("test")

    def work() -> None:
        with tracer.start_as_current_span("inside"):
            pass

    async def awork() -> None:
        work()

    task = app.task(queue="mail", name="send")(awork if place == "loop" else work)
    with tracer.start_as_current_span("request") as request:
        handle = task.using(tenant="acme").enqueue()
    work_off(app)

    enqueue, run = named(spans, "enqueue mail"), named(spans, "run send")
    inside = named(spans, "inside")
    assert parent_of(enqueue) == request.get_span_context().span_id
    assert parent_of(run) == id_of(enqueue)
    assert parent_of(inside) == id_of(run)
    assert trace_of(run) == trace_of(inside) == request.get_span_context().trace_id
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert run.attributes is not None
    assert run.attributes["messaging.message.id"] == handle.id
    assert run.attributes["messaging.destination.name"] == "mail"
    assert (run.attributes["tenure.tenant"], run.attributes["tenure.attempt"]) == ("acme", 1)


def test_what_a_task_enqueues_is_in_its_trace(app: Tenure, spans: InMemorySpanExporter) -> None:
    @app.task(queue="mail")
    async def second() -> None: ...

    @app.task(queue="mail")
    async def first() -> None:
        await second.aenqueue()

    first.enqueue()
    work_off(app)

    runs = [named(spans, "run first"), named(spans, "run second")]
    assert trace_of(runs[0]) == trace_of(runs[1])


def test_an_error_is_noted_and_an_outcome_is_none(app: Tenure, spans: InMemorySpanExporter) -> None:
    @app.task(queue="mail", max_attempts=1)
    def fails() -> None:
        raise ValueError("no such address")

    @app.task(queue="mail")
    async def later() -> None:
        raise Snooze(3600)

    fails.enqueue()
    later.enqueue()
    work_off(app)

    failed, snoozed = named(spans, "run fails"), named(spans, "run later")
    assert (failed.status.status_code, failed.status.description) == (
        StatusCode.ERROR,
        "no such address",
    )
    assert [event.name for event in failed.events] == ["exception"]
    assert snoozed.status.status_code == StatusCode.UNSET
    assert snoozed.attributes is not None
    assert snoozed.attributes["tenure.outcome"] == "snooze"


def test_a_suspended_run_is_no_error(app: Tenure, spans: InMemorySpanExporter) -> None:
    @app.task
    async def waits() -> None:
        await current_job().wait_for("approval")

    waits.enqueue()
    work_off(app)

    run = named(spans, "run waits")
    assert run.status.status_code == StatusCode.UNSET
    assert run.events == ()
    assert run.attributes is not None
    assert run.attributes["tenure.outcome"] == "suspended"


def test_many_jobs_of_one_call_share_a_span(app: Tenure, spans: InMemorySpanExporter) -> None:
    app.queue.enqueue_many([NewJob(queue="mail"), NewJob(queue="mail"), NewJob(queue="web")])
    (span,) = spans.get_finished_spans()
    assert span.name == "enqueue (several)"
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    assert len({job.trace for job in app.queue.jobs().jobs}) == 1


def test_a_trace_that_is_given_is_kept(app: Tenure, spans: InMemorySpanExporter) -> None:
    assert app.queue.enqueue("mail", trace=GIVEN).trace == GIVEN


def test_a_call_that_is_refused_is_an_error(app: Tenure, spans: InMemorySpanExporter) -> None:
    app.queue.enqueue("mail", id="a")
    with pytest.raises(Duplicate):
        app.queue.enqueue("mail", id="a")
    assert [span.status.status_code for span in spans.get_finished_spans()] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


@pytest.mark.parametrize("job", [NewJob(queue=[]), NewJob(queue=None), 7])  # type: ignore[arg-type]
def test_a_job_that_cannot_be_is_refused_as_without_traces(
    app: Tenure, spans: InMemorySpanExporter, job: Any
) -> None:
    with pytest.raises(InvalidInput):
        app.queue.enqueue_many([job])


def test_what_follows_an_ack_is_in_the_trace_of_the_task(
    app: Tenure, spans: InMemorySpanExporter
) -> None:
    queue = app.queue
    queue.enqueue("mail")
    (job,) = queue.claim("mail")
    with trace.get_tracer("test").start_as_current_span("by hand") as span:
        queue.ack(job, then=[NewJob(queue="web")])
    (then,) = queue.claim("web")
    assert then.trace is not None
    assert f"{span.get_span_context().trace_id:032x}" in then.trace


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    program = (
        "import sys, tenure\n"
        "q = tenure.connect('memory://')\n"
        "assert q.enqueue('mail').trace is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_interface_without_an_sdk_makes_no_trace(app: Tenure, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert app.queue.enqueue("mail").trace is None


def test_tasks_that_run_at_once_do_not_mix_their_traces(
    app: Tenure, spans: InMemorySpanExporter
) -> None:
    seen: dict[int, int] = {}

    @app.task(queue="mail")
    async def work(n: int) -> None:
        await asyncio.sleep(0.01)
        seen[n] = trace.get_current_span().get_span_context().trace_id

    handles = [work.enqueue(n) for n in range(20)]
    work_off(app)
    for n, handle in enumerate(handles):
        carried = app.queue.get(handle.id).trace
        assert carried is not None
        assert f"{seen[n]:032x}" in carried
