"""The service over HTTP: `tenure serve`, or `asgi` to mount it in an application of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.queue import Queue
    from tenure.server.auth import Tokens
    from tenure.server.mounting import Mounted


def asgi(
    store: Queue | str, *, tokens: Tokens | Path | str | None = None, **options: Any
) -> Mounted:
    """Return the dashboard and the API as an ASGI application, to be mounted at any path:

        app.mount("/tenure", tenure.server.asgi("sqlite:///jobs.db", tokens="tenure-tokens.json"))

    store: a queue, or the URL of one, which is opened with the first request.
    tokens: the file that `tenure token create` writes. Without it, requests are rejected, unless
    `open_on_loopback=True` allows everything to clients on this machine. Do not set that behind a
    proxy: all its clients would seem to be on this machine.
    options: `open_on_loopback`, and `allowed_hosts`, `environment`, `banner` and `redact` as in
    `tenure serve`.
    """
    # Imported here, because the command line imports this package without what a service needs.
    from tenure.server.mounting import mounted

    return mounted(store, tokens, **options)


__all__ = ["asgi"]
