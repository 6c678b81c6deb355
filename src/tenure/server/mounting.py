"""The service as a part of another application."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tenure.engines.remote import is_loopback
from tenure.errors import Forbidden
from tenure.queue import Queue, connect
from tenure.server.about import About
from tenure.server.auth import LOOPBACK, Tokens
from tenure.server.exchange import Message, Receive, Send
from tenure.server.route import as_problem
from tenure.server.routes import make_app
from tenure.server.service import Service
from tenure.server.token_file import tokens_of

NO_TOKENS = Forbidden(
    "no tokens are set: create one with `tenure token create`, and name its file as `tokens`; or, "
    "on a machine for development, set open_on_loopback=True"
)


class Mounted:
    """An ASGI application that serves a store, opened with the first request. It may be mounted at
    any path (`root_path`); all links of its pages are relative."""

    def __init__(
        self, store: Queue | str, tokens: Tokens, *, open_on_loopback: bool, **options: Any
    ) -> None:
        """options: those of `make_app`."""
        self._store = store
        self._tokens = tokens
        self._is_open = open_on_loopback
        self._options = options
        self._service: Service | None = None

    def service(self) -> Service:
        """The service, which is made when it is first needed: then there is an event loop."""
        if self._service is None:
            store = self._store
            queue = connect(store) if isinstance(store, str) else store
            self._service = make_app(queue, tokens=self._tokens, **self._options)
            if isinstance(store, str):
                atexit.register(queue.close)
        return self._service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._serves(scope):
            reply = as_problem(NO_TOKENS)
            headers = [(b"content-type", reply.media_type.encode())]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
        else:
            await self.service()(scope, receive, send)

    def _serves(self, scope: Message) -> bool:
        client = scope.get("client")
        is_near = client is not None and is_loopback(client[0])
        return self._tokens.required or (self._is_open and is_near)


def mounted(
    store: Queue | str,
    tokens: Tokens | Path | str | None = None,
    *,
    open_on_loopback: bool = False,
    allowed_hosts: Iterable[str] | None = None,
    environment: str = "",
    banner: str = "",
    redact: Iterable[str] = (),
) -> Mounted:
    """Return the application; see `tenure.server.asgi`."""
    if not isinstance(tokens, Tokens):
        path = None if tokens is None else Path(tokens)
        tokens = tokens_of(path, os.environ)
    if allowed_hosts is None and not tokens.required:
        allowed_hosts = LOOPBACK
    return Mounted(
        store,
        tokens,
        open_on_loopback=open_on_loopback,
        allowed_hosts=allowed_hosts,
        about=About(environment, banner),
        redact=redact,
    )
