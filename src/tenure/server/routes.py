"""The table of all routes, and the ASGI application that serves them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tenure.errors import Forbidden, InvalidInput
from tenure.features import parts
from tenure.observe.metrics import Metrics
from tenure.queue import Queue
from tenure.server import (
    about,
    events,
    job_routes,
    native,
    query_routes,
    schedule_switch,
    search_box,
    static_files,
)
from tenure.server.about import About
from tenure.server.auth import Scope, Tokens
from tenure.server.dialects import NAMES, d1, evekill, firecrawl, queuey
from tenure.server.redaction import Redaction
from tenure.server.route import Call, Reply, Route, encode
from tenure.server.service import Service

log = logging.getLogger("tenure.service")

DIALECTS: dict[str, Callable[[], list[Route]]] = dict(
    zip(NAMES, (firecrawl.routes, d1.routes, queuey.routes, evekill.routes), strict=True)
)


class Health(msgspec.Struct):
    status: str


async def healthz(call: Call) -> Health:
    """Check that the process is alive."""
    return Health("ok")


async def readyz(call: Call) -> Reply:
    """Check that the store responds."""
    trouble = await call.service.pulse.trouble()
    if trouble is None:
        return Reply(encode(Health("ok")))
    log.warning("the store is away: %s", trouble)
    # This route needs no token. If the service requires one, do not reveal the store's error here.
    text = "the store is away" if call.service.tokens.required else f"the store is away: {trouble}"
    return Reply(encode(Health(text)), 503)


async def metrics(call: Call) -> Reply:
    """Get metrics in the Prometheus text format."""
    if call.token.queues is not None or call.token.tenants is not None:
        raise Forbidden("metrics cover all queues and tenants, but this token is bound to some")
    text = await call.service.metrics.text(call.queue)
    return Reply(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def document(call: Call) -> Reply:
    """Get this description as an OpenAPI document."""
    return call.service.description()[0]


async def docs(call: Call) -> Reply:
    """Get this description as an HTML page."""
    return call.service.description()[1]


async def dialect_document(call: Call) -> Reply:
    """Get the description of a dialect as an OpenAPI document."""
    return call.service.description(call.params["dialect"])[0]


async def dialect_docs(call: Call) -> Reply:
    """Get the description of a dialect as an HTML page."""
    return call.service.description(call.params["dialect"])[1]


COMMON = [
    Route("GET", "/healthz", healthz, scope=None, answer=Health, tag="health"),
    Route("GET", "/readyz", readyz, scope=None, answer=Health, others={503: Health},
          tag="health"),
    Route("GET", "/metrics", metrics, scope=Scope.READ, answer=str, media_type="text/plain",
          tag="health"),
    Route("GET", "/openapi.json", document, scope=None, answer=dict[str, Any], tag="health"),
    Route("GET", "/docs", docs, scope=None, answer=str, media_type="text/html", tag="health"),
    Route("GET", "/docs/{dialect}", dialect_docs, scope=None, answer=str, media_type="text/html",
          tag="health"),
    Route("GET", "/docs/{dialect}/openapi.json", dialect_document, scope=None,
          answer=dict[str, Any], tag="health"),
]  # fmt: skip


def routes_of(dialects: Iterable[str], d1_max_attempts: int | None = None) -> list[Route]:
    """Return all routes, including those of the given dialects."""
    routes = [*COMMON, *static_files.ROUTES, *native.ROUTES, *query_routes.ROUTES]
    routes += [
        *events.ROUTES,
        *about.ROUTES,
        *job_routes.ROUTES,
        *search_box.ROUTES,
        *schedule_switch.ROUTES,
    ]
    for feature in parts("routes"):
        routes += feature.ROUTES
    for name in dialects:
        if name not in DIALECTS:
            raise InvalidInput("dialects", f"{name!r} is not one of {', '.join(DIALECTS)}")
        routes += d1.routes(max_attempts=d1_max_attempts) if name == "d1" else DIALECTS[name]()
    return routes


def make_app(
    queue: Queue,
    *,
    tokens: Tokens | None = None,
    dialects: Iterable[str] = (),
    metrics: Metrics | None = None,
    allowed_hosts: Iterable[str] | None = None,
    d1_max_attempts: int | None = None,
    about: About | None = None,
    redact: Iterable[str] = (),
) -> Service:
    """Make the ASGI application.

    metrics: the metrics that the queue was opened with, if any.
    allowed_hosts: the host names that requests may use; None allows any.
    d1_max_attempts: attempts of the jobs of the d1 dialect; None for no limit.
    about: what the dashboard shows about this service.
    redact: names of fields of payloads and results that are hidden from all who read jobs.
    """
    return Service(
        queue,
        routes_of(dialects, d1_max_attempts),
        Tokens() if tokens is None else tokens,
        metrics or Metrics(),
        allowed_hosts=allowed_hosts,
        about=about,
        redaction=Redaction(redact),
    )
