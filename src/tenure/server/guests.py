"""Guests: clients without a token that are let in because of the network they are in."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from tenure.errors import InvalidInput
from tenure.server.auth import ANONYMOUS, Scope, Token, is_forwarded
from tenure.server.exchange import Headers

ALLOWED = (Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.MAINTAIN)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Guests:
    """What clients without a token may do, and from which networks."""

    def __init__(self, scopes: Iterable[str], networks: Iterable[str]) -> None:
        """Raises InvalidInput."""
        self.networks: list[Network] = [_network(text) for text in networks]
        wanted = tuple(_scope(text) for text in scopes)
        if not wanted:
            raise InvalidInput("anonymous", f"name at least one of {', '.join(ALLOWED)}")
        if not self.networks:
            raise InvalidInput("anonymous", "needs --from-network, such as 10.0.0.0/8")
        self.token: Token = Token(ANONYMOUS, ANONYMOUS, wanted)

    def admit(self, address: str | None, headers: Headers) -> bool:
        """Whether to let in a client without a token at this address of its connection."""
        if address is None or is_forwarded(headers):
            return False
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.networks)

    def __str__(self) -> str:
        networks = ", ".join(map(str, self.networks))
        return f"{', '.join(self.token.scopes)} from {networks}"


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise InvalidInput("from-network", f"{error}; use a form such as 10.0.0.0/8") from None


def _scope(text: str) -> Scope:
    for scope in ALLOWED:
        if scope == text.strip():
            return scope
    raise InvalidInput("anonymous", f"{text!r} is not one of {', '.join(ALLOWED)}")
