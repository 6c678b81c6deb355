"""The application: the table of all routes, over one queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tenure.errors import Forbidden, InvalidInput
from tenure.observe.metrics import Metrics
from tenure.queue import Queue
from tenure.server import events, native
from tenure.server.auth import Scope, Tokens
from tenure.server.dialects import NAMES, d1, evekill, firecrawl, queuey
from tenure.server.route import Call, Reply, Route, encode
from tenure.server.service import Service

log = logging.getLogger("tenure.service")

DIALECTS: dict[str, Callable[[], list[Route]]] = dict(
    zip(NAMES, (firecrawl.routes, d1.routes, queuey.routes, evekill.routes), strict=True)
)


class Health(msgspec.Struct):
    status: str


async def healthz(call: Call) -> Health:
    """Whether the process lives."""
    return Health("ok")


async def readyz(call: Call) -> Reply:
    """Whether the store answers."""
    trouble = await call.service.pulse.trouble()
    if trouble is None:
        return Reply(encode(Health("ok")))
    log.warning("the store is away: %s", trouble)
    # Where tokens are needed, strangers are not told what the store says.
    text = "the store is away" if call.service.tokens.required else f"the store is away: {trouble}"
    return Reply(encode(Health(text)), 503)


async def metrics(call: Call) -> Reply:
    """What happens here, as Prometheus reads it."""
    if call.token.queues is not None or call.token.tenants is not None:
        raise Forbidden("the figures are of all queues and tenants, and this token is not")
    text = await call.service.metrics.text(call.service.queue)
    return Reply(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def document(call: Call) -> Reply:
    """This description."""
    return call.service.description[0]


async def docs(call: Call) -> Reply:
    """This description, for people."""
    return call.service.description[1]


COMMON = [
    Route("GET", "/healthz", healthz, scope=None, answer=Health, tag="health"),
    Route("GET", "/readyz", readyz, scope=None, answer=Health, others={503: Health},
          tag="health"),
    Route("GET", "/metrics", metrics, scope=Scope.READ, answer=str, media_type="text/plain",
          tag="health"),
    Route("GET", "/openapi.json", document, scope=None, answer=dict[str, Any], tag="health"),
    Route("GET", "/docs", docs, scope=None, answer=str, media_type="text/html", tag="health"),
]  # fmt: skip


def routes_of(dialects: Iterable[str]) -> list[Route]:
    """The table of routes, with those of the dialects that are wanted."""
    routes = [*COMMON, *native.ROUTES, *events.ROUTES]
    for name in dialects:
        if name not in DIALECTS:
            raise InvalidInput("dialects", f"{name!r} is not one of {', '.join(DIALECTS)}")
        routes += DIALECTS[name]()
    return routes


def make_app(
    queue: Queue,
    *,
    tokens: Tokens | None = None,
    dialects: Iterable[str] = (),
    metrics: Metrics | None = None,
    allowed_hosts: Iterable[str] | None = None,
) -> Service:
    """The ASGI application. metrics: what the queue was opened with, if it is measured.
    allowed_hosts: the host names under which it may be reached; any, if they are not given."""
    return Service(
        queue,
        routes_of(dialects),
        Tokens() if tokens is None else tokens,
        metrics or Metrics(),
        allowed_hosts=allowed_hosts,
    )
