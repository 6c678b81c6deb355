"""Callers of a service that is killed while they use it: their requests, and the responses they
got.

A request without a response is sent again if that is safe, because it names the id of a job or the
token of a claim. A firecrawl push or release is not: once a job is completed, its id is free again.
"""

from __future__ import annotations

import asyncio
import random
from base64 import urlsafe_b64decode
from contextlib import suppress
from typing import Any

from tests.crash.journal import Journal, now_ms
from tests.server.connection import Answer, Connection, CutError
from tests.server.process import ServiceProcess

QUEUE = "load"
TEAMS = tuple(f"team{n}" for n in range(5))
MANY = 1_000_000  # attempts, so that no job ends dead
LEASE_MS = 3_000
POP_LEASE_MS = 300_000  # as the service gives it
MARK_MS = 3_600_000
RETRY_SECONDS = 0.02


class Caller:
    """A caller that opens one connection after the other."""

    def __init__(self, name: str, service: ServiceProcess, journal: Journal, seed: int) -> None:
        self.name = name
        self.note = journal.note
        self.chance = random.Random(f"{seed}/{name}")
        self._service = service
        self._connection: Connection | None = None
        self._n = 0

    async def call_until(self, over: asyncio.Event) -> None:
        try:
            while not over.is_set():
                await self.act()
        except Exception as error:
            self.note("error", text=f"{self.name}: {error!r}")
        finally:
            self._hang_up()

    async def act(self) -> None:
        raise NotImplementedError

    def fresh(self) -> str:
        """A name that is not used otherwise."""
        self._n += 1
        return f"{self.name}.{self._n}"

    async def ask(self, path: str, body: Any, *wanted: int, method: str = "POST") -> Answer:
        """Send a request once, as soon as the service is up; raises CutError."""
        while self._connection is None:
            try:
                self._connection = await Connection.open(self._service.port)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
        try:
            answer = await self._connection.ask(method, path, body)
        except CutError:
            self._hang_up()
            self.note("cut", text=path)
            raise
        if answer.is_last:
            self._hang_up()
        if answer.status not in wanted:
            raise AssertionError(f"{path} {body} was answered {answer}")
        return answer

    async def insist(
        self, path: str, body: Any, *wanted: int, method: str = "POST"
    ) -> tuple[Answer, bool]:
        """Repeat a request until there is a response. Also returns whether it is the response to
        the first attempt."""
        first = True
        while True:
            try:
                return await self.ask(path, body, *wanted, method=method), first
            except CutError:
                first = False

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def refused(self, first: bool, id: str, token: int, code: str) -> None:
        """Record a rejected request. A repeated one is rejected if the first attempt succeeded."""
        self.note("refused" if first else "refused again", id, token, code=code)


