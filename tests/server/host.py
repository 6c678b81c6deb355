"""A real HTTP server in this process, which serves many services, each under a name of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn

import tenure
from tenure.server.routes import make_app
from tenure.server.service import Service
from tenure.testing import ManualClock

PATIENCE = 30.0


class Host:
    """uvicorn in a thread, on a free port of this machine."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        # Said to be TCP, or asyncio does not send small pieces at once.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._serve, interface="asgi3", log_level="warning", lifespan="off", access_log=False
        )
        self._server = uvicorn.Server(config)
        started = threading.Event()

        def run() -> None:
            async def main() -> None:
                asyncio.get_running_loop().call_soon(started.set)
                await self._server.serve([listener])

            asyncio.run(main())

        threading.Thread(target=run, daemon=True, name="host").start()
        assert started.wait(PATIENCE)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """The first part of the path says which service."""
        _, name, rest = scope["raw_path"].split(b"/", 2)
        inner = dict(scope, raw_path=b"/" + rest, path="/" + rest.decode("latin-1"))
        await self.services[name.decode()](inner, receive, send)


@cache
def host() -> Host:
    """One for all tests of a process."""
    return Host()


_open: dict[Path, tuple[str, tenure.Queue]] = {}


def serve(folder: Path, clock: ManualClock) -> str:
    """The URL of a service of a test that has this folder to itself."""
    if folder not in _open:
        queue = tenure.connect("memory://", clock=clock)
        name = str(len(host().services))
        host().services[name] = make_app(queue)
        _open[folder] = (name, queue)
    return f"{host().url}/{_open[folder][0]}"


def close(folder: Path) -> None:
    """End a service."""
    if folder in _open:
        name, queue = _open.pop(folder)
        host().services.pop(name).news.close()
        queue.close()


Serve = Callable[[Path, ManualClock], str]
