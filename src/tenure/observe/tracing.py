"""Tracing, from the call that enqueues a job to the handler that runs it.

A job carries a W3C `traceparent` in its field `trace`. Spans are created with OpenTelemetry if the
program has imported it; otherwise tracing does nothing, and imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tenure.model.job import Job, NewJob

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.trace import Span

_NO_TRACE: AbstractContextManager[str | None] = nullcontext()
_NO_SPAN: AbstractContextManager[Span | None] = nullcontext()

# The traceparent of the current request, for services that do not create spans.
CARRIED: ContextVar[str] = ContextVar("tenure_trace", default="")


def current_trace() -> str | None:
    """The traceparent for jobs enqueued here, if any."""
    api = _api()
    span = None if api is None else api.get_current_span()
    return (None if span is None else _trace_of(span)) or CARRIED.get() or None


def sending(jobs: Sequence[NewJob]) -> AbstractContextManager[str | None]:
    """A span for an enqueue call; yields the traceparent for its jobs."""
    return _NO_TRACE if _api() is None else _sending(jobs)


def working(
    job: Job, handler: str, no_errors: tuple[type[BaseException], ...]
) -> AbstractContextManager[Span | None]:
    """A span for a handler, in the trace of the call that enqueued its job."""
    return _NO_SPAN if _api() is None else _working(job, handler, no_errors)


def serving(method: str, route: str, trace: str) -> AbstractContextManager[Span | None]:
    """A span for a request, in the trace of its traceparent, if any."""
    return _NO_SPAN if _api() is None else _serving(method, route, trace)


def _api() -> Any:
    return sys.modules.get("opentelemetry.trace")


def _tracer() -> trace.Tracer:
    tracer: trace.Tracer = _api().get_tracer("tenure")
    return tracer


def _trace_of(span: Span) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _parent(text: str | None) -> Any:
    """A context with the span of another process as its parent."""
    api = _api()
    if not text:
        return None
    _, trace_id, span_id, flags = text.split("-")
    context = api.SpanContext(
        int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16))
    )
    return api.set_span_in_context(api.NonRecordingSpan(context))


@contextmanager
def _sending(jobs: Sequence[NewJob]) -> Iterator[str | None]:
    queues = [str(getattr(new, "queue", "")) for new in jobs]  # not validated yet
    queue = queues[0] if all(one == queues[0] for one in queues) else "(several)"
    attributes: dict[str, Any] = {
        "messaging.system": "tenure",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": queue,
    }
    if len(jobs) != 1:
        attributes["messaging.batch.message_count"] = len(jobs)
    # Not made the current span: the call may be a generator, and other code runs between its steps.
    span = _tracer().start_span(
        f"enqueue {queue}", kind=_api().SpanKind.PRODUCER, attributes=attributes
    )
    try:
        yield _trace_of(span) or CARRIED.get() or None
    except Exception as error:
        _note(span, error)
        raise
    finally:
        span.end()


@contextmanager
def _working(
    job: Job, handler: str, no_errors: tuple[type[BaseException], ...]
) -> Iterator[Span | None]:
    attributes: dict[str, Any] = {
        "messaging.system": "tenure",
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "messaging.consumer.name": job.worker,
        "tenure.kind": job.kind,
        "tenure.tenant": job.tenant,
        "tenure.attempt": job.attempts,
    }
    with _tracer().start_as_current_span(
        f"run {handler}",
        context=_parent(job.trace),
        kind=_api().SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except no_errors as outcome:
            span.set_attribute("tenure.outcome", type(outcome).__name__.lower())
            raise
        except BaseException as error:
            _note(span, error)
            raise


@contextmanager
def _serving(method: str, route: str, trace: str) -> Iterator[Span | None]:
    attributes = {"http.request.method": method, "http.route": route}
    with _tracer().start_as_current_span(
        f"{method} {route}",
        context=_parent(trace),
        kind=_api().SpanKind.SERVER,
        attributes=attributes,
    ) as span:
        yield span


def _note(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(_api().Status(_api().StatusCode.ERROR, str(error)[:200]))
