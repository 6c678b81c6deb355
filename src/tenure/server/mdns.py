"""Announces the service on the local network by mDNS."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from tenure.errors import InvalidInput

if TYPE_CHECKING:
    from zeroconf import ServiceInfo
    from zeroconf.asyncio import AsyncZeroconf

log = logging.getLogger("tenure.service")

TYPE = "_serval_queue._tcp.local."
# What existing runners look for. A colon is not valid in DNS, hence the other type.
OLD_TYPE = "_serval:queue._tcp.local."


@asynccontextmanager
async def announced(listens_on: Sequence[str], port: int) -> AsyncIterator[None]:
    """Announce the addresses that the service listens on, with the port as the property http_port.
    A service that listens on loopback only is announced on loopback only."""
    try:
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError:
        raise InvalidInput("mdns", "needs zeroconf: pip install 'tenure[mdns]'") from None
    everywhere = any(ip_address(one).is_unspecified for one in listens_on)
    addresses = _all_addresses() if everywhere else list(listens_on)
    try:
        zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All if everywhere else addresses)
    except OSError as error:
        raise InvalidInput("mdns", f"failed on {', '.join(addresses)}: {error}") from None
    announcing = asyncio.create_task(_announce(zeroconf, addresses, port))
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.wait([announcing])
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


async def _announce(zeroconf: AsyncZeroconf, addresses: Sequence[str], port: int) -> None:
    """Register the service. This takes a second or two, so it runs in the background."""
    name = f"tenure-{socket.gethostname()}-{port}"
    try:
        await (await zeroconf.async_register_service(_info(name, addresses, port), strict=False))
        old = _info(name, addresses, port)
        old.type, old.name = OLD_TYPE, f"{name}.{OLD_TYPE}"
        # Not registered, because that would reject its name.
        await (await zeroconf.async_update_service(old))
    except Exception:
        log.exception("cannot announce the service by mDNS")
    else:
        log.info("announced by mDNS as %s", name)


def _info(name: str, addresses: Sequence[str], port: int) -> ServiceInfo:
    from zeroconf import ServiceInfo

    return ServiceInfo(
        TYPE,
        f"{name}.{TYPE}",
        port=port,
        properties={"http_port": str(port)},
        parsed_addresses=list(addresses),
        server=f"{name}.local.",
    )


def _all_addresses() -> list[str]:
    """The addresses of this machine, without loopback if there are others."""
    from zeroconf import get_all_addresses  # type: ignore[attr-defined]  # not in its __all__

    found = get_all_addresses()
    return [one for one in found if not ip_address(one).is_loopback] or found