class NativeCaller(Caller):
    """Uses the native API."""

    async def act(self) -> None:
        ways = {self._push: 50, self._push_many: 5, self._work: 45}
        (way,) = self.chance.choices(list(ways), list(ways.values()))
        await way()

    def _job(self, id: str) -> dict[str, Any]:
        tenant = self.chance.choice(TEAMS)
        return {"queue": QUEUE, "id": id, "tenant": tenant, "max_attempts": MANY}

    async def _push(self) -> None:
        id = self.fresh()
        self.note("try enqueue", id)
        answer, first = await self.insist("/v1/jobs", self._job(id), 201, 409)
        if first and answer.status == 409:
            raise AssertionError(f"{id} was new, and answered {answer}")
        self.note("enqueued", id)

    async def _push_many(self) -> None:
        ids = [self.fresh() for _ in range(5)]
        self.note("try enqueue many", ids=ids)
        answer, first = await self.insist("/v1/jobs", [self._job(id) for id in ids], 201, 409)
        if first and answer.status == 409:
            raise AssertionError(f"{ids} were new, and answered {answer}")
        for id in ids:
            self.note("enqueued", id)

    async def _work(self) -> None:
        worker = self.fresh()
        wait = self.chance.choice((0, 0, 0.5))
        body = {"queues": [QUEUE], "limit": self.chance.randrange(1, 5), "worker": worker}
        body |= {"lease": LEASE_MS / 1000, "wait": wait}
        self.note("try claim", worker)
        jobs = (await self.ask_or_lose("/v1/claim", body)).json["jobs"]
        for job in jobs:
            self.note(
                "claimed",
                job["id"],
                job["token"],
                since=job["started_at"],
                until=job["lease_until"],
                attempts=job["attempts"],
                max_attempts=job["max_attempts"],
                scope=[QUEUE, job["tenant"], ""],
            )
        for job in jobs:
            ways = {self._ack: 80, self._fail: 8, self._release: 8, self._leave: 4}
            (way,) = self.chance.choices(list(ways), list(ways.values()))
            await way(job["id"], job["token"])

    async def ask_or_lose(self, path: str, body: Any) -> Answer:
        """Claim. A claim cannot be repeated; if its response is lost, it ends with its lease."""
        try:
            return await self.ask(path, body, 200)
        except CutError:
            return Answer(200, b"", b'{"jobs":[]}')

    async def _ack(self, id: str, token: int) -> None:
        self.note("try ack", id, token)
        await self._finish("/v1/ack", "acked", id, token)

    async def _fail(self, id: str, token: int) -> None:
        self.note("try fail", id, token)
        await self._finish("/v1/fail", "failed", id, token, retry_in=0.1)

    async def _release(self, id: str, token: int) -> None:
        self.note("try release", id, token)
        await self._finish("/v1/release", "released", id, token)

    async def _leave(self, id: str, token: int) -> None:
        """Abandon the job."""

    async def _finish(self, path: str, done: str, id: str, token: int, **more: Any) -> None:
        body = {"jobs": [{"id": id, "token": token, **more}]}
        answer, first = await self.insist(path, body, 200)
        (result,) = answer.json["results"]
        if result["ok"]:
            self.note(done, id, token, state=result["state"])
        else:
            self.refused(first, id, token, result["error"]["code"])


class FirecrawlCaller(Caller):
    """Uses the API of Firecrawl's workers."""

    async def act(self) -> None:
        team = self.chance.choice(TEAMS)
        await (self._push(team) if self.chance.random() < 0.5 else self._work(team))

    async def _push(self, team: str) -> None:
        id = self.fresh()
        job = {"id": id, "data": {"url": "https://example.com"}, "priority": 10}
        body = {"teamId": team, "job": job | {"listenable": False}, "timeout": None}
        if self.chance.random() < 0.5:
            body["crawlId"] = f"crawl{self.chance.randrange(10)}"
        self.note("try enqueue", id)
        try:
            await self.ask("/queue/push", body, 200)
        except CutError:
            return
        self.note("enqueued", id)

    async def _work(self, team: str) -> None:
        worker = self.fresh()
        asked_at = self.note("try claim", worker)
        try:
            popped = (await self.ask(f"/queue/pop/{team}", {"workerId": worker}, 200)).json
        except CutError:
            return
        if popped is None:
            return
        id, key = popped["job"]["id"], popped["queueKey"]
        token = int(urlsafe_b64decode(key).partition(b".")[0])
        self.note(
            "claimed",
            id,
            token,
            since=now_ms(),
            until=asked_at + POP_LEASE_MS,
            attempts=1,
            max_attempts=MANY,
            scope=["firecrawl", team, ""],
        )
        await self._mark(team, id, token, key)

    async def _mark(self, team: str, id: str, token: int, key: str) -> None:
        """Mark the job as active while it is worked on."""
        mark = {"teamId": team, "jobId": id}
        self.note("try mark", id, team=team)
        await self.insist("/active/push", mark | {"timeout": MARK_MS}, 200)
        self.note("marked", id, team=team)
        if self.chance.random() < 0.9:
            await self._complete(id, token, key)
        else:
            await self._release(id, token)
        if self.chance.random() < 0.9:
            self.note("try unmark", id, team=team)
            await self.insist("/active/remove", mark, 200, method="DELETE")
            self.note("unmarked", id, team=team)

    async def _release(self, id: str, token: int) -> None:
        """Release by id, not by claim: repeating it might release the claim of another caller."""
        self.note("try release", id, token)
        with suppress(CutError):
            await self.ask("/queue/release", {"jobId": id}, 200)

    async def _complete(self, id: str, token: int, key: str) -> None:
        self.note("try ack", id, token, keep=False)
        answer, first = await self.insist("/queue/complete", {"queueKey": key}, 200)
        if answer.json["success"]:
            self.note("removed", id, token)
        else:
            self.refused(first, id, token, "gone")
