"""Protection against requests forged by web pages of other sites.

A browser sends requests on behalf of any page. Without tokens, a page that reaches the service
could do everything, so requests for unknown host names (DNS rebinding) and writes that come from
another site are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.errors import Forbidden
from tenure.server.exchange import Headers
from tenure.server.problems import Misdirected, UnsupportedMedia

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE = frozenset({"same-origin", "none"})  # "none": typed by the user, not sent by a page


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
