"""The service is found on the local network, by the names that the mesh looks for."""

from __future__ import annotations

import asyncio
import socket

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from tenure.server.mdns import LEGAL, TYPES, announced

PATIENCE_MS = 10_000


@pytest.mark.parametrize("kind", TYPES)
def test_a_service_is_found_with_its_port(kind: str) -> None:
    name = f"tenure-{socket.gethostname()}-3100"

    async def main() -> None:
        async with announced("127.0.0.1", 3100):
            runner = AsyncZeroconf(interfaces=["127.0.0.1"])
            found = AsyncServiceInfo(LEGAL, f"{name}.{LEGAL}")
            found.type, found.name = kind, f"{name}.{kind}"  # zeroconf does not ask for a colon
            try:
                assert await found.async_request(runner.zeroconf, PATIENCE_MS)
            finally:
                await runner.async_close()
        assert (found.port, found.properties) == (3100, {b"http_port": b"3100"})
        assert found.parsed_addresses() == ["127.0.0.1"]

    asyncio.run(main())
