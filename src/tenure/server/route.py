"""Routes: their requests, responses and scopes, and how a request is matched to one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import parse_qsl, unquote

import msgspec

from tenure.errors import InvalidInput, TenureError
from tenure.queue import Calls, Store, store_of
from tenure.server.auth import Scope, Token
from tenure.server.exchange import Headers, Receive
from tenure.server.problems import BodyTooLarge, Problem, problem_of, status_of

if TYPE_CHECKING:
    from tenure.server.service import Service

T = TypeVar("T")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Params = dict[str, str]
ANY: Literal["any"] = "any"  # any known token; the guard checks its scopes for each operation


class Reply(msgspec.Struct):
    """A response, already encoded."""

    body: bytes
    status: int = 200
    media_type: str = "application/json"
    headers: dict[str, str] = {}


class Call:
    """A request, as a handler gets it."""

    __slots__ = ("body_size", "headers", "params", "query", "queue", "receive", "service", "token")

    def __init__(
        self,
        service: Service,
        token: Token,
        queue: Calls,
        params: Params,
        query: Params,
        headers: Headers,
        receive: Receive,
    ) -> None:
        self.service: Service = service
        self.token: Token = token
        self.queue: Calls = queue  # limited to what the token may do
        self.params: Params = params  # from the path
        self.query: Params = query
        self.headers: Headers = headers
        self.receive: Receive = receive  # tells when the client disconnects
        self.body_size: int = 0  # bytes

    @property
    def store(self) -> Store:
        """Carries out operations and queries, within the same limits."""
        return store_of(self.queue)

    async def aside(self, size: int, work: Callable[[], T]) -> T:
        """Validate the body, which has this many jobs or operations. If they are many or large, it
        is done in a thread."""
        size += self.body_size // BYTES_PER_JOB
        return await self.service.means.aside(self.token.hash, size, work)

    @property
    def is_over(self) -> bool:
        """Whether to stop waiting: the service is closing, or the token was revoked."""
        service = self.service
        return bool(service.closing.is_set() or not service.tokens.is_current(self.token))


# Of one body. Each value of a list takes up to 300 bytes once it is decoded, so they are counted
# before. One payload of the default size can have fewer.
MAX_OBJECTS, MAX_VALUES = 500_000, 2_000_000
MAX_PARAMETERS = 100  # of a query string: thousands would take tens of milliseconds
BYTES_PER_JOB = 500  # of a body: as many as take as long to validate as a job without a payload

Handler = Callable[..., Awaitable[Any]]
NO_OTHERS: Mapping[int, Any] = MappingProxyType({})
Shown = Callable[[TenureError], Reply]


class Route:
    """A row of the table of routes."""

    def __init__(
        self,
        method: Method,
        path: str,
        handler: Handler,
        *,
        scope: Scope | Literal["any"] | None,
        body: Any = None,
        query: type[msgspec.Struct] | None = None,
        answer: Any = None,
        status: int = 200,
        summary: str = "",
        body_required: bool = True,
        tag: str = "native",
        streams: bool = False,
        described: bool = True,
        takes_key: bool | None = None,
        media_type: str = "application/json",
        others: Mapping[int, Any] = NO_OTHERS,
        show_error: Shown | None = None,
        problem: Any = Problem,
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.scope = scope  # None: no token is needed
        self.body = body
        self.query = query
        self.answer = answer
        self.status = status
        self.summary: str = summary or (handler.__doc__ or "").strip().splitlines()[0]
        self.body_required = body_required
        self.tag = tag
        self.streams = streams
        self.described = described  # in the OpenAPI document
        # Whether the header Idempotency-Key counts: by default, if it may change something.
        is_native = tag == "native" and scope is not None
        self.takes_key: bool = is_native and method != "GET" if takes_key is None else takes_key
        self.media_type = media_type
        self.others = others  # the bodies of other statuses, if not a problem
        self.show_error: Shown = show_error or as_problem
        self.problem = problem
        self.problem_type = "application/json" if show_error else "application/problem+json"
        self._decoder = None if body is None else msgspec.json.Decoder(body)
        self._no_query = None if query is None or _must_be_given(query) else query()
        self._parameters: dict[str, str] = {}  # of the query string -> fields
        if query is not None:
            names = zip(query.__struct_encode_fields__, query.__struct_fields__, strict=True)
            self._parameters = dict(names)

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"

    def read(self, text: bytes) -> Any:
        """Decode the body for the handler; raises InvalidInput."""
        assert self._decoder is not None
        if len(text) > MAX_OBJECTS:
            _check_density(text)
        if not self.body_required and not text.strip():
            text = b"{}"
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as error:
            raise InvalidInput("body", _where(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput("body", f"is not JSON: {error}") from None
        except RecursionError:
            raise InvalidInput("body", "is nested too deeply") from None

    def read_query(self, query: Params) -> Any:
        """Decode the query string for the handler; raises InvalidInput."""
        assert self.query is not None
        if not query and self._no_query is not None:
            return self._no_query
        if self.query.__struct_config__.forbid_unknown_fields:
            for name in query:
                if name not in self._parameters:
                    known = ", ".join(self._parameters)
                    raise InvalidInput(name, f"is not a parameter; the parameters are {known}")
        try:
            value = msgspec.convert(query, self.query, strict=False)
        except (msgspec.ValidationError, OverflowError) as error:
            raise InvalidInput("query", _where(str(error))) from None
        for name in query:
            if name in self._parameters and getattr(value, self._parameters[name]) is None:
                raise InvalidInput(name, "is given, and cannot be null")
        return value

    def write(self, value: Any) -> Reply:
        """Encode what the handler returned."""
        if isinstance(value, Reply):
            return value
        return Reply(b"" if self.status == 204 else encode(value), self.status)


def _check_density(text: bytes) -> None:
    """Raise BodyTooLarge if a body has very many values, wherever they are."""
    if text.count(b"{") > MAX_OBJECTS or text.count(b",") > MAX_VALUES:
        raise BodyTooLarge(
            f"the body has more than {MAX_VALUES:,} values or {MAX_OBJECTS:,} objects; send "
            "several requests"
        )


def _must_be_given(query: type[msgspec.Struct]) -> bool:
    return any(field.required for field in msgspec.structs.fields(query))


encode = msgspec.json.Encoder().encode


def as_problem(error: TenureError) -> Reply:
    """Return an error in the format of the native API."""
    return Reply(encode(problem_of(error)), status_of(error), "application/problem+json")


def _where(text: str) -> str:
    return text.replace(" - at `$.", " at `").replace(" - at `$`", "")


class Table:
    """All routes. Paths are matched before percent-decoding, so that a name in a path may contain
    any character, even a slash."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: list[Route] = list(routes)
        self._exact: dict[tuple[str, str], Route] = {}
        self._shaped: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        for route in self.routes:
            segments = route.path.strip("/").split("/")
            if "{" in route.path:
                self._shaped.setdefault((route.method, len(segments)), []).append((segments, route))
            else:
                self._exact[route.method, route.path] = route

    def find(self, method: str, raw_path: str) -> tuple[Route, Params] | None:
        """Return the route of a request and the parameters in its path, still percent-encoded. A
        HEAD has the route of its GET."""
        if method == "HEAD":
            method = "GET"
        route = self._exact.get((method, raw_path))
        if route is not None:
            return route, {}
        if not raw_path.isascii():
            return None
        given = raw_path.strip("/").split("/")
        for segments, route in self._shaped.get((method, len(given)), ()):
            params = _matched(segments, given)
            if params is not None:
                return route, params
        return None

    def routes_at(self, raw_path: str) -> list[Route]:
        """Return the routes of a path, for all methods."""
        found = [self.find(method, raw_path) for method in get_args(Method)]
        return [one[0] for one in found if one is not None]


def _matched(segments: list[str], given: list[str]) -> Params | None:
    params: Params = {}
    for segment, text in zip(segments, given, strict=True):
        if segment.startswith("{") and text:
            params[segment[1:-1]] = text
        elif segment != text:
            return None
    return params


def names_of(params: Params) -> Params:
    """Decode the parameters of a path; raises InvalidInput."""
    names: Params = {}
    for name, text in params.items():
        try:
            names[name] = unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise InvalidInput(name, "is not UTF-8") from None
    return names


def query_of(raw: bytes) -> Params:
    """Parse a query string; raises InvalidInput."""
    if raw.count(b"&") >= MAX_PARAMETERS:
        raise InvalidInput("query", f"has more than {MAX_PARAMETERS} parameters")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidInput("query", str(error)) from None
    found: Params = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(name, "is given twice")
        found[name] = value
    return found
