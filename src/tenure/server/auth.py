"""Who sends a request, and what they may do: tokens, and protection against forged requests.

A browser sends requests on behalf of any page. Without tokens, a page that reaches the service
could do everything, so requests for unknown host names (DNS rebinding) and writes that come from
another site are rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from tenure.errors import Forbidden, Unauthorized
from tenure.server.exchange import Headers
from tenure.server.problems import Misdirected, UnsupportedMedia

ANONYMOUS = "(anonymous)"
# A request with one of these came through a proxy, so the address of its sender is not known.
FORWARDED = (
    *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    *(b"x-real-ip", b"cf-connecting-ip", b"true-client-ip"),
)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE = frozenset({"same-origin", "none"})  # "none": typed by the user, not sent by a page


class Scope(StrEnum):
    """What a token may do."""

    PRODUCE = "produce"
    WORK = "work"
    READ = "read"
    MAINTAIN = "maintain"  # only the maintenance calls of a dialect, on its own queue
    ADMIN = "admin"  # includes all others


class Token(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stored token. Only the hash of its secret is kept."""

    name: str
    hash: str
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...] | None = None  # None: all
    tenants: tuple[str, ...] | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def own_ids(self, queue: str, tenant: str) -> str:
        """The prefix of the ids that a bound token may choose. Names are escaped, so that no two
        tenants or queues share a prefix."""
        return f"@{_escaped(queue)}/" if self.tenants is None else f"{_escaped(tenant)}/"

    @property
    def is_anonymous(self) -> bool:
        """Whether it stands for clients that have no token."""
        return self.hash == ANONYMOUS

    @property
    def is_bound(self) -> bool:
        """Whether it is limited to some queues or tenants."""
        return self.queues is not None or self.tenants is not None


EVERYTHING = Token("(no tokens are set)", "", (Scope.ADMIN,))


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("@", "%40")


def is_forwarded(headers: Headers) -> bool:
    """Whether a request came through a proxy that says so."""
    return any(headers.get(name) is not None for name in FORWARDED)


def hash_of(secret: str) -> str:
    """Hash a secret. It has 256 random bits, so an unsalted fast hash is safe."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Guests(Protocol):
    """Clients without a token that are let in."""

    token: Token

    def admit(self, address: str | None, headers: Headers) -> bool:
        """Whether to let in a client at this address."""


class Tokens:
    """The known tokens. If they are not required, every client may do everything."""

    def __init__(
        self,
        tokens: Iterable[Token] = (),
        *,
        required: bool | None = None,
        guests: Guests | None = None,
    ) -> None:
        """required: by default, whether there are any tokens. guests: clients that need none."""
        self._by_hash = {token.hash: token for token in tokens}
        self.required: bool = bool(self._by_hash or guests) if required is None else required
        self.guests: Guests | None = guests

    def of(self, headers: Headers, address: str | None) -> Token:
        """Return the token of a request from this address; raises Unauthorized."""
        if not self.required and is_forwarded(headers):
            raise Unauthorized(
                "this service has no tokens and serves only this machine, but a proxy forwarded "
                "this request: create a token with `tenure token create`"
            )
        authorization = headers.get(b"authorization")
        guests = self.guests if authorization is None else None
        if guests is not None and guests.admit(address, headers):
            return guests.token
        return self.who(authorization)

    def who(self, authorization: str | None) -> Token:
        """Return the token of an Authorization header; raises Unauthorized."""
        if not self.required:
            return EVERYTHING
        if authorization is None:
            raise Unauthorized(
                "a token is needed: send Authorization: Bearer ..., or set TENURE_TOKEN for Python "
                "and the command line"
            )
        kind, _, secret = authorization.partition(" ")
        # A lookup by hash is safe: its timing reveals nothing about the secret.
        hashed = hash_of(secret.strip())
        found = self._known().get(hashed) or self._known_now().get(hashed)
        if kind.lower() != "bearer":
            raise Unauthorized("the header must be Authorization: Bearer ..., with the token")
        if found is None:
            raise Unauthorized("this token is not known: it may be mistyped or revoked")
        return found

    def is_current(self, token: Token) -> bool:
        """Whether an accepted token is still valid: it may have been revoked or changed."""
        if self.guests is not None and token is self.guests.token:
            return True
        return not self.required or self._known().get(token.hash) == token

    def _known(self) -> dict[str, Token]:
        return self._by_hash

    def _known_now(self) -> dict[str, Token]:
        """Like `_known`, including tokens that were created just now."""
        return self._by_hash


class Origins:
    """hosts: the host names that requests may use; None allows any."""

    def __init__(self, hosts: Iterable[str] | None = None) -> None:
        self._hosts = None if hosts is None else {_bracketed(host.lower()) for host in hosts}
        self._last: str | None = (
            None  # the last Host header that was accepted: most requests have the same
        )

    def check(self, method: str, headers: Headers) -> None:
        """Raise Misdirected or Forbidden if a web page may have forged the request."""
        host = headers.get(b"host") or ""
        if host != self._last:
            self._check_host(host.lower())
            self._last = host
        if method in SAFE:
            return
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is not None and site not in OWN_SITE:
            raise Forbidden("a page of another site must not send this")
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Forbidden(f"a page of {origin[:200]!r} must not send this")

    def _check_host(self, host: str) -> None:
        if self._hosts is not None and _without_port(host) not in self._hosts:
            raise Misdirected(
                f"this service is not known as {host[:200]!r}; `tenure serve --allowed-hosts` "
                "adds a name"
            )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _bracketed(host: str) -> str:
    """A host as in a Host header: IPv6 addresses are in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_json(headers: Headers) -> None:
    """Raise UnsupportedMedia unless the Content-Type is JSON. A page of another site cannot send
    that without a preflight request."""
    kind = headers.get(b"content-type", "")
    if kind == "application/json":
        return
    kind = kind.partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        said = f"{kind[:100]!r}" if kind else "nothing"
        raise UnsupportedMedia(f"the body must be application/json; Content-Type says {said}")
