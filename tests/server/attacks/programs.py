"""Abusive clients of a service, each a small program that runs until it is killed.

    python -m tests.server.attacks.programs NAME PORT TOKEN SCALE

It prepares what it needs and says so, waits for a line on stdin, attacks, and says so. SCALE is 1
for the full attack. It yields to other processes, as it would run on another machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from tests.server.connection import Connection, CutError

MB = 1_048_576
LOST = (CutError, OSError, asyncio.IncompleteReadError)


class Target(NamedTuple):
    """The service under attack, and the token of the attacker."""

    port: int
    token: str
    scale: float

    def many(self, full: int) -> int:
        return max(1, round(full * self.scale))

    async def connect(self, *, token: bool = True) -> Connection:
        return await Connection.open(self.port, token=self.token if token else "")

    async def again_and_again(
        self, times: int, act: Callable[[Connection], Awaitable[object]], *, token: bool = True
    ) -> None:
        """Let so many connections do something until this is cancelled; each comes back when it
        is hung up on."""

        async def one() -> None:
            while True:
                with suppress(*LOST):
                    connection = await self.connect(token=token)
                    while True:
                        await act(connection)
                await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(self.many(times))))


Program = Callable[[Target], Awaitable[None]]


async def nothing(target: Target) -> None:
    """Most attacks need no preparation."""


async def large_jobs(target: Target) -> None:
    """Enqueue jobs with large payloads."""
    async with await target.connect() as connection:
        for n in range(target.many(200)):
            job = {"queue": "large", "id": f"large-{n}", "payload": "x" * 900_000}
            assert (await connection.ask("POST", "/v1/jobs", job)).status in (201, 409)


async def small_jobs(target: Target) -> None:
    """Enqueue many jobs, none of which the attack looks for."""
    async with await target.connect() as connection:
        for _ in range(target.many(50)):
            jobs = [{"queue": "small", "delay": 86_400} for _ in range(1000)]
            assert (await connection.ask("POST", "/v1/jobs", jobs)).status == 201


async def secret_jobs(target: Target) -> None:
    """Enqueue jobs whose payloads have many fields, some of which are hidden from readers."""
    async with await target.connect() as connection:
        for n in range(5):
            payload = [{"password": n, "a": 1} for n in range(30_000)]
            job = {"queue": "secret", "id": f"secret-{n}", "payload": payload}
            assert (await connection.ask("POST", "/v1/jobs", job)).status in (201, 409)


async def line_breaks(target: Target) -> None:
    """Hold connections without a token, with a line break now and then."""

    async def act(connection: Connection) -> None:
        connection.say(b"\r\n")
        await connection.flush()
        await asyncio.sleep(0.5)

    await target.again_and_again(2000, act, token=False)


async def endless_bodies(target: Target) -> None:
    """Send bodies without end, without a token."""

    async def act(connection: Connection) -> None:
        connection.say(b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: "
                       b"application/json\r\ncontent-length: 1000000000\r\n\r\n")  # fmt: skip
        for _ in range(1000):
            connection.say(b"x" * 100_000)
            await connection.flush()

    await target.again_and_again(20, act, token=False)


async def hang_ups(target: Target) -> None:
    """Ask for what needs no token, and for what does, and hang up without reading."""

    async def act(connection: Connection) -> None:
        for path in ("/healthz", "/readyz", "/docs", "/v1/jobs"):
            connection.send("GET", path)
        await connection.flush()
        connection.close()
        raise CutError(within=False)

    await target.again_and_again(200, act, token=False)


async def unread_docs(target: Target) -> None:
    """Read nothing of the description of the API, without a token."""

    async def act(connection: Connection) -> None:
        connection.pause()
        for _ in range(10):
            connection.send("GET", "/docs")
        await asyncio.sleep(1)
        connection.close()
        raise CutError(within=False)

    await target.again_and_again(500, act, token=False)


async def idle_connections(target: Target) -> None:
    """Take all connections, and do nothing with them."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", "/v1/me")
        await asyncio.sleep(60)

    await target.again_and_again(10_000, act)


async def docs(target: Target) -> None:
    """Read the description of the API, without a token."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", "/docs")

    await target.again_and_again(20, act, token=False)


async def hidden_fields(target: Target) -> None:
    """List jobs that the service must redact."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", "/v1/jobs?queue=secret&limit=1000")

    await target.again_and_again(10, act)


async def large_pages(target: Target) -> None:
    """List large jobs."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", "/v1/jobs?queue=large&limit=1000")

    await target.again_and_again(20, act)


async def unread_pages(target: Target) -> None:
    """List large jobs, and read nothing of the responses."""

    async def act(connection: Connection) -> None:
        connection.pause()
        connection.send("GET", "/v1/jobs?queue=large&limit=1000")
        await asyncio.sleep(3600)

    await target.again_and_again(100, act)


async def large_claims(target: Target) -> None:
    """Claim as many large jobs as possible; they come back at once."""

    async def act(connection: Connection) -> None:
        body = {"queues": ["large"], "limit": 1000, "lease": 0.2}
        await connection.ask("POST", "/v1/claim", body)

    await target.again_and_again(10, act)


async def scans(target: Target) -> None:
    """List jobs of a kind that does not exist, among many."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", "/v1/jobs?kind=none&limit=1000")

    await target.again_and_again(50, act)


async def long_polls(target: Target) -> None:
    """Wait for jobs of one queue, and enqueue one now and then."""

    async def act(connection: Connection) -> None:
        body = {"queues": ["polled"], "wait": 60, "limit": 1}
        await connection.ask("POST", "/v1/claim", body)

    async def feed(connection: Connection) -> None:
        await connection.ask("POST", "/v1/jobs", {"queue": "polled"})
        await asyncio.sleep(0.1)

    await asyncio.gather(
        target.again_and_again(6000, act), target._replace(scale=1).again_and_again(1, feed)
    )


