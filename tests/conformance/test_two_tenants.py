"""Two tenants with tokens of their own, at the same time: neither notices the other.

What tenant c is told, and what it has in the end, is compared with a store in which tenant a does
nothing. Tenant a knows everything of c: its ids, its tokens, its schedules. On two shards, the two
are on different ones.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import tenure
from tenure import Queue, Settings, TenureError
from tenure.features import AnyOp
from tenure.features.audit.data import ListAudit
from tenure.features.errors.data import ListErrors, MuteError
from tenure.features.live_workers.data import Beat, ListWorkers, LiveWorker
from tenure.features.rates.data import ListRates
from tenure.features.why.data import Explain
from tenure.model import ops, queries, wire
from tenure.model.job import NULL, JobSpec, State
from tenure.model.queries import Filter, Query
from tenure.server.auth import Scope, Token
from tenure.testing import ManualClock
from tests.conformance.state import all_jobs, as_dict
from tests.support.feature_ops import of_feature
from tests.support.tokens import store_for

STEPS = 40
QUEUES = ("mail", "post")
IDS = [f"{tenant}/{n}" for tenant in "ac" for n in range(6)]
NAMES = ["a-nightly", "c-nightly"]
GROUPS = ["", "g"]


class Request(NamedTuple):
    """What one tenant sends at once. Tokens of leases are filled in when it is sent."""

    who: str
    wanted: tuple[AnyOp, ...] | Query


class World:
    """A store, and both tenants' view of it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.views = {
            who: store_for(queue, Token(who, who, (Scope.ADMIN,), tenants=(who,))) for who in "ac"
        }
        self.tokens: dict[str, int] = {}  # of the last claim of each job

    async def ask(self, request: Request) -> Any:
        wanted = request.wanted
        if not isinstance(wanted, Query):
            wanted = tuple(self._with_token(op) for op in wanted)
        try:
            found = await self.views[request.who].ado(wanted)
        except TenureError as error:
            return repr(error)
        if not isinstance(wanted, Query):
            for _, answer in ops.answered(wanted, found):
                for job in answer.jobs if isinstance(answer, ops.Leased) else ():
                    self.tokens[job.id] = job.token
        return _without_numbers(wire.encode(found).decode())

    def _with_token(self, op: AnyOp | ops.Once) -> Any:
        if isinstance(op, ops.LeaseOp):
            return replace(op, token=self.tokens.get(op.id, 0))
        return op

    def of(self, tenant: str) -> list[dict[str, Any]]:
        jobs = [as_dict(job) for job in all_jobs(self.queue, tenant=tenant)]
        return sorted((job | {"token": 0} for job in jobs), key=lambda job: str(job["id"]))


def _without_numbers(text: str) -> str:
    """An answer without the numbers of claims and of places in the store."""
    text = re.sub(r'"token":\d+', '"token":0', text)
    return re.sub(r'"cursor":"[^"]*"', '"cursor":""', text)


