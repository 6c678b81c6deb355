"""Announcing the service on the local network."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenure.errors import InvalidInput

# The first is what the runners of old look for; a colon is not legal in DNS, so there is a second.
TYPES = ("_serval:queue._tcp.local.", "_serval_queue._tcp.local.")


@asynccontextmanager
async def announced(port: int) -> AsyncIterator[None]:
    """Be found by mDNS, with the port as the property http_port."""
    try:
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError:
        raise InvalidInput("mdns", "needs zeroconf: pip install 'tenure[mdns]'") from None
    name = f"tenure-{socket.gethostname()}-{port}"
    infos = [
        ServiceInfo(
            kind,
            f"{name}.{kind}",
            port=port,
            properties={"http_port": str(port)},
            addresses=[socket.inet_aton("127.0.0.1")],
            server=f"{name}.local.",
        )
        for kind in TYPES
    ]
    zeroconf = AsyncZeroconf()
    try:
        for info in infos:
            await zeroconf.async_register_service(info, strict=False)
        yield
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()
