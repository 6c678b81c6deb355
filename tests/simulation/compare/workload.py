"""Random steps from a seed, weighted as in production.

It reads the model to choose useful arguments: leases that are held, jobs in each state, limits that
are nearly reached. A run goes through phases, so that backlogs grow and are worked off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tenure.engines.memory import MemoryEngine
from tenure.features.errors.data import ErrorGroups, ListErrors, MuteError
from tenure.features.steps.data import (
    Checkpoint,
    ListSteps,
    Recall,
    ReplayFrom,
    Signal,
    Suspend,
    with_steps,
)
from tenure.model import ops, queries
from tenure.model.cron import CatchUp
from tenure.model.job import NULL, Job, JobSpec, State
from tests.simulation.compare.rigs import Rig, Traits
from tests.simulation.compare.scenes import Scenes
from tests.simulation.compare.specs import GROUPS, KEYS, KINDS, NAMED, QUEUES, TENANTS, Specs
from tests.simulation.compare.steps import AnyOp, Ask, Call, Run, Step, Wait
from tests.support.feature_ops import of_feature

PHASE_STEPS = 20  # roughly; fewer if steps are expensive
RESULTS = [NULL, NULL, NULL, msgspec.Raw(b'{"sent":true}'), msgspec.Raw(b'"' + b"r" * 3000 + b'"')]
STEPS = ["one", "two", "three"]
LARGE_RESULT = msgspec.Raw(b'"' + "ø".encode() * 30_000 + b'"')
WORKERS = ["w1", "w2", "w3'"]
SLOTS = [("team", "acme"), ("team", "bolt"), ("{a}", "k,1")]
CRONS = [("* * * * *", "UTC"), ("0 3 * * *", "UTC"), ("* * * * *", "Europe/Copenhagen")]

# How often each kind of call is made, by phase.
_ALWAYS = {"fail": 3, "release": 2, "extend": 3, "progress": 2, "once": 3, "special": 5}
PHASES: dict[str, dict[str, int]] = {
    "fill": {**_ALWAYS, "plain": 60, "claim": 8, "ack": 6},
    "work": {**_ALWAYS, "plain": 8, "claim": 35, "ack": 35},
    "mixed": {
        **_ALWAYS, "plain": 15, "claim": 20, "ack": 15, "cancel": 2, "replay": 3,
        "run_now": 2, "delete": 2, "limit": 4, "pause": 4, "slot": 4, "schedule": 6, "maintain": 3,
        "reconcile": 2, "transfer": 3,
    },
    "operate": {
        **_ALWAYS, "plain": 10, "special": 12, "claim": 25, "ack": 10, "cancel": 5, "replay": 5,
        "run_now": 4, "delete": 5, "limit": 12, "pause": 8, "slot": 3, "schedule": 6, "maintain": 5,
        "reconcile": 3, "transfer": 5,
    },
}  # fmt: skip


class Workload:
    """An endless history."""

    def __init__(self, seed: int, rig: Rig) -> None:
        self._chance = random.Random(seed)
        self._aside = random.Random(seed)  # for what came later, so that histories stay alike
        self._bounds = random.Random(seed + 1)
        self._muting = random.Random(seed + 2)
        self._lists = random.Random(seed + 3)
        self._edits = random.Random(seed + 4)
        self._durable = random.Random(seed + 5)
        self._scenes = Scenes(seed, rig)
        self._scene: Iterator[Step] = iter(())
        self._asked = 5 * seed
        self._listed = seed
        self._rig = rig
        self._model: MemoryEngine = rig.model
        self._traits: Traits = rig.traits
        self._specs = Specs(self._chance, rig.model, large=True)
        self._deep = self._chance.choice((60, 250)) if rig.traits.cheap else 80
        self._phase = "fill"
        self._phase_steps = PHASE_STEPS if rig.traits.cheap else PHASE_STEPS // 3
        self._left = self._phase_steps
        self._keys: dict[str, ops.Once] = {}  # used keys
        self._gone: list[ops.Entry] = []  # deleted jobs, which may be imported again
        self._caller = 0
        self._used: set[str] = set()  # jobs of this step whose leases were used
        self._kinds: dict[str, Callable[[], Call]] = {
            "plain": self._plain,
            "special": self._special,
            "claim": self._claim,
            "ack": self._ack,
            "fail": self._fail,
            "release": self._release,
            "extend": self._extend,
            "progress": self._progress,
            "cancel": lambda: (ops.Cancel(self._ids()),),
            "replay": lambda: (ops.Replay(self._ids(State.DEAD, State.CANCELLED)),),
            "run_now": lambda: tuple(of_feature("RunNow", self._ids(State.PENDING))),
            "delete": self._delete,
            "limit": self._limit,
            "pause": self._pause,
            "slot": self._slot,
            "schedule": self._schedule,
            "maintain": self._maintain,
            "reconcile": self._reconcile,
            "transfer": self._transfer,
            "once": self._once,
        }

    @property
    def _now(self) -> int:
        """The time that applies to the caller of this step."""
        self._rig.set_model_clock(self._caller)
        return self._rig.model_clock.now_ms()

    @property
    def _many_ended(self) -> bool:
        """Whether so many jobs have ended that some should be removed."""
        return len(self._model._records) - len(self._model._live) > 2 * self._deep

    def next(self) -> Step:
        """The next step."""
        step = next(self._scene, None)
        if step is None and self._scenes.begins():
            self._scene = self._scenes.any()
            step = next(self._scene)
        return step or self._random_step()

    def _random_step(self) -> Step:
        self._left -= 1
        if self._left <= 0:
            self._change_phase()
        self._caller = self._chance.randrange(len(self._rig.engines))
        draw = self._chance.random()
        if draw < 0.10:
            return Wait(self._span())
        if draw < 0.16:
            return Ask(self._caller, self._query())
        return self._run()

    def _change_phase(self) -> None:
        self._left = self._chance.randint(self._phase_steps // 2, self._phase_steps * 2)
        ready = sum(record.ready for record in self._model._live.values())
        if ready > self._deep * 1.5:
            self._phase = self._chance.choice(("work", "work", "mixed"))
        elif ready < self._deep / 3:
            self._phase = self._chance.choice(("fill", "fill", "operate", "mixed"))
        else:
            self._phase = self._chance.choice(("work", "mixed", "operate", "operate"))

    def _span(self) -> int:
        """How long nothing happens. Now and then the time is set back."""
        chance = self._chance
        back = (1, 700, 1_500, 3_000, 60_000)
        if chance.random() < 0.1:
            return -chance.choice([ms for ms in back if ms <= self._traits.most_back_ms])
        if chance.random() < 0.06:
            long = chance.choice((130_000, 14 * 60_000, 16 * 60_000))
            return ops.FORGET_MS if self._aside.random() < 0.3 else long
        return chance.choice((1, 5, 50, 300, 300, 1_000, 2_500, 10_000, 61_000))

    def _run(self) -> Run:
        chance = self._chance
        count = chance.choice((1, 1, 1, 2, 3, 6, 12))
        weights = PHASES[self._phase]
        self._used = set()
        if chance.random() < 0.6:
            (kind,) = chance.choices(list(weights), list(weights.values()))
            kinds = [kind] * count
        else:
            kinds = chance.choices(list(weights), list(weights.values()), k=count)
        if self._many_ended:
            kinds.append("maintain")
        calls = tuple(call for kind in kinds if (call := self._kinds[kind]()))
        if kinds[0] == "claim" and chance.random() < 0.6:
            calls = self._alike(calls)
        if self._edits.random() < 0.06:
            calls += (self._edit(),)
        for _ in range(self._durable.choice((0, 0, 0, 0, 0, 0, 0, 1, 4))):
            calls += (self._durably(),)
        if self._bounds.random() < 0.08:
            calls = tuple(tuple(map(self._granted, call)) for call in calls)
        if self._muting.random() < 0.04:
            calls = (*calls, self._mute())
        commit = chance.random() < 0.4
        standing: tuple[ops.Claim, ...] = ()
        if commit and chance.random() < 0.25:
            standing = (self._one_claim(),)
        return Run(self._caller, calls or (self._claim(),), commit, standing)

    def _mute(self) -> Call:
        found = self._model.read(ListErrors())
        assert isinstance(found, ErrorGroups)
        groups = [one.group for one in found.errors] or ["unknown"]
        chance = self._muting
        return (MuteError(chance.choice(sorted(groups)), chance.random() < 0.6),)

    def _granted(self, op: AnyOp) -> AnyOp:
        """An operation that may not see all jobs."""
        chance = self._bounds
        if isinstance(op, ops.Once):
            return msgspec.structs.replace(op, ops=tuple(map(self._granted, op.ops)))
        if not isinstance(op, ops.GrantedOp) or chance.random() < 0.2:
            return op
        grant = ops.Grant(
            chance.choice((None, tuple(chance.sample(QUEUES, 2)))),
            chance.choice((None, tuple(chance.sample(TENANTS, 2)))),
        )
        return msgspec.structs.replace(op, grant=grant)

    def _alike(self, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        """Claims of many workers with the same arguments."""
        first = calls[0][0]
        assert isinstance(first, ops.Claim)
        return tuple(
            (
                msgspec.structs.replace(
                    first,
                    worker=self._chance.choice(WORKERS),
                    limit=self._chance.choice((1, 2, 10)),
                    lease_ms=self._lease_ms(),
                ),
            )
            for _ in calls
        )

    # Jobs ---------------------------------------------------------------------------------------

    def _plain(self) -> Call:
        many = self._chance.choice((1, 1, 1, 3, 10, 40 if self._traits.cheap else 12))
        specs = self._specs.plain(self._now, many)
        if self._chance.random() < 0.06:
            span = self._chance.choice((300, 1_500))
            specs = tuple(msgspec.structs.replace(spec, expires_in_ms=span) for spec in specs)
        return (ops.Enqueue(specs),)

    def _special(self) -> Call:
        specs = self._specs.special(self._now, self._chance.choice((1, 1, 2, 4)))
        return (ops.Enqueue(specs, self._chance.choice(("error", "skip"))),)

    def _lease_ms(self) -> int:
        return self._chance.choice((30_000, 60_000, 60_000, 3_000, 800, 1))

    def _claim(self) -> Call:
        return (self._one_claim(),)

    def _one_claim(self) -> ops.Claim:
        chance = self._chance
        queues: tuple[str, ...] = (self._specs.queue(),)
        if chance.random() < 0.2:
            queues = tuple(chance.sample([*QUEUES, "none"], chance.randint(1, 3)))
        tenant = self._specs.tenant() if chance.random() < 0.12 else None
        groups = tuple(chance.sample(["", *GROUPS], 2)) if chance.random() < 0.1 else ()
        limit = chance.choice((1, 1, 5, 20, 50 if self._traits.cheap else 20))
        return ops.Claim(queues, chance.choice(WORKERS), self._lease_ms(), limit, tenant, groups)

    def _leases(self, most: int) -> list[tuple[str, int]]:
        """Jobs with their tokens: most are valid, some are old, some belong to jobs that are not
        leased or never existed."""
        live = self._model._live.values()
        held = [r.job for r in live if r.job.state is State.LEASED]
        if self._chance.random() < 0.95:
            held = [job for job in held if job.id not in self._used]
        picked = self._chance.sample(held, min(len(held), self._chance.randint(1, most)))
        self._used |= {job.id for job in picked}
        return [self._perhaps_wrong(job) for job in picked] or [self._stale()]

    def _perhaps_wrong(self, job: Job) -> tuple[str, int]:
        draw = self._chance.random()
        if draw < 0.92:
            return job.id, job.token
        if draw < 0.96:
            never = (
                self._model._token + 10_000
            )  # an earlier claim of the batch may get the next ones
            return job.id, self._chance.choice((0, 1, job.token - 1, never))
        return self._stale()

    def _stale(self) -> tuple[str, int]:
        known = list(self._model._records)
        if not known or self._chance.random() < 0.1:
            return "nobody", 1
        job = self._model._records[self._chance.choice(known)].job
        return job.id, job.token

    def _ack(self) -> Call:
        chance = self._chance
        plain = chance.random() < 0.75
        batch = []
        for job_id, token in self._leases(20):
            result = chance.choice(RESULTS)
            if plain:
                batch.append(ops.Ack(job_id, token, result))
                continue
            then: tuple[Any, ...] = ()
            if chance.random() < 0.3:
                make = chance.choice((self._specs.plain, self._specs.special))
                then = make(self._now, chance.randint(1, 2))
            batch.append(ops.Ack(job_id, token, result, then, chance.random() < 0.7))
        return tuple(batch)

    def _fail(self) -> Call:
        chance = self._chance
        return tuple(
            ops.Fail(
                job_id, token, "böom", chance.choice(("", "OSError")), chance.choice(("", "at 1")),
                retry_in_ms=chance.choice((None, None, 0, 900)), fatal=chance.random() < 0.2,
                cancel=chance.random() < 0.1,
            )
            for job_id, token in self._leases(4)
        )  # fmt: skip

    def _release(self) -> Call:
        delay = self._chance.choice((0, 0, 900))
        message = "not mine" if delay else ""
        return tuple(ops.Release(*lease, delay, message) for lease in self._leases(4))

    def _extend(self) -> Call:
        return tuple(ops.Extend(*lease, self._lease_ms()) for lease in self._leases(12))

    def _progress(self) -> Call:
        note = self._chance.choice((None, "half", "ü"))
        percent = self._chance.randint(0, 100)
        return tuple(ops.Progress(*lease, percent, note) for lease in self._leases(3))

    # What an operator does ----------------------------------------------------------------------

    def _ids(self, *states: State) -> tuple[str, ...]:
        """Some jobs, mostly in these states, by default in any that is not final."""
        records = self._model._records.values()
        fits = [
            r.job.id
            for r in records
            if (r.job.state in states if states else not r.job.finished_at)
        ]
        found = self._chance.sample(fits, min(len(fits), self._chance.randint(1, 5)))
        if self._chance.random() < 0.2:
            found.append(self._chance.choice(NAMED))
        if self._chance.random() < 0.2 and self._model._records:
            found.append(self._chance.choice(list(self._model._records)))
        return tuple(found)

    def _edit(self) -> Call:
        """Change jobs, most of which wait, or replay one with changes, which most often is over."""
        chance = self._edits
        records = list(self._model._records.values())
        over = chance.random() < 0.4
        fits = [r.job.id for r in records if (r.job.finished_at is not None) == over]
        ids = chance.sample(fits, min(len(fits), chance.choice((1, 1, 3)))) or ["nobody"]
        if records and chance.random() < 0.15:
            ids.append(chance.choice(records).job.id)
        payload: Any = chance.choice((msgspec.UNSET, *RESULTS))
        priority = chance.choice((None, -5, 0, 7))
        if over:
            new_id = chance.choice((f"again-{chance.randrange(10**9)}", ids[0]))
            later = chance.choice((0, 900))
            return (ops.ReplayEdited(ids[0], new_id, priority, later, payload),)
        at = self._now + chance.choice((-5_000, 300, 5_000))
        run_at, delay_ms = chance.choice(((None, None), (at, None), (None, 0), (None, 2_000)))
        return (ops.Update(tuple(ids), priority or 0, run_at, delay_ms, payload),)

    def _durably(self) -> Call:
        """Steps, suspensions and signals of a few jobs."""
        chance = self._durable
        records = list(self._model._records.values())
        held = [
            r.job for r in records if r.job.state is State.LEASED and r.job.id not in self._used
        ]
        kept = [r.job for r in records if r.job.has_steps]
        draw = chance.random()
        if held and draw < 0.7:
            job = chance.choice([job for job in held if job.has_steps] or held)
            self._used.add(job.id)
            return self._step_of(job.id, job.token - (chance.random() < 0.05))
        known = [job.id for job in kept] or [record.job.id for record in records]
        ids = tuple(chance.sample(known, min(len(known), 2))) or ("nobody",)
        if draw < 0.9:
            return (Signal(ids, name=chance.choice(STEPS), value=chance.choice(RESULTS)),)
        if draw < 0.95:
            return (ops.Cancel(ids[:1]),)
        return (ReplayFrom(ids, name=chance.choice(STEPS)),)

    def _step_of(self, job_id: str, token: int) -> Call:
        chance = self._durable
        name, key = chance.choice(STEPS), chance.choice(("", "", "k"))
        result = chance.choice((*RESULTS, LARGE_RESULT))
        lease_ms = chance.choice((None, 30_000))
        steps: list[AnyOp] = [
            Checkpoint(job_id, token, chance.choice(STEPS), key, result=result, lease_ms=lease_ms)
            for _ in range(chance.choice((0, 1, 3)))
        ]
        draw = chance.random()
        if draw < 0.2:
            (undo,) = self._own_jobs(1)
            steps.append(Checkpoint(job_id, token, f"u{name}", kind="undo", then=(undo,)))
        elif draw < 0.4:
            steps.append(Suspend(job_id, token, f"s{name}", key, delay_ms=chance.choice((0, 900))))
        elif draw < 0.6:
            steps.append(Checkpoint(job_id, token, name, kind="wait"))
            delay_ms = chance.choice((None, 900, 60_000))
            steps.append(Suspend(job_id, token, name, kind="wait", delay_ms=delay_ms))
        elif draw < 0.8:
            steps.append(Checkpoint(job_id, token, f"g{name}", kind="gather", result=result))
            then = self._own_jobs(chance.choice((0, 1, 3)))
            steps.append(Suspend(job_id, token, f"g{name}", kind="gather", then=then))
        return tuple(steps) or (Recall(job_id, token),)

    def _own_jobs(self, count: int) -> tuple[JobSpec, ...]:
        chance = self._durable
        return tuple(
            JobSpec(
                f"own-{chance.randrange(10**12)}", chance.choice(QUEUES), chance.choice(RESULTS)
            )
            for _ in range(count)
        )

    def _delete(self) -> Call:
        states = self._chance.choice(((), (), (State.DONE,), (State.DEAD, State.PENDING)))
        return (ops.Delete(self._ids(*states), states),)

    def _scope(self, *, defaults: bool) -> tuple[str, str | None, str | None]:
        chance = self._chance
        queue = chance.choices([*QUEUES, "new"], (8, 8, 4, 1, 1))[0]
        tenants = [None, None, None, *([self._specs.tenant()] * 3), *(["*"] if defaults else [])]
        tenant = chance.choice(tenants)
        if tenant is None or chance.random() < 0.5:
            return queue, tenant, None
        return queue, tenant, chance.choice([*GROUPS, *(["*"] if defaults else [])])

    def _limit(self) -> Call:
        chance = self._chance
        known = list(self._model._limits)
        if known and chance.random() < 0.4:
            return (ops.ClearLimit(*chance.choice(known)),)
        if chance.random() < 0.06:
            return (ops.ClearLimit(*self._scope(defaults=True)),)
        queue, tenant, group = self._scope(defaults=True)
        if tenant is None and chance.random() < 0.5:
            rate = chance.choice((1, 7, 40))
            per_ms = chance.choice((1_000, 20_000))
            return (ops.SetLimit(queue, rate=rate, per_ms=per_ms),)
        weight = chance.choice((None, 1, 3, 1000)) if tenant is not None and group is None else None
        concurrency = chance.choice((None, 1, 2, 5, 30)) if weight else chance.choice((1, 2, 5, 30))
        return (ops.SetLimit(queue, tenant, group, concurrency, weight=weight),)

    def _pause(self) -> Call:
        paused = [key for key, limit in self._model._limits.items() if limit.paused]
        if paused and self._chance.random() < 0.7:
            return (ops.Resume(*self._chance.choice(paused)),)
        kind = ops.Pause if self._chance.random() < 0.9 else ops.Resume
        queue, tenant, group = self._scope(defaults=False)
        if group is not None and self._chance.random() < 0.3:
            tenant = "*"
        return (kind(queue, tenant, group),)

    def _slot(self) -> Call:
        chance = self._chance
        place, holder = chance.choice(SLOTS), chance.choice("abcde")
        if chance.random() < 0.25:
            return (ops.DropSlot(*place, holder),)
        ttl = chance.choice((1, 500, 5_000, 60_000))
        return (ops.TakeSlot(*place, holder, ttl, chance.choice((None, 1, 2, 4))),)

    def _schedule(self) -> Call:
        chance, known = self._chance, self._model._schedules
        name = chance.choice(("nightly", "hourly", "'s'"))
        draw = chance.random()
        if name not in known or draw < 0.3:
            (made,) = self._specs.special(self._now, 1)
            payload = made.payload if len(made.payload) <= ops.MAX_SCHEDULED_BYTES else NULL
            # As a service does, which also rejects larger payloads of schedules.
            spec = msgspec.structs.replace(made, made_up_id=False, payload=payload)
            cron, tz = chance.choice(CRONS)
            catch_up: CatchUp = chance.choice(("last", "all", "none"))
            schedule = ops.Schedule(name, cron, spec, tz=tz, catch_up=catch_up)
            return (ops.PutSchedule(schedule),)
        if draw < 0.5:
            return (ops.DropSchedule(chance.choice((name, "unknown"))),)
        tick = known[name].next_at + chance.choice((0, 0, 0, 0, 1))
        (made,) = self._specs.plain(self._now, 1)
        return (ops.Fire(name, tick, made.id),)

    def _maintain(self) -> Call:
        if self._many_ended:
            return (ops.Maintain(1_000, 0, 0, 0),)
        keep = self._chance.choice((None, None, 0, 5_000, 100_000))
        dead = self._chance.choice((None, keep))
        # If not all keys or turns are forgotten, the engine decides which are.
        old = any(at <= self._now - ops.ONCE_MS for at, *_ in self._model._answered.values())
        busy = {(record.job.queue, record.job.tenant) for record in self._model._live.values()}
        limit = 1_000 if old else self._chance.choice((3, 1_000))
        if not self._model._turns.keys() <= busy:
            limit = 1_000
        after = self._aside.choice(("", "", "", *QUEUES))
        maintain = ops.Maintain(limit, keep, dead, dead, after)
        if self._aside.random() < 0.2:
            return (ops.Pause("brief"), ops.Resume("brief"), maintain)
        return (maintain,)

    def _reconcile(self) -> Call:
        if self._chance.random() < 0.4:
            return (ops.ReconcileSlots(*self._chance.choice(SLOTS)),)
        queue = self._chance.choice([*QUEUES, "none"])
        tenant = self._chance.choice((None, self._specs.tenant()))
        group = None if tenant is None else self._chance.choice((None, *GROUPS))
        return (ops.Reconcile(queue, tenant, group),)

    def _transfer(self) -> Call:
        """Jobs are exported and imported again, or come from another store. Their parents and
        children may have moved on meanwhile."""
        chance = self._chance
        if not self._traits.transfers:
            return ()
        if self._gone and chance.random() < 0.5:
            back, self._gone = tuple(self._gone), []
            return (ops.Import(back),)
        if chance.random() < 0.4:
            last = self._model._token
            high = (last + 1, last + 50, last + 10**6)
            tokens = high if self._traits.high_tokens else (max(1, last),)
            entries = self._specs.entries(self._now, tokens, old_leases=self._traits.old_leases)
            return (ops.Import(entries),)
        records = list(self._model._records.values())
        some = chance.sample(records, min(len(records), 4))
        self._gone = [
            entry
            for entry in with_steps(self._model.read, [record.entry for record in some])
            if self._traits.old_leases or entry.job.state is not State.LEASED
        ]
        return (ops.Delete(tuple(entry.job.id for entry in self._gone)),)

    def _once(self) -> Call:
        """A new key, or a used one with the same or with different operations."""
        chance = self._chance
        if self._keys and chance.random() < 0.4:
            known = self._keys[chance.choice(list(self._keys))]
            if not self._traits.reuses_keys or chance.random() < 0.7:
                return (known,)
            return (ops.Once(known.key, (ops.Maintain(limit=999),)),)
        kinds = chance.choices(
            ("plain", "special", "claim", "claim", "ack", "fail", "release", "extend", "cancel",
             "delete", "replay", "run_now", "limit", "slot", "schedule", "maintain", "reconcile"),
            k=chance.randint(1, 3),
        )  # fmt: skip
        batch: Any = tuple(_by_name(op) for kind in kinds for op in self._kinds[kind]())
        once = ops.Once(f"key {len(self._keys)}{chance.choice(KEYS)}", batch)
        self._keys[once.key] = once
        return (once,)

    # Queries ------------------------------------------------------------------------------------

    def _query(self) -> Any:
        chance = self._chance
        queue = chance.choice([*QUEUES, *QUEUES, "none"])
        kinds: list[Callable[[], Any]] = [
            lambda: queries.GetJob(chance.choice((*self._ids(), "nobody"))),
            lambda: queries.FindByPrefix(chance.choice((*self._ids(), "n"))[:3], 3),
            lambda: queries.NextDue(tuple(chance.sample([*QUEUES, "none"], 2))),
            lambda: queries.OldestReady(tuple(chance.sample([*QUEUES, "none"], 2))),
            lambda: queries.GetStats(chance.choice((None, queue))),
            lambda: queries.ListTenants(queue, 3, chance.choice((None, "b", self._specs.tenant()))),
            lambda: queries.ListTenants(queue, tenant=self._specs.tenant()),
            lambda: queries.ListGroups(
                queue, self._specs.tenant(), chance.choice((1, 100)), chance.choice((None, "g"))
            ),
            lambda: queries.ListGroupTotals(
                queue,
                chance.choice((1, 2, 100)),
                chance.choice((None, "g")),
                chance.choice((None, self._specs.group() or None)),
            ),
            lambda: queries.ListLimits(chance.choice((None, queue))),
            lambda: queries.ListSlots(*chance.choice(SLOTS)),
            queries.ListSchedules,
            queries.GetTimetable,
            lambda: queries.ListPast(self._edits.choice([*self._model._records, "nobody"])),
            lambda: queries.ListRelated(
                self._lists.choice([*self._model._records, "nobody"]), 1_000, grant=self._grant()
            ),
            lambda: queries.FindByKey(self._lists.choice(KEYS), grant=self._grant()),
            lambda: ListSteps(
                self._durable.choice([*self._model._records, "nobody"]), grant=self._grant()
            ),
            lambda: queries.LongestWaits(queue, ("none", *TENANTS)),
        ]
        if self._traits.transfers:
            kinds.append(lambda: queries.Export(chance.choice((1, 7, 60))))
        if chance.random() < 0.5:
            self._asked += 1  # in turns, so that a short run asks all of them
            return kinds[self._asked % len(kinds)]()
        return self._list(queue)

    def _grant(self) -> ops.Grant | None:
        """Whose jobs a query may tell of."""
        queues, tenants = tuple(QUEUES[:1]), tuple(TENANTS[:2])
        return self._lists.choice((None, None, ops.Grant(queues), ops.Grant(None, tenants)))

    def _list(self, queue: str) -> Any:
        chance = self._chance
        states = tuple(chance.sample(list(State), chance.choice((0, 1, 1, 2, 3))))
        where = queries.Filter(
            chance.choice((None, queue)),
            states,
            chance.choice((None, None, *TENANTS[:4])),
            chance.choice((None, None, "", *GROUPS)),
            chance.choice((None, None, *KINDS)),
            chance.choice((None, None, self._now - 2_000)),
        )
        kind: Any = chance.choice((queries.ListJobs, queries.FindIds))
        limit = chance.choice((1, 3, 60))
        self._listed += 1
        if self._listed % 3:
            if self._lists.random() < 0.5:
                kind, where = queries.ListSummaries, self._narrowed(where)
            return kind(where, limit)
        ended = () if self._listed % 2 else (State.DONE,)
        return queries.ListJobs(queries.Filter(states=ended), 60)

    def _narrowed(self, where: queries.Filter) -> queries.Filter:
        """A filter with more conditions."""
        chance, now = self._lists, self._now
        times = (None, None, None, 0, now - 60_000, now - 1_000, now)
        after, before = chance.choice(times), chance.choice(times)
        fields: dict[str, Any] = {"finished_after": after, "finished_before": before}
        if chance.random() < 0.5:
            fields = {"created_after": after, "created_before": before}
        if chance.random() < 0.3:
            fields = {"worker": chance.choice(("", *WORKERS))}
        if chance.random() < 0.3:
            jobs = [record.job for record in self._model._records.values()]
            groups = sorted({job.errors[-1].group for job in jobs if job.errors})
            fields["error"] = chance.choice(("", "0" * 12, *groups))
        return msgspec.structs.replace(where, **fields)


def _by_name(op: Any) -> Any:
    """The operation as a service passes it on: its job ids are not generated and may already exist.
    It may be applied again much later, when keys are forgotten, so Maintain forgets all of them, as
    the model does."""
    if isinstance(op, ops.Maintain):
        return msgspec.structs.replace(op, limit=1_000)
    for name in ("jobs", "then"):
        if hasattr(op, name):
            specs = [msgspec.structs.replace(spec, made_up_id=False) for spec in getattr(op, name)]
            op = msgspec.structs.replace(op, **{name: tuple(specs)})
    return op
