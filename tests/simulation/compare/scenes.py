"""Short sequences of steps as a worker makes them, for paths that random steps hardly take.

A worker acks all jobs of a claim and claims again from the same queue. Between that, something may
happen that the fast paths do not handle. Each scene reads the model before every step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from tenure.model import ops, queries
from tenure.model.job import NULL, Job, JobSpec, State
from tests.simulation.compare.rigs import Rig
from tests.simulation.compare.steps import Ask, Call, Run, Step, Wait

LINE, CROWD = "line", "crowd"  # a queue with one lane, and one with many tenants
_RESULTS = [NULL, msgspec.Raw(b'{"sent":true}')]
_TROUBLE = ("limit", "pause", "child", "due", "expired", "released", "wrong token", "cancelled")


class Scenes:
    """Generates scenes. They have their own chance, so that the other steps do not depend on it."""

    def __init__(self, seed: int, rig: Rig) -> None:
        self._chance = random.Random(seed + 5)
        self._rig = rig
        self._caller = 0
        self._made = 0
        self._troubles = seed  # in turns, so that a short run has all of them

    def begins(self) -> bool:
        """Whether a scene begins now. Where steps are expensive, random ones are of more use."""
        return self._rig.traits.cheap and self._chance.random() < 0.022

    def any(self) -> Iterator[Step]:
        """The steps of a random scene."""
        self._caller = self._chance.randrange(len(self._rig.engines))
        return self._crowd() if self._chance.random() < 0.3 else self._worker()

    def _worker(self) -> Iterator[Step]:
        chance = self._chance
        queue = chance.choices((LINE, "solo", "mail"), (8, 2, 1))[0]
        yield self._run(self._enqueue(queue, [""] * chance.choice((6, 15, 30))))
        claims = [
            self._claim(queue, chance.choice((1, 3, 8))) for _ in range(chance.choice((1, 1, 2)))
        ]
        yield self._run(tuple(claims))
        for _ in range(chance.randint(3, 5)):
            acks, trouble = self._acks(queue), None
            if chance.random() < 0.6:
                self._troubles += 1
                trouble = _TROUBLE[self._troubles % len(_TROUBLE)]
                yield from self._trouble(trouble, queue)
            if trouble == "wrong token":
                acks = (replace(acks[0], token=acks[0].token + 1), *acks[1:])
            if trouble == "cancelled" and chance.random() < 0.5:
                yield self._run(acks)  # a worker that stops
                acks = self._acks(queue)
            yield self._run(acks, *((claim,) for claim in claims), commit=chance.random() < 0.3)
            if trouble in ("limit", "pause"):
                yield self._run((ops.ClearLimit(queue, None, None), ops.Resume(queue, None, None)))

    def _trouble(self, kind: str, queue: str) -> Iterator[Step]:
        """Something that happens to the queue or its leased jobs."""
        held = self._held(queue)
        some = self._chance.choice(held) if held else None
        if kind == "limit":
            yield self._run((ops.SetLimit(queue, concurrency=self._chance.choice((1, 30))),))
        elif kind == "pause":
            yield self._run((ops.Pause(queue),))
        elif kind == "due":
            yield self._run(self._enqueue(queue, [""], delay_ms=1))
            yield Wait(5)
        elif kind == "expired":
            yield self._run(self._enqueue(queue, [""] * 3, expires_in_ms=1, priority=-5))
            yield Wait(5)
        elif some is not None and kind == "child":
            yield self._run(self._enqueue(queue, [""], after=(some.id,)))
        elif some is not None and kind == "released":
            yield self._run((ops.Release(some.id, some.token),))
        elif some is not None and kind == "cancelled":
            yield self._run((ops.Cancel((some.id,)),))

    def _acks(self, queue: str) -> tuple[ops.Ack, ...]:
        """Acks of all jobs of the last claims, half of the time without results."""
        results = self._chance.choice(([NULL], _RESULTS))
        acks = [
            ops.Ack(job.id, job.token, self._chance.choice(results)) for job in self._held(queue)
        ]
        return tuple(acks) or (ops.Ack("nobody", 1),)

    def _crowd(self) -> Iterator[Step]:
        """Tenants with one or two jobs each, more of them than a claim takes, or just as many."""
        chance = self._chance
        names = [f"t{n}" for n in range(60)]
        several = chance.sample(names, 5)
        yield self._run(self._enqueue(CROWD, names))
        yield self._run(self._enqueue(CROWD, several * 2, priority=chance.choice((-5, 0, 7))))
        if chance.random() < 0.3:
            yield self._run(self._enqueue(CROWD, several, group="g"))
        for _ in range(chance.randint(2, 4)):
            limit = int(len(names) * chance.choice((0.3, 0.5, 1.5)))
            claim = self._claim(CROWD, limit)
            if chance.random() < 0.2:
                claim = replace(claim, not_groups=("g",))
            calls = (self._acks(CROWD), (claim,)) if self._held(CROWD) else ((claim,),)
            yield self._run(*calls, commit=chance.random() < 0.3)
        yield Ask(self._caller, queries.LongestWaits(CROWD, tuple(several)))

    def _enqueue(self, queue: str, tenants: Sequence[str], **fields: object) -> Call:
        specs = []
        for tenant in tenants:
            self._made += 1
            job_id = f"{queue}-{self._made}"
            specs.append(JobSpec(job_id, queue, NULL, tenant=tenant, made_up_id=True))
        return (ops.Enqueue(tuple(replace(spec, **fields) for spec in specs)),)

    def _claim(self, queue: str, limit: int) -> ops.Claim:
        return ops.Claim((queue,), "w1", 60_000, limit)

    def _held(self, queue: str) -> list[Job]:
        """The leased jobs of the last two claims."""
        live = self._rig.model._live.values()
        held = [r.job for r in live if r.job.queue == queue and r.job.state is State.LEASED]
        last = sorted({job.token for job in held})[-2:]
        return [job for job in held if job.token in last]

    def _run(self, *calls: Call, commit: bool = False) -> Run:
        return Run(self._caller, calls, commit)
