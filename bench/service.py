"""What the service adds to HTTP: against a bare Starlette route that decodes the same JSON."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles

import msgspec
from rich.progress import Progress

from bench.http_load import Next, connected, latencies, rate, request
from bench.report import Figure

CONNECTIONS = 64
MANY = 10
ROUNDS = 5
SECONDS = 2.0
P99_SECONDS = 0.025
JOB = {"queue": "mail", "payload": {"to": "ann@example.com", "template": "welcome", "n": 7}}
ENQUEUE = request("/v1/jobs", msgspec.json.encode(JOB))
CLAIM = request("/v1/claim", msgspec.json.encode({"queues": ["mail"], "limit": MANY, "lease": 60}))

FLOOR = """
import msgspec, sys, uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

JOBS = msgspec.json.encode({"jobs": [{
    "id": f"01a1e21e-5190-7b16-984c-2c57500646{n}", "queue": "mail", "state": "leased",
    "payload": {"to": "ann@example.com", "template": "welcome", "n": 7}, "priority": 0,
    "run_at": 1763251792000, "created_at": 1763251792000, "updated_at": 1763251792000,
    "attempts": 1, "max_attempts": 3, "started_at": 1763251792000, "lease_until": 1763251852000,
    "token": 7, "worker": "http"} for n in range(10, 20)]})

async def enqueue(request: Request) -> Response:
    job = msgspec.json.decode(await request.body())
    return Response(msgspec.json.encode(job), 201, media_type="application/json")

async def claim(request: Request) -> Response:
    msgspec.json.decode(await request.body())
    return Response(JOBS, media_type="application/json")

async def ack(request: Request) -> Response:
    body = msgspec.json.decode(await request.body())
    results = [{"id": one["id"], "ok": True, "state": "done"} for one in body["jobs"]]
    return Response(msgspec.json.encode({"results": results}), media_type="application/json")

app = Starlette(routes=[
    Route("/v1/jobs", enqueue, methods=["POST"]),
    Route("/v1/claim", claim, methods=["POST"]),
    Route("/v1/ack", ack, methods=["POST"]),
])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


class _Job(msgspec.Struct):
    id: str
    token: int


class _Jobs(msgspec.Struct):
    jobs: list[_Job]


_decode = msgspec.json.Decoder(_Jobs).decode


def _claim_and_ack() -> Next:
    """Claims, then acknowledges what was claimed, and again."""
    turns = cycle((True, False))

    def following(body: bytes) -> bytes:
        if not next(turns):
            return CLAIM
        return request("/v1/ack", msgspec.json.encode({"jobs": _decode(body).jobs}))

    return following


def _always(text: bytes) -> Callable[[], Next]:
    return lambda: lambda body: text


@contextmanager
def _server(command: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the server did not come up"
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


async def _fill(port: int, jobs: int) -> None:
    many = request("/v1/jobs", msgspec.json.encode([JOB] * 1000))
    async with connected(port, 1) as (talk,):
        for _ in range(0, jobs, 1000):
            await talk.ask(many)


async def _measure(ours: int, bare: int) -> list[Figure]:
    names = ("enqueue", "bare", "cycle", "bare cycle")
    found: dict[str, list[float]] = {name: [] for name in names}

    async def note(name: str, port: int, first: bytes, following: Callable[[], Next]) -> None:
        found[name].append(await rate(port, CONNECTIONS, first, following, SECONDS))

    with Progress() as progress:
        bar = progress.add_task("service", total=3 * ROUNDS)
        for _ in range(ROUNDS):
            await note("bare", bare, ENQUEUE, _always(ENQUEUE))
            await note("enqueue", ours, ENQUEUE, _always(ENQUEUE))
            progress.advance(bar)
        for _ in range(ROUNDS):
            await note("bare cycle", bare, CLAIM, _claim_and_ack)
            await _fill(ours, round(found["bare cycle"][-1] * SECONDS / 2 * MANY))
            await note("cycle", ours, CLAIM, _claim_and_ack)
            progress.advance(bar)
        half = median(found["enqueue"]) / 2
        late: list[list[float]] = []
        for _ in range(ROUNDS):
            async with connected(ours, CONNECTIONS) as talks:
                late.append(quantiles(await latencies(talks, ENQUEUE, half, SECONDS), n=100))
            progress.advance(bar)
    figures = []
    for name, tenure, floor, promise in (
        (f"enqueue of one, {CONNECTIONS} connections", "enqueue", "bare", 0.5),
        (f"claim and ack of {MANY}, {CONNECTIONS} connections", "cycle", "bare cycle", 0.2),
    ):
        ratios = [a / b for a, b in zip(found[tenure], found[floor], strict=True)]
        rates = (median(found[tenure]), median(found[floor]))
        figures.append(Figure(name, *rates, ratios, at_least=promise, unit="requests/s"))
    for share, at in (("half", 49), ("99%", 98)):
        seconds = median([one[at] for one in late])
        figures.append(
            Figure(
                f"latency of {share}, at {half:,.0f} enqueues/s",
                rate=seconds * 1e6,
                floor=P99_SECONDS * 1e6,
                ratios=[one[at] / P99_SECONDS for one in late],
                at_most=1.0,
                unit="microseconds",
            )
        )
    return figures


def run(folder: Path) -> list[Figure]:
    """The rates, then the latency at half of the rate."""
    ours, bare = _free_port(), _free_port()
    serve = ["-m", "tenure", "--url", f"sqlite:///{folder}/jobs.db", "serve", "--port", str(ours)]
    with _server(serve, ours), _server(["-c", FLOOR, str(bare)], bare):
        return asyncio.run(_measure(ours, bare))