async def end_waits(target: Target) -> None:
    """Wait for the ends of many jobs."""

    async def act(connection: Connection) -> None:
        await connection.ask("GET", f"/v1/jobs/{id(connection) % 7}/wait?timeout=60")

    async def put(connection: Connection) -> None:
        for n in range(7):
            await connection.ask("POST", "/v1/jobs", {"queue": "late", "id": str(n), "delay": 9999})
        await asyncio.sleep(3600)

    await asyncio.gather(
        target.again_and_again(3000, act), target._replace(scale=1).again_and_again(1, put)
    )


async def event_readers(target: Target) -> None:
    """Read events on as many connections as possible, and cause some."""

    async def act(connection: Connection) -> None:
        connection.send("GET", "/v1/events")
        while await connection.read_some():
            pass
        raise CutError(within=True)

    async def cause(connection: Connection) -> None:
        jobs = [{"queue": "events"} for _ in range(100)]
        await connection.ask("POST", "/v1/jobs", jobs)
        await asyncio.sleep(0.2)

    await asyncio.gather(
        target.again_and_again(1000, act), target._replace(scale=1).again_and_again(1, cause)
    )


async def dense_bodies(target: Target) -> None:
    """Send as many values as a body can have."""
    body = b'{"ids":[' + b'"a",' * 7_000_000 + b'"a"]}'

    async def act(connection: Connection) -> None:
        await connection.ask("POST", "/v1/jobs/cancel", body)

    await target.again_and_again(4, act)


async def many_values(target: Target) -> None:
    """Send a little less than as many values as a body can have."""
    job = b'{"queue":"q","kind":"k","tenant":"t","after":["a"]},'
    bodies = [
        ("/v1/jobs/cancel", b'{"ids":[' + b'"a",' * 1_990_000 + b'"a"]}'),
        ("/v1/jobs", b"[" + job * 390_000 + b'{"queue":"q"}]'),
        ("/v1/ops", b'{"ops":[' + b'{"op":"Maintain"},' * 490_000 + b'{"op":"Maintain"}]}'),
    ]

    async def act(connection: Connection) -> None:
        for path, body in bodies:
            await connection.ask("POST", path, body)

    await target.again_and_again(10, act)


async def large_batches(target: Target) -> None:
    """Apply batches of many operations that each name many jobs."""
    ids = [f"none-{n}" for n in range(100)]
    body = {"ops": [{"op": "Cancel", "ids": ids} for _ in range(1000)]}

    async def act(connection: Connection) -> None:
        await connection.ask("POST", "/v1/ops", body)

    await target.again_and_again(2, act)


async def health_floods(target: Target) -> None:
    """Ask for the health, without a token, and hang up before the answer, as fast as possible."""
    asked = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

    def flood() -> None:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", target.port)) as one:
                one.sendall(asked)

    for _ in range(2):
        threading.Thread(target=flood, daemon=True).start()
    await asyncio.sleep(3600)


async def calls_left(target: Target) -> None:
    """Claim, list and enqueue, and hang up before the answer."""
    jobs = [{"queue": "left", "delay": 86_400} for _ in range(100)]
    calls = (
        ("POST", "/v1/claim", {"queues": ["left"], "wait": 30}),
        ("GET", "/v1/jobs?limit=1000", None),
        ("POST", "/v1/jobs", jobs),
    )

    async def one(n: int) -> None:
        while True:
            with suppress(*LOST):
                connection = await target.connect()
                connection.send(*calls[n % len(calls)])
                await connection.flush()
                await asyncio.sleep(0.01)
                connection.close()

    await asyncio.gather(*(one(n) for n in range(target.many(30))))


async def large_enqueues(target: Target) -> None:
    """Enqueue as many jobs as one call may have."""
    jobs = [{"queue": "large", "delay": 86_400} for _ in range(10_000)]

    async def act(connection: Connection) -> None:
        await connection.ask("POST", "/v1/jobs", jobs)

    await target._replace(scale=1).again_and_again(2, act)


PROGRAMS: dict[str, tuple[Program, Program]] = {
    "line breaks": (nothing, line_breaks),
    "endless bodies": (nothing, endless_bodies),
    "docs": (nothing, docs),
    "hang-ups": (nothing, hang_ups),
    "unread docs": (nothing, unread_docs),
    "idle connections": (nothing, idle_connections),
    "long polls": (nothing, long_polls),
    "waits for ends": (nothing, end_waits),
    "event readers": (nothing, event_readers),
    "dense bodies": (nothing, dense_bodies),
    "many values": (nothing, many_values),
    "large batches": (nothing, large_batches),
    "hidden fields": (secret_jobs, hidden_fields),
    "scans": (small_jobs, scans),
    "large pages": (large_jobs, large_pages),
    "unread pages": (large_jobs, unread_pages),
    "large claims": (large_jobs, large_claims),
}

# Judged by `make blast`: they do little harm to the median, and much to the slowest.
OTHERS: dict[str, tuple[Program, Program]] = {
    "health floods": (nothing, health_floods),
    "calls left": (nothing, calls_left),
    "large enqueues": (nothing, large_enqueues),
}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def run(name: str, target: Target) -> None:
    prepare, attack = (PROGRAMS | OTHERS)[name]
    await prepare(target)
    say("prepared")
    await asyncio.to_thread(sys.stdin.readline)
    task = asyncio.ensure_future(attack(target))
    await asyncio.sleep(0.5)
    say("attacking")
    await task


if __name__ == "__main__":
    os.nice(10)
    logging.disable()  # of what it sends to connections that are closed
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, name, port, token, scale = sys.argv
    asyncio.run(run(name, Target(int(port), token, float(scale))))
