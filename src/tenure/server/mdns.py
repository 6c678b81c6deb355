"""Announcing the service on the local network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenure.errors import InvalidInput

LEGAL = "_serval_queue._tcp.local."
# The first is what the runners of old look for; a colon is not legal in DNS, so there is a second.
TYPES = ("_serval:queue._tcp.local.", LEGAL)


@asynccontextmanager
async def announced(host: str, port: int) -> AsyncIterator[None]:
    """Be found by mDNS where the service listens, with the port as the property http_port."""
    try:
        import ifaddr
        from zeroconf import InterfaceChoice, ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError:
        raise InvalidInput("mdns", "needs zeroconf: pip install 'tenure[mdns]'") from None
    address = ipaddress.ip_address(socket.gethostbyname(host))
    addresses = [str(address)]
    if address.is_unspecified:
        ips = [ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
        addresses = [str(ip.ip) for ip in ips]
    name = f"tenure-{socket.gethostname()}-{port}"
    zeroconf = AsyncZeroconf(
        interfaces=[str(address)] if address.is_loopback else InterfaceChoice.All
    )
    try:
        await zeroconf.zeroconf.async_wait_for_start()
        for kind in TYPES:
            info = ServiceInfo(
                LEGAL,
                f"{name}.{LEGAL}",
                port=port,
                properties={"http_port": str(port)},
                parsed_addresses=addresses,
                server=f"{name}.local.",
            )
            info.type, info.name = kind, f"{name}.{kind}"  # of itself, zeroconf refuses the colon
            zeroconf.zeroconf.registry.async_add(info)
            await zeroconf.async_update_service(info)
        yield
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()
