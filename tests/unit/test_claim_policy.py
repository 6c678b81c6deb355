"""The policy of claims beside a naive one, on random stores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import pytest

from tenure.core.claim import UNLIMITED, InOrder, alike, pick, room_of
from tenure.model import ops
from tenure.model.ops import Limit

Job = tuple[int, int, str]  # priority, seq, group


@dataclass(eq=False)
class Tenant:
    name: str
    turn: int
    stride: int
    room: int
    groups: dict[str, int]  # how many jobs of each may start
    jobs: list[Job]  # in order

    def startable(self, taken: list[Job], but: frozenset[str]) -> Iterator[Job]:
        """What may start after others were taken, one job at a time."""
        if len(taken) < self.room:
            for job in self.jobs:
                used = sum(one[2] == job[2] for one in taken)
                if job not in taken and job[2] not in but and used < self.groups[job[2]]:
                    yield job


@dataclass
class Store:
    limit: Limit
    leased: int
    tokens: int
    served: int
    tenants: list[Tenant]
    not_groups: frozenset[str]
    picked: list[tuple[str, Job]] = field(default_factory=list)

    def naive(self, only: str | None, limit: int) -> list[tuple[str, Job]]:
        """The same picked one by one, with everything looked up anew."""
        room = min(limit, 0 if self.limit.paused else limit)
        if self.limit.concurrency is not None:
            room = min(room, self.limit.concurrency - self.leased)
        if self.limit.per_ms is not None:
            room = min(room, self.tokens // self.limit.per_ms)
        taken: list[tuple[str, Job]] = []
        while len(taken) < room:
            found = []
            for tenant in self.tenants:
                own = [job for name, job in taken if name == tenant.name]
                first = next(tenant.startable(own, self.not_groups), None)
                if first is not None and only in (None, tenant.name):
                    found.append((tenant.turn, tenant.name, first, tenant))
            if not found:
                break
            turn, name, job, tenant = min(found, key=lambda one: one[:2])
            taken.append((name, job))
            if only is None:
                self.served = max(turn, self.served + 1)
                tenant.turn = self.served + tenant.stride
        return taken


class Lane:
    """The jobs of a group, as an engine would fetch them."""

    def __init__(self, jobs: list[Job], room: int, into: list[Job]) -> None:
        self.jobs = jobs[:room]
        self.into = into

    def place(self) -> Job | None:
        return self.jobs[0] if self.jobs else None

    def take(self, most: int) -> int:
        taken, self.jobs = self.jobs[:most], self.jobs[most:]
        self.into += taken
        return len(taken)


class Source:
    """Implements core.claim.Source over a Store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.served = store.served
        self.lines: dict[str, tuple[InOrder[Lane], list[Job]]] = {}
        self.pages = 0
        self.spent: list[int] = []

    def room(self) -> int:
        return room_of(self.store.limit, self.store.leased, self.store.tokens)

    def tenants(self, room: int) -> Iterator[Tenant]:
        line = sorted(self.store.tenants, key=attrgetter("turn", "name"))
        for at in range(0, len(line) + 1, room):
            self.pages += 1
            yield from line[at : at + room]

    def tenant(self, name: str, room: int) -> Tenant | None:
        return next((one for one in self.store.tenants if one.name == name), None)

    def take(self, tenant: Tenant, most: int) -> int:
        if tenant.name not in self.lines:
            into: list[Job] = []
            lanes = [
                Lane([job for job in tenant.jobs if job[2] == group], room, into)
                for group, room in tenant.groups.items()
                if group not in self.store.not_groups
            ]
            ready = sorted((lane for lane in lanes if lane.jobs), key=lambda one: one.jobs[0])
            jobs = InOrder(iter(ready), Lane.place, Lane.take, tenant.room)
            self.lines[tenant.name] = jobs, into
        jobs, into = self.lines[tenant.name]
        before = len(into)
        count = jobs.take(most)
        assert count == len(into) - before <= most
        self.store.picked += [(tenant.name, job) for job in into[before:]]
        return count

    def spend(self, count: int) -> None:
        self.spent.append(count)


def a_store(chance: random.Random) -> Store:
    bound, rate = chance.choice((None, None, 0, 3, 9)), chance.choice((None, None, 5))
    per_ms, paused = None if rate is None else 100, chance.random() < 0.05
    limit = Limit("q", None, None, bound, rate, per_ms, None, paused)
    tenants = []
    for name in chance.sample("abcdefghij", chance.randrange(10)):
        groups = {g: chance.choice((UNLIMITED, UNLIMITED, 0, 1, 2)) for g in "xyz"}
        jobs = [
            (chance.choice((0, 0, 0, -1, 2)), seq, chance.choice("xyz"))
            for seq in range(chance.choice((0, 1, 2, 3, 12)))
        ]
        tenants.append(
            Tenant(
                name,
                turn=chance.choice((0, 0, 7, 50, 51, 200)),
                stride=ops.stride(chance.choice((None, 2, 100_000, 500_000))),
                room=chance.choice((UNLIMITED, UNLIMITED, 0, 1, 4)),
                groups=groups,
                jobs=sorted(jobs),
            )
        )
    skipped = frozenset(chance.choice(("", "", "x", "yz")))
    leased, tokens = chance.randrange(4), chance.choice((0, 99, 100, 450))
    return Store(limit, leased, tokens, chance.choice((0, 30, 60)), tenants, skipped)


@pytest.mark.parametrize("block", range(8))
def test_the_policy_picks_what_the_naive_one_picks(block: int) -> None:
    for seed in range(block * 250, block * 250 + 250):
        naive, store = a_store(random.Random(seed)), a_store(random.Random(seed))
        chance = random.Random(seed)
        only, limit = chance.choice((None, None, None, "a")), chance.choice((1, 2, 5, 30))
        source = Source(store)

        expected = naive.naive(only, limit)
        pick([source], only, limit)

        assert store.picked == expected, seed
        assert source.served == naive.served, seed
        assert {one.name: one.turn for one in store.tenants} == {
            one.name: one.turn for one in naive.tenants
        }, seed
        assert source.spent == ([len(expected)] if expected else []), seed


def test_no_more_tenants_are_fetched_than_are_needed() -> None:
    tenants = [
        Tenant(f"t{n:02}", n, 1_000, UNLIMITED, {"x": UNLIMITED}, [(0, n, "x")]) for n in range(50)
    ]
    source = Source(Store(Limit("q"), 0, 0, 0, tenants, frozenset()))
    pick([source], None, 10)
    assert source.pages == 1
    assert [name for name, _ in source.store.picked] == [f"t{n:02}" for n in range(10)]


def test_jobs_of_the_next_queue_are_taken_only_if_the_first_has_too_few() -> None:
    def stores() -> Iterator[Source]:
        for n in range(3):
            opened.append(n)
            jobs = [(0, seq, "x") for seq in range(2)]
            tenant = Tenant("t", 0, 1, UNLIMITED, {"x": UNLIMITED}, jobs)
            yield Source(Store(Limit("q", paused=n == 0), 0, 0, 0, [tenant], frozenset()))

    opened: list[int] = []
    pick(stores(), None, 2)
    assert opened == [0, 1]


def test_claims_that_look_for_the_same_jobs_are_picked_together() -> None:
    def claim(queue: str, worker: str, **more: str) -> ops.Claim:
        return ops.Claim((queue,), worker, 1_000, **more)  # type: ignore[arg-type]

    batch = [claim("a", "v"), claim("a", "w"), claim("a", "w", tenant="t"), claim("b", "w")]
    assert [len(calls) for calls in alike([*batch, batch[0]])] == [2, 1, 1, 1]
