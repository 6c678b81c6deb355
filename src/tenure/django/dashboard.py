"""The view that serves the dashboard and its API to the staff of a Django project.

The service needs one event loop, and Django may run a view in any: under WSGI, each request has a
loop of its own. So the service runs in a thread, and a view waits for its response.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from tenure.django.framework import task_backends
from tenure.errors import Forbidden
from tenure.queue import Queue
from tenure.server.about import About
from tenure.server.auth import Scope, Token, Tokens, hash_of
from tenure.server.exchange import Headers
from tenure.server.problems import NoSuchRoute
from tenure.server.route import as_problem
from tenure.server.routes import make_app
from tenure.server.service import Service

USER, MAY_CHANGE = b"x-tenure-user", b"x-tenure-may-change"  # set by the view alone
OURS = {USER, MAY_CHANGE}
# They would keep a worker of Django busy. The pages work without them.
TOO_LONG = ("v1/changes", "v1/events")


class Users(Tokens):
    """Users of Django as tokens: staff may read, superusers may do everything."""

    def __init__(self) -> None:
        super().__init__(required=True)

    def of(self, headers: Headers, address: str | None) -> Token:
        name = unquote(headers.get(USER) or "")
        scope = Scope.ADMIN if headers.get(MAY_CHANGE) else Scope.READ
        return Token(name, hash_of(f"{scope} {name}"), (scope,))

    def is_current(self, token: Token) -> bool:
        return True


class Bridge:
    """The service of this process, and the thread that it runs in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, daemon=True, name="tenure-dashboard").start()
            return self._loop

    async def ask(self, queue: Queue, scope: dict[str, Any], body: bytes) -> HttpResponse:
        """Have the service respond, from any event loop."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(queue, scope, body), self._running())
        return await asyncio.wrap_future(asked)

    async def _ask(self, queue: Queue, scope: dict[str, Any], body: bytes) -> HttpResponse:
        if self._service is None or self._service.queue is not queue:
            self._service = _service(queue)
        response = HttpResponse()
        unread = [body]

        async def receive() -> dict[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            await asyncio.Event().wait()  # Django does not report when a client leaves
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                response.status_code = message["status"]
                for name, value in message["headers"]:
                    if name not in (b"content-length", b"connection"):
                        response[name.decode()] = value.decode("latin-1")
            else:
                response.write(message.get("body", b""))

        await self._service(scope, receive, send)
        return response


def _service(queue: Queue) -> Service:
    options = getattr(settings, "TENURE_DASHBOARD", {})
    about = About(options.get("ENVIRONMENT", ""), options.get("BANNER", ""))
    return make_app(queue, tokens=Users(), about=about, redact=options.get("REDACT", ()))


BRIDGE = Bridge()


@csrf_exempt  # the service rejects what pages of other sites send
async def dashboard(request: HttpRequest, path: str) -> HttpResponse:
    """Serve the dashboard to staff. Superusers may change things."""
    user = await request.auser()
    if not user.is_active or not user.is_staff:
        if path == "" and not user.is_authenticated:
            # As `redirect_to_login` does, which needs the models of django.contrib.auth.
            login = f"{_login_page()}?next={quote(request.get_full_path())}"
            return HttpResponseRedirect(login)
        return _problem(as_problem(Forbidden("the dashboard is for staff of this site")))
    if path in TOO_LONG:
        return _problem(as_problem(NoSuchRoute("this is not offered below Django")))
    alias = getattr(settings, "TENURE_DASHBOARD", {}).get("BACKEND", "default")
    queue = await asyncio.to_thread(lambda: task_backends[alias].queue)
    return await BRIDGE.ask(queue, _scope(request, path, user), request.body)


def _login_page() -> str:
    """The page that LOGIN_URL names. Its default does not exist in most projects: then that of the
    admin site, where staff sign in."""
    if not settings.is_overridden("LOGIN_URL"):
        with suppress(NoReverseMatch):
            return str(reverse("admin:login"))
    return str(resolve_url(settings.LOGIN_URL))


def _problem(reply: Any) -> HttpResponse:
    return HttpResponse(reply.body, status=reply.status, content_type=reply.media_type)


def _scope(request: HttpRequest, path: str, user: Any) -> dict[str, Any]:
    """The request as ASGI describes it."""
    given = {name.lower().encode(): str(value) for name, value in request.headers.items()}
    headers = [(name, value.encode("latin-1")) for name, value in given.items() if name not in OURS]
    headers = [(name, value) for name, value in headers if name != b"host"]
    headers.append((b"host", request.get_host().encode()))  # as Django sees it behind a proxy
    headers.append((USER, quote(user.get_username()).encode()))  # a header is latin-1
    if user.is_superuser:
        headers.append((MAY_CHANGE, b"yes"))
    return {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": _raw_path(request),
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": headers,
        "client": None,
    }


def _raw_path(request: HttpRequest) -> bytes | None:
    """The path as it was sent, if the server provides it. An encoded slash is part of a name."""
    scope = getattr(request, "scope", None)
    if scope is not None:
        raw: bytes | None = scope.get("raw_path")
        return raw
    for name in ("RAW_URI", "REQUEST_URI"):
        if request.META.get(name, "").startswith("/"):
            return str(request.META[name]).encode("latin-1")
    return None
