"""Runs the service on a port until it is stopped, along with schedules and maintenance."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from tenure.observe.metrics import Metrics, measured
from tenure.server.about import About
from tenure.server.auth import Tokens
from tenure.server.connections import Connections
from tenure.server.http_server import HttpServer
from tenure.server.mdns import announced
from tenure.server.routes import make_app
from tenure.server.service import Service
from tenure.server.sockets import listeners, tls_context
from tenure.settings import without_secrets
from tenure.tasks.app import Tenure
from tenure.worker.scheduler import Scheduler
from tenure.worker.shutdown import ensure_exit, give_back_at_once, told_to_stop
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.service")

GRACE_SECONDS = 10  # for open requests to finish when the service stops
# A commit releases the GIL at each statement. While the event loop is busy, the commit gets it back
# only after Python's switch interval, by default 5 ms, each time. Much shorter intervals than this
# cost more than they save.
SWITCH_SECONDS = 0.0005
OTHER_FILES = 128  # open files besides connections


def serve_until_signal(
    app: Tenure,
    tokens: Tokens,
    dialects: Iterable[str],
    *,
    works: bool,
    tenants: bool,
    allowed_hosts: Iterable[str] | None,
    d1_max_attempts: int | None,
    about: About,
    redact: Iterable[str],
    **options: Any,
) -> None:
    """Serve the store of an app until a signal arrives.

    works: also run the tasks of the app.
    tenants: collect metrics for each tenant.
    allowed_hosts: the host names that requests may use; None allows any.
    d1_max_attempts: attempts of the jobs of the d1 dialect; None for no limit.
    about: what the dashboard shows about this service.
    redact: names of fields of payloads and results that are hidden from all who read jobs.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    metrics = Metrics(tenants=tenants)
    app.move_to(None, wrap=partial(measured, metrics))
    service = make_app(
        app.queue,
        tokens=tokens,
        dialects=dialects,
        metrics=metrics,
        allowed_hosts=allowed_hosts,
        d1_max_attempts=d1_max_attempts,
        about=about,
        redact=redact,
    )
    options["known_as"] = _known_as(options["host"], allowed_hosts)
    worker = app.worker() if works else None
    # Modules stay loaded, and requests are freed without the collector, so run it less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    left = threading.Event()
    try:
        with asyncio.Runner(loop_factory=_fast_loop()) as loop:
            loop.run(_serve(service, worker, left, **options))
    finally:
        left.set()


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Use uvloop if it is installed: it takes half the time."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def _known_as(host: str, allowed: Iterable[str] | None) -> str:
    """A host name that clients can use."""
    names = None if allowed is None else list(allowed)
    return host if names is None or host in names else names[0]


async def _serve(
    service: Service,
    worker: Worker | None,
    left: threading.Event,
    *,
    host: str,
    known_as: str,
    port: int,
    certfile: str | None,
    keyfile: str | None,
    mdns: bool,
    max_connections: int,
) -> None:
    tls = tls_context(certfile, keyfile)
    sockets = listeners(host, port)
    port = sockets[0].getsockname()[1]
    server = HttpServer(service, Connections(_affordable(max_connections)))
    stopping = asyncio.Event()
    with _stopping_on_signals(service, stopping, worker, left):
        async with AsyncExitStack() as stack:
            stack.callback(service.close)
            await stack.enter_async_context(_with_upkeep(service, worker))
            if mdns:
                addresses = [one.getsockname()[0] for one in sockets]
                await stack.enter_async_context(announced(addresses, port))
            await server.start(sockets, tls)
            _log_address(service, known_as, port, tls)
            await stopping.wait()
            await server.stop(GRACE_SECONDS)


def _log_address(service: Service, known_as: str, port: int, tls: ssl.SSLContext | None) -> None:
    shown = f"[{known_as}]" if ":" in known_as else known_as
    here = f"{'http' if tls is None else 'https'}://{shown}:{port}"
    log.info("serving %s on %s", without_secrets(service.queue.settings.url), here)
    log.info("the dashboard: %s/ - the API: %s/docs - metrics: %s/metrics", here, here, here)
    token = "TENURE_TOKEN=... " if service.tokens.required else ""
    log.info("or in another terminal: %stenure --url %s stats", token, here)


def _affordable(connections: int) -> int:
    """Raise the limit on open files for this many connections. Returns how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            connections = max(1, soft - OTHER_FILES)
            log.warning("at most %d connections: the process may open %d files", connections, soft)
    return connections


@contextmanager
def _stopping_on_signals(
    service: Service, stopping: asyncio.Event, worker: Worker | None, left: threading.Event
) -> Iterator[None]:
    """Stop gracefully at the first signal, and at once at the second."""
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def stop() -> None:
        stopping.set()
        if worker is not None:
            worker.stop_soon()
        service.finish()

    def gracefully() -> None:
        log.info("stopping: finishing open requests; a second signal aborts")
        loop.call_soon_threadsafe(stop)
        if worker is not None:
            ensure_exit(worker, stopped, left, GRACE_SECONDS)

    def at_once() -> None:
        log.warning("aborting: open requests are dropped")
        if worker is not None:
            give_back_at_once(worker)

    with told_to_stop(gracefully, at_once):
        yield
        stopped.set()


@asynccontextmanager
async def _with_upkeep(service: Service, worker: Worker | None) -> AsyncIterator[None]:
    """Run schedules and maintenance, in the workers of an app or in a scheduler of our own."""
    if worker is not None:
        await worker.start()
        try:
            yield
        finally:
            await worker.stop()
        return
    scheduler = Scheduler(service.queue, f"service-{os.getpid()}")
    scheduler.start()
    try:
        yield
    finally:
        await asyncio.to_thread(scheduler.stop)
