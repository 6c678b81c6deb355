"""Counts the files of Tenure that a call goes through: an enqueue, a claim and a page over HTTP.

python -m tests.ways [--names]
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import tenure
from tenure.server.http_server import HttpServer
from tenure.server.routes import make_app
from tenure.server.service import Service

SOURCE = str(Path(tenure.__file__).parent) + "/"
WAYS: dict[str, tuple[str, str, Any]] = {
    "an enqueue": ("POST", "/v1/jobs", {"queue": "mail", "payload": {"to": "ann"}}),
    "a claim": ("POST", "/v1/claim", {"queues": ["mail"]}),
    "the overview": ("GET", "/v1/overview", None),
}


class Way:
    """The calls of functions of Tenure, while it is recorded."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.records = False

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if self.records and event == "call" and name.startswith(SOURCE):
            self.files[name.removeprefix(SOURCE)] += 1


def ways() -> dict[str, Counter[str]]:
    """How often functions of each file are called, for each way, when everything is warm."""
    way = Way()
    threading.setprofile(way.profile)
    sys.setprofile(way.profile)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            tenure.connect(f"sqlite:///{folder}/jobs.db") as q,
        ):
            return asyncio.run(_recorded(make_app(q), way))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _recorded(service: Service, way: Way) -> dict[str, Counter[str]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(service)
    await server.start([listener])
    found: dict[str, Counter[str]] = {}
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url) as client:
            for name, (method, path, body) in WAYS.items():
                for _ in range(3):
                    await asyncio.sleep(1.1)  # results that are kept are old by then
                    way.files, way.records = Counter(), True
                    answer = await client.request(method, path, json=body)
                    way.records = False
                    answer.raise_for_status()
                found[name] = way.files
    finally:
        service.close()
        await server.stop(1)
    return found


def main() -> None:
    """Print the table."""
    for name, files in ways().items():
        packages = {file.rpartition("/")[0] for file in files}
        calls = files.total()
        print(f"{name}: {calls} calls in {len(files)} files of {len(packages)} packages")  # noqa: T201
        if "--names" in sys.argv:
            for file, count in files.most_common():
                print(f"  {count:5} {file}")  # noqa: T201


if __name__ == "__main__":
    main()
