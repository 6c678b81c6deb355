"""Random jobs to enqueue or import, distributed as in production: most are plain, some use every
option."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.job import FINAL, NULL, Failure, Job, JobSpec, NewJob, State, prepare
from tenure.model.retry import Backoff

# Some names are hard to write in SQL, in an array or in a key.
TENANTS: list[str] = [
    "",
    "acme",
    "bolt",
    "cask",
    "dune",
    "ekō",
    'f"}{,',
    "NULL",
    "=i",
    "j\\k'",
    *"lmno",
]
GROUPS = ["g", "h", "{i}", "=*"]
QUEUES = ["mail", "web", "bulk", "solo"]  # solo has one lane and no limits, most of the time
KINDS = ["", "welcome", "rémind"]
KEYS = ["k", "l", "'m'", "n"]
NAMED = [f"job-{n}" for n in range(60)]
BACKOFFS = [
    None,
    Backoff("fixed", 0),
    Backoff("linear", 500, max_ms=1200),
    Backoff("quadratic", 300),
    Backoff("exponential", 1000, factor=3.0, jitter=0.5),
]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PAYLOAD_LIMIT = 1_048_576


class Specs:
    """Generates random jobs. Reads the model to refer to existing ones."""

    def __init__(self, chance: random.Random, model: MemoryEngine, *, large: bool) -> None:
        self._chance = chance
        self._model = model
        self._large = large  # whether some payloads are large
        self._made = 0

    def queue(self) -> str:
        (queue,) = self._chance.choices(QUEUES, (5, 4, 2, 4))
        return queue

    def tenant(self) -> str:
        """A random tenant; a few tenants have most of the jobs."""
        return TENANTS[min(int(self._chance.expovariate(0.35)), len(TENANTS) - 1)]

    def group(self) -> str:
        return self._chance.choice(GROUPS) if self._chance.random() < 0.25 else ""

    def lane(self) -> tuple[str, str, str]:
        queue = self.queue()
        if queue == "solo" and self._chance.random() > 0.001:
            return queue, "", ""
        return queue, self.tenant(), self.group()

    def _payload(self) -> Any:
        draw = self._chance.random()
        if draw < 0.9:
            return {"to": f"{self._chance.randrange(1000)}@example.com"}
        if draw < 0.96:
            return None
        size = self._chance.choice((2_000, 12_000, 120_000 if self._large else 3_000))
        return "ü\\\"'" + "x" * size

    def plain(self, now: int, count: int) -> tuple[JobSpec, ...]:
        """Jobs as most callers enqueue them, mostly identical."""
        queue, tenant, group = self.lane()
        jobs = []
        for _ in range(count):
            if self._chance.random() < 0.2:
                queue, tenant, group = self.lane()
            jobs.append(
                NewJob(
                    payload=self._payload(),
                    queue=queue,
                    tenant=tenant,
                    group=group,
                    kind=self._chance.choice(KINDS),
                    priority=self._chance.choice((0,) * 8 + (-5, 7)),
                    max_attempts=self._chance.choice((3, 3, 3, 1)),
                )
            )
        return self._prepared(jobs, now)

    def _prepared(self, jobs: list[NewJob], now: int) -> tuple[JobSpec, ...]:
        """Prepare jobs as the product does, but with ids that come from the seed."""
        specs = prepare(jobs, now, PAYLOAD_LIMIT)
        return tuple(replace(s, id=self._id(now)) if s.made_up_id else s for s in specs)

    def _id(self, now: int) -> str:
        self._made += 1
        time, noise = f"{now:012x}", f"{self._chance.getrandbits(48):012x}"
        return (
            f"{time[:8]}-{time[8:]}-7{self._made >> 6 & 0xFFF:03x}-8{self._made & 0x3F:03x}-{noise}"
        )

    def special(self, now: int, count: int) -> tuple[JobSpec, ...]:
        """Jobs with any of the options."""
        jobs: list[NewJob] = []
        for _ in range(count):
            siblings = [job.id for job in jobs if job.id is not None]
            jobs.append(self._special(now, siblings))
        if count > 1 and self._chance.random() < 0.04:  # a cycle
            jobs[0] = replace(jobs[0], id=NAMED[0], after=[NAMED[1]])
            jobs[1] = replace(jobs[1], id=NAMED[1], after=[NAMED[0]])
        return self._prepared(jobs, now)

    def _special(self, now: int, siblings: list[str]) -> NewJob:
        chance = self._chance
        queue, tenant, group = self.lane()
        job = NewJob(
            payload=self._payload(),
            queue=queue,
            tenant=tenant,
            group=group,
            kind=chance.choice(KINDS),
            priority=chance.choice((-(2**31), -1, 0, 0, 0, 3, 2**31 - 1)),
            max_attempts=chance.choice((1, 2, 3, 12)),
            id=chance.choice(NAMED) if chance.random() < 0.4 else None,
            if_parent_fails=chance.choice(("wait", "cancel", "run")),
            backoff=chance.choice(BACKOFFS),
        )
        if chance.random() < 0.3:
            job.delay = chance.choice((0.001, 0.5, 2, 10))
        elif chance.random() < 0.2:
            at = now + chance.choice((-60_000, -1, 0, 1, 800, 20_000))
            job.run_at = datetime.fromtimestamp(at / 1000, UTC)
        if chance.random() < 0.35:
            job.expires_in = chance.choice((0.001, 0.4, 1.5, 8, 60))
        if chance.random() < 0.25:
            job.unique_key = chance.choice(KEYS)
        if chance.random() < 0.3:
            job.after = self._parents(siblings)
        if chance.random() < 0.2:
            job.timeout = chance.choice((0.5, 30))
        if chance.random() < 0.1:
            job.trace = TRACE
        return job

    def _parents(self, siblings: list[str]) -> list[str]:
        """Mostly jobs that have not finished, some that have, and now and then one that never
        existed."""
        live, known = list(self._model._live), list(self._model._records)
        found = []
        for _ in range(self._chance.randint(1, 3)):
            draw = self._chance.random()
            if siblings and draw < 0.3:
                found.append(self._chance.choice(siblings))
            elif live and draw < 0.8:
                found.append(self._chance.choice(live))
            elif known and draw < 0.97:
                found.append(self._chance.choice(known))
            else:
                found.append("never-was")
        return found

    # Jobs of another store ----------------------------------------------------------------------

    def entries(
        self, now: int, tokens: tuple[int, ...], *, old_leases: bool
    ) -> tuple[ops.Entry, ...]:
        """Jobs to import, some with these tokens."""
        specs = self.special(now, self._chance.randint(1, 6))
        new = {spec.id for spec in specs}
        return tuple(self._entry(spec, now, tokens, new, old_leases) for spec in specs)

    def _entry(
        self, spec: JobSpec, now: int, tokens: tuple[int, ...], new: set[str], old_leases: bool
    ) -> ops.Entry:
        chance = self._chance
        known = self._model._records.keys() | new
        waits = tuple(i for i in spec.after if i in known) if chance.random() < 0.9 else spec.after
        states = [State.PENDING, State.LEASED, *FINAL] if not waits else [State.WAITING]
        state = chance.choice(sorted(states))
        created = now - chance.choice((0, 5_000, 100_000))
        job = Job(
            id=spec.id, queue=spec.queue, state=state, raw_payload=spec.payload,
            priority=spec.priority, run_at=spec.starts_at(created), created_at=created,
            updated_at=created, attempts=0, max_attempts=spec.max_attempts, tenant=spec.tenant,
            group=spec.group, kind=spec.kind, unique_key=spec.unique_key,
            timeout_ms=spec.timeout_ms, backoff=spec.backoff, after=spec.after,
            if_parent_fails=spec.if_parent_fails, trace=spec.trace,
            expires_at=None if spec.expires_in_ms is None else now + spec.expires_in_ms,
        )  # fmt: skip
        if state not in (State.WAITING, State.PENDING):
            job = self._begun(job, now, chance.choice(tokens))
        if state is State.LEASED:
            least = -5_000 if old_leases else 1
            job = replace(job, lease_until=now + chance.choice((least, 1, 700, 30_000)))
        ready = state is State.PENDING and job.run_at <= now and chance.random() < 0.8
        return ops.Entry(job, ready, waits if state is State.WAITING else ())

    def _begun(self, job: Job, now: int, token: int) -> Job:
        chance = self._chance
        began = now - chance.choice((0, 10, 4_000))
        failures = tuple(
            Failure(began, n, "no", "OSError", "at line 1\n", "w0")
            for n in range(1, chance.randint(1, 3))
        )
        job = replace(
            job,
            attempts=chance.randint(1, job.max_attempts),
            token=token,
            worker="w0",
            started_at=began,
            updated_at=now,
            progress=chance.choice((None, 40)),
            note=chance.choice((None, "half")),
            errors=failures,
        )
        if job.state in FINAL:
            result = msgspec.Raw(b'{"n":1}') if job.state is State.DONE else NULL
            job = replace(job, finished_at=now - chance.choice((0, 3_000)), raw_result=result)
        return job