class Chance:
    """Random requests of a tenant: mostly its own things, often the other's."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def request(self, who: str) -> Request:
        if self._chance.random() < 0.2:
            return Request(who, self._query(who))
        many = self._chance.choice((1, 1, 2, 5))
        return Request(who, tuple(self._op(who) for _ in range(many)))

    def _id(self) -> str:
        return self._chance.choice(IDS)

    def _spec(self, who: str) -> JobSpec:
        chance = self._chance
        return JobSpec(
            id=f"{who}/{chance.randrange(6)}",
            queue=chance.choice(QUEUES),
            tenant=who if chance.random() < 0.95 else self._other(who),
            group=chance.choice(GROUPS),
            payload=NULL,
            unique_key=chance.choice((None, None, "k")),
            after=() if chance.random() < 0.7 else (self._id(),),
            max_attempts=2,
        )

    def _other(self, who: str) -> str:
        return "c" if who == "a" else "a"

    def _op(self, who: str) -> AnyOp:
        chance = self._chance
        tenant = who if chance.random() < 0.95 else self._other(who)
        queue = chance.choice(QUEUES)
        kinds: list[AnyOp] = [
            ops.Enqueue((self._spec(who), self._spec(who)), "skip"),
            ops.Enqueue((self._spec(who),)),
            ops.Claim((queue,), who, 5_000, 2, chance.choice((None, tenant))),
            ops.Claim((queue,), who, 60_000, 1, tenant, ("g",)),
            ops.Ack(self._id(), 0),
            ops.Ack(self._id(), 0, then=(self._spec(who),), keep=False),
            ops.Fail(self._id(), 0, "no", retry_in_ms=chance.choice((0, 900))),
            ops.Extend(self._id(), 0, 60_000),
            ops.Release(self._id(), 0),
            ops.Progress(self._id(), 0, 50),
            ops.Cancel((self._id(), self._id())),
            ops.Replay((self._id(), self._id())),
            *of_feature("RunNow", (self._id(), self._id())),
            ops.Update((self._id(), self._id()), -1, delay_ms=chance.choice((None, 900))),
            ops.ReplayEdited(self._id(), f"{who}/{chance.randrange(6)}", 5),
            ops.Delete((self._id(), self._id()), chance.choice(((), (State.DONE,)))),
            ops.SetLimit(queue, tenant, concurrency=chance.choice((1, 3))),
            ops.ClearLimit(queue, tenant),
            ops.Pause(queue, tenant),
            ops.Resume(queue, tenant),
            ops.Resume(queue, tenant),
            ops.TakeSlot("s", tenant, "holder", 5_000, 1),
            ops.DropSlot("s", tenant, "holder"),
            Beat(LiveWorker("w", (queue,)), chance.choice((0, 5_000))),
            ops.PutSchedule(
                ops.Schedule(f"{who}-nightly", "0 3 * * *", self._spec(who)),
            ),
            ops.DropSchedule(chance.choice(NAMES)),
            ops.Fire(chance.choice(NAMES), 1, f"{who}/9"),
            ops.Reconcile(queue, tenant),
            MuteError("0a1b2c3d4e5f"),
        ]
        return chance.choice(kinds)

    def _query(self, who: str) -> Query:
        chance = self._chance
        tenant = chance.choice((who, self._other(who)))
        queue = chance.choice(QUEUES)
        found: list[Query] = [
            queries.GetJob(self._id()),
            queries.GetJobs((self._id(), self._id())),
            Explain(self._id()),
            ListWorkers(chance.choice((None, queue))),
            queries.ListJobs(Filter(queue=queue), 100),
            queries.FindIds(Filter(tenant=tenant), 100),
            queries.ListSummaries(Filter(queue, tenant=tenant), 2),
            queries.ListPast(self._id()),
            queries.GetStats(),
            queries.GetStats(queue),
            queries.ListTenants(queue, 100),
            queries.ListGroups(queue, tenant, 100),
            queries.ListLimits(),
            queries.ListSlots("s", tenant),
            queries.ListSchedules(),
            queries.GetTimetable(),
            queries.NextDue((queue,)),
            ListErrors(chance.choice((None, queue))),
            ListAudit(),
            ListRates(0, 2**40),
        ]
        return chance.choice(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_is_told_and_has_the_same_as_if_it_were_alone(
    queue: Queue, clock: ManualClock, seed: int
) -> None:
    alone = World(tenure.connect("memory://", settings=Settings(), clock=clock))
    both = World(queue)
    chance = Chance(seed)
    for world in (alone, both):  # otherwise the first of the two makes them known to the other
        for name in QUEUES:
            world.queue.enqueue(name, id=f"c/{name}", tenant="c", group="g")
    with asyncio.Runner() as runner, alone.queue:
        for step in range(STEPS):
            hers, his = chance.request("a"), chance.request("c")

            async def at_once(first: Request, second: Request) -> tuple[Any, Any]:
                return await asyncio.gather(both.ask(first), both.ask(second))

            _, told = runner.run(at_once(hers, his))
            assert told == runner.run(alone.ask(his)), f"step {step}: {his}"
            clock.advance(random.Random(seed + step).choice((0, 0.3, 1, 6)))
            for world in (alone, both):  # a claim of either would also do what is due for both
                world.queue.maintain()
        assert both.of("c") == alone.of("c")
