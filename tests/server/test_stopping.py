"""A service that is told to stop answers those who wait, finishes what it began, and ends."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.worker.shutdown import ABORTED, SAME_SIGNAL_SECONDS
from tests.server.connection import Connection, CutError
from tests.server.process import ServiceProcess
from tests.support.audit import audit
from tests.workers import errands
from tests.workers.life import ERRANDS, Place, until

SECONDS = 5.0  # within which whatever is stopped must have ended
PROMPTLY = 3.0  # seconds, on a machine that has other things to do
CALLERS = 40


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path)
    yield process.start()
    process.kill()


def test_a_service_that_is_idle_ends_well_and_closes_its_store(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with httpx.Client(base_url=service.url) as client:
        assert client.post("/v1/jobs", json={"queue": "mail"}).status_code == 201
        service.send(signal.SIGINT)  # while the connection stays open
        assert service.wait(SECONDS) == 0, service.log
    assert "Traceback" not in service.log
    assert "ERROR" not in service.log
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/healthz")
    assert not list(tmp_path.glob("jobs.db-*")), "the log of the file was not folded into it"
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT count(*) FROM tenure_jobs").fetchone() == (1,)


async def _waiting(
    stack: AsyncExitStack, service: ServiceProcess, *requests: tuple[Any, ...]
) -> list[Connection]:
    """Connections over which these requests are being served."""
    connections = [
        await stack.enter_async_context(await Connection.open(service.port)) for _ in requests
    ]
    for one in connections:
        assert (await one.ask("GET", "/healthz")).status == 200
    for one, request in zip(connections, requests, strict=True):
        one.send(*request)
    async with await Connection.open(service.port) as other:
        assert (await other.ask("GET", "/healthz")).status == 200  # it came later than the others
    return connections


def test_those_who_wait_are_answered_at_once_when_it_stops(service: ServiceProcess) -> None:
    async def act() -> None:
        async with await Connection.open(service.port) as first:
            job = (await first.ask("POST", "/v1/jobs", {"queue": "other"})).json
            seen = (await first.ask("GET", "/v1/changes")).json["version"]
        requests = [
            ("POST", "/v1/claim", {"queues": ["mail"], "wait": 30}),
            ("GET", f"/v1/jobs/{job['id']}/wait?timeout=30"),
            ("GET", f"/v1/changes?wait=30&since={seen}"),
        ]
        async with AsyncExitStack() as stack, asyncio.timeout(PROMPTLY):
            callers = await _waiting(stack, service, *requests * 10)
            service.send(signal.SIGTERM)
            answers = [await one.answer() for one in callers]
        assert {one.status for one in answers} == {200}
        # Changes may be told of for nothing, before it stops.
        assert all(one.is_last for one in [*answers[::3], *answers[1::3]])
        assert [one.json for one in answers[::3]] == [{"jobs": []}] * 10
        assert [one.json["state"] for one in answers[1::3]] == ["pending"] * 10

    asyncio.run(act())
    assert service.wait(SECONDS) == 0, service.log


def test_streams_of_events_end_when_it_stops(service: ServiceProcess) -> None:
    async def act() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b": follow")
        service.send(signal.SIGTERM)
        async with asyncio.timeout(PROMPTLY):
            assert (await reader.read()).endswith(b"\r\n0\r\n\r\n"), "it was cut off"
        writer.close()

    asyncio.run(act())
    assert service.wait(SECONDS) == 0, service.log


def test_a_request_that_still_arrives_when_it_stops_is_answered(
    service: ServiceProcess,
) -> None:
    async def act() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        body = b'{"queue": "mail", "id": "late"}'
        writer.write(
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 31\r\n\r\n"
        )
        writer.write(body[:10])
        other = await Connection.open(service.port)
        assert (await other.ask("GET", "/healthz")).status == 200
        service.send(signal.SIGTERM)
        with pytest.raises(CutError):
            await other.answer()  # the idle are let go, so it is stopping
        writer.write(body[10:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 201")
        writer.close()
        other.close()

    asyncio.run(act())
    assert service.wait(SECONDS) == 0, service.log
    with tenure.connect(service.store) as queue:
        assert queue.get("late").state == "pending"


class Tally:
    """What callers were told."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.cut: list[str] = []  # in the middle of an answer


