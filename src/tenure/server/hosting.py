"""A service on a port, until it is told to stop; with what looks after the store beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from tenure.app import Tenure
from tenure.metrics import Metrics, measured
from tenure.scheduler import Scheduler
from tenure.server.app import make_app
from tenure.server.auth import Tokens
from tenure.server.mdns import announced
from tenure.server.service import Service

log = logging.getLogger("tenure.service")

GRACE_SECONDS = 30


def host_until_told(
    app: Tenure, tokens: Tokens, dialects: Iterable[str], *, works: bool, **options: Any
) -> None:
    """Serve the store of an app until a signal comes. works: run its tasks, too."""
    metrics = Metrics()
    app.move_to(None, wrap=partial(measured, metrics))
    service = make_app(app.queue, tokens=tokens, dialects=dialects, metrics=metrics)
    asyncio.run(_serve(service, app if works else None, **options))


async def _serve(
    service: Service,
    tasks: Tenure | None,
    host: str,
    port: int,
    certfile: str | None,
    keyfile: str | None,
    mdns: bool,
) -> None:
    config = uvicorn.Config(
        service,
        host=host,
        port=port,
        interface="asgi3",
        log_config=None,
        access_log=False,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
    server = _Server(config)
    server.service = service
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_looked_after(service, tasks))
        if mdns:
            await stack.enter_async_context(announced(port))
        scheme = "https" if certfile else "http"
        log.info("serving %s on %s://%s:%s", service.queue.settings.url, scheme, host, port)
        await server.serve()


class _Server(uvicorn.Server):
    """A server that ends long requests first when it is told to stop."""

    service: Service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.closing.set()
        super().handle_exit(sig, frame)


@asynccontextmanager
async def _looked_after(service: Service, tasks: Tenure | None) -> AsyncIterator[None]:
    """Schedules and upkeep, by the workers of an app or alone."""
    if tasks is not None:
        async with tasks.lifespan():
            yield
        return
    scheduler = Scheduler(service.queue, f"service-{os.getpid()}")
    scheduler.start()
    try:
        yield
    finally:
        await asyncio.to_thread(scheduler.stop)