def test_what_is_being_served_when_it_stops_is_answered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Each caller goes on until its connection is closed."""
    tally = asyncio.run(_enqueue_until_stopped(service))
    assert not tally.cut
    assert service.wait(SECONDS) == 0, service.log
    assert "Traceback" not in service.log
    assert audit(tmp_path / "jobs.db") == []
    with tenure.connect(service.store) as queue:
        stored = {job.id for job in queue.jobs(limit=10_000).jobs}
    assert tally.answered == stored, "those without an answer were not being served"


async def _enqueue_until_stopped(service: ServiceProcess) -> Tally:
    tally = Tally()

    async def call(number: int) -> None:
        async with await Connection.open(service.port) as connection:
            for n in itertools.count():
                id = f"{number}.{n}"
                try:
                    answer = await connection.ask("POST", "/v1/jobs", {"queue": "mail", "id": id})
                except CutError as error:
                    if error.within:
                        tally.cut.append(id)
                    break
                assert answer.status == 201, answer
                tally.answered.add(id)
                if len(tally.answered) == 10 * CALLERS:
                    service.send(signal.SIGTERM)
                if answer.is_last:
                    break

    await asyncio.gather(*[call(number) for number in range(CALLERS)])
    return tally


def test_a_second_signal_ends_it_at_once(service: ServiceProcess) -> None:
    async def act() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /v1/jobs HTTP/1.1\r\nhost: t\r\ncontent-length: 31\r\n\r\n{")
        other = await Connection.open(service.port)
        assert (await other.ask("GET", "/healthz")).status == 200
        service.send(signal.SIGTERM)
        with pytest.raises(CutError):
            await other.answer()
        # As one that is repeated by a shell, it is not counted twice.
        await asyncio.sleep(SAME_SIGNAL_SECONDS)
        service.send(signal.SIGTERM)
        assert service.wait(PROMPTLY) == ABORTED, service.log
        writer.close()
        other.close()

    asyncio.run(act())


def test_jobs_that_run_in_the_service_end_within_the_grace(tmp_path: Path) -> None:
    place = Place(tmp_path)
    service = ServiceProcess(
        tmp_path, "--workers-in-process", ERRANDS, environment={errands.FOLDER: str(tmp_path)}
    ).start()
    try:
        with tenure.connect(service.url) as queue:
            (async_id, thread_id) = queue.enqueue_many(
                [errands.until_told.job(), errands.compute_until_told.job()]
            )
            place.wait_for("began", 2)
        service.send(signal.SIGTERM)
        until(lambda: "stopping" in service.log)
        with tenure.connect(service.store) as queue:
            late = queue.enqueue_many([errands.quick.job()])[0]
            place.give()
            assert service.wait(SECONDS) == 0, service.log
            assert queue.get(async_id).state == "done"
            assert queue.get(thread_id).state == "done"
            assert queue.get(late).state == "pending", "it claims no more"
    finally:
        service.kill()


def test_a_second_signal_gives_back_the_jobs_that_run_in_the_service(tmp_path: Path) -> None:
    place = Place(tmp_path)
    service = ServiceProcess(
        tmp_path, "--workers-in-process", ERRANDS, environment={errands.FOLDER: str(tmp_path)}
    ).start()
    try:
        with tenure.connect(service.url) as queue:
            id = queue.enqueue_many([errands.compute_until_told.job()])[0]
            place.wait_for("began")
        service.send(signal.SIGTERM)
        until(lambda: "stopping" in service.log)
        time.sleep(SAME_SIGNAL_SECONDS)
        service.send(signal.SIGINT)
        assert service.wait(SECONDS) == ABORTED, service.log
        with tenure.connect(service.store) as queue:
            job = queue.get(id)
            assert (job.state, job.attempts) == ("pending", 0)
    finally:
        service.kill()
