"""Which shards an operation goes to, and what each of them is asked to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.guarding import SLOTTED, being_moved
from tenure.engines.sharded.locating import Place, jobs_on
from tenure.errors import Conflict, Duplicate, Forbidden, InvalidInput, TenureError
from tenure.model import ops
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Grant, Op
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords

# Nobody chooses a UUIDv7 that another job has, so other shards are not asked for it.
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

SCOPED = (ops.SetLimit, ops.ClearLimit, ops.Pause, ops.Resume)


class Part(NamedTuple):
    """What one shard is asked to do."""

    shard: int
    op: Op


class Route(NamedTuple):
    """The parts of an operation. fixed: a repetition takes the same route. known: it is of a job
    that this process claimed, and no tenants were moved since. in_turn: a part begins when the one
    before has ended. taken: jobs of an Enqueue that other shards have."""

    parts: Sequence[Part]
    fixed: bool = True
    known: bool = False
    in_turn: bool = False
    taken: frozenset[str] = frozenset()


class Router:
    """Routes the operations of one batch."""

    def __init__(
        self,
        cluster: Cluster,
        batch: Iterable[Op],
        order: Sequence[int] = (),
        *,
        brief: bool = False,
    ) -> None:
        """order: the shards as a keyed call prefers them. The first stores jobs that any shard
        may store; the first that is reachable reports what was not found. brief: do not wait for a
        silent shard."""
        self._cluster = cluster
        self.view = cluster.view
        self._placing = self.view.placing
        self._order = order
        self._brief = brief
        self.made: dict[str, int] = {}  # jobs that the batch may have added so far
        self._located: dict[str, Place] = {}
        self._elsewhere: dict[str, dict[int, Job]] = {}  # jobs that have chosen ids of the batch
        self._batch = list(batch)
        self._look_up()

    def _look_up(self) -> None:
        """Find the jobs that the batch names, all at once."""
        batch = self._batch
        hints = self._cluster.locator.hints
        unknown = [
            job_id
            for op in batch
            if isinstance(op, ops.LeaseOp | ops.JobsOp | ops.ReplayEdited)
            for job_id in (op.ids if isinstance(op, ops.JobsOp) else (op.id,))
            if hints.get(job_id) is None
        ]
        if unknown:
            search = partial(self._cluster.locator.search, brief=self._brief)
            self._located = search(list(dict.fromkeys(unknown)))
            self._doubt([job_id for job_id, place in self._located.items() if place is None])
        chosen = [job_id for op in batch for job_id in chosen_ids(op)]
        if chosen and len(self._placing.used) > 1:
            self._elsewhere = self._cluster.jobs_by_shard(list(dict.fromkeys(chosen)))

    def _doubt(self, lost: Sequence[str]) -> None:
        """A job that was not found may be one that is being moved: then it is looked for again."""
        if lost and not self._cluster.is_settled(self.view):
            self._located |= {job_id: being_moved(job_id) for job_id in lost}

    def overtakes(self, op: Op) -> bool:
        """Whether an earlier operation of the batch must end first: it may add a job of an id that
        this one chooses."""
        return bool(self.made) and any(job_id in self.made for job_id in chosen_ids(op))

    def forget_made(self) -> None:
        """Look everything up again: what the batch added so far is stored."""
        self.made.clear()
        self._look_up()

    def route(self, op: Op) -> Route | TenureError:
        """The parts of an operation, or the error that rejects it."""
        try:
            return _route_of(type(op))(self, op)
        except TenureError as error:
            return error

    # Jobs that are added ------------------------------------------------------------------------

    def _enqueue(self, op: ops.Enqueue) -> Route:
        shard, fixed = self._place(op.jobs, op.grant, "jobs")
        taken = frozenset(job_id for job_id in chosen_ids(op) if self._is_taken(job_id, shard, op))
        if taken:
            op = replace(op, jobs=tuple(spec for spec in op.jobs if spec.id not in taken))
        for spec in op.jobs:
            self.made[spec.id] = shard
        return Route([Part(shard, op)], fixed=fixed, taken=taken)

    def _is_taken(self, job_id: str, shard: int, op: ops.Enqueue) -> bool:
        """Whether an id is skipped, because a job on another shard has it. Raises Duplicate."""
        if not self._is_elsewhere(job_id, shard):
            return False
        others = [job for on, job in self._elsewhere.get(job_id, {}).items() if on != shard]
        hidden = op.grant and not any(op.grant.allows(job.queue, job.tenant) for job in others)
        if op.if_exists == "error" or hidden:
            raise Duplicate("id", job_id, job_id)
        return True

    def _is_elsewhere(self, job_id: str, shard: int) -> bool:
        """Whether another shard has a job of this id, or an earlier operation adds one there."""
        there = self._elsewhere.get(job_id, {}).keys() | {self.made.get(job_id, shard)}
        return there != {shard}

    def _place(self, jobs: Sequence[JobSpec], grant: Grant | None, field: str) -> tuple[int, bool]:
        """The shard of jobs that are added together, and whether it is always the same."""
        if len({spec.tenant for spec in jobs}) == 1:
            place = self._placing.of_tenant(jobs[0].tenant)
            if place is not None:
                return place, True
        places = {place: spec for spec in jobs if (place := self._placing.of_job(spec)) is not None}
        if len(places) > 1:
            (one, a), (other, b), *_ = places.items()
            names = self._placing.names
            raise InvalidInput(
                field,
                f"{_named(a)} is on shard {names[one]!r} and {_named(b)} on {names[other]!r}: jobs "
                "that are added together must be on one shard; use a call for each tenant",
            )
        if places:
            return next(iter(places)), True
        own = {spec.id for spec in jobs}
        parents = [parent for spec in jobs for parent in spec.after if parent not in own]
        if parents:
            return self._shard_of_parents(list(dict.fromkeys(parents)), grant), False
        if self._order:
            return self._order[0], True
        return (self._placing.of(f"id {jobs[0].id}") if jobs else self._placing.used[0]), True

    def _shard_of_parents(self, parents: list[str], grant: Grant | None) -> int:
        """Where the jobs are that a job without a tenant waits for."""
        unknown = [one for one in parents if one not in self.made]
        found = self._cluster.locator.search(unknown, grant) if unknown else {}
        places: set[int] = set()
        for parent in parents:
            place = self.made.get(parent, found.get(parent))
            if isinstance(place, TenureError):
                raise place
            if place is not None:
                places.add(place)
        if len(places) > 1:
            raise InvalidInput(
                "after",
                "names jobs on different shards: give jobs that wait for each other a tenant",
            )
        return places.pop() if places else self._or_home(None)

    def _import(self, op: ops.Import) -> Route:
        places: dict[int, list[ops.Entry]] = {}
        for entry in op.entries:
            place = self._placing.of_job(entry.job)
            if place is None:
                wanted = [one for one in entry.waits_for if one not in self.made]
                known = [self.made[one] for one in entry.waits_for if one in self.made]
                if wanted or known:
                    place = known[0] if known else self._shard_of_parents(wanted, None)
                else:
                    place = self._placing.of(f"id {entry.job.id}")
            self.made[entry.job.id] = place
            places.setdefault(place, []).append(entry)
        parts = [Part(place, ops.Import(tuple(some))) for place, some in places.items()]
        return Route(parts or [Part(self._placing.used[0], op)])

    # Jobs that exist ----------------------------------------------------------------------------

    def _lease(self, op: ops.LeaseOp) -> Route:
        shard = self._locate(op.id, op.grant)
        if shard is not None and op.adds:
            try:
                self._check_follow_ups(op, shard)
            except TenureError:
                if not self._is_hidden(op.id, shard, op.grant):
                    raise
                op = replace(op, then=())  # the shard answers JobNotFound
        known = self._cluster.locator.hints.get(op.id) is not None
        return Route([Part(self._or_home(shard), op)], fixed=False, known=known)

    def _check_follow_ups(self, op: ops.LeaseOp, shard: int) -> None:
        for spec in op.adds:
            place = self._placing.of_job(spec)
            if place not in (None, shard):
                raise InvalidInput(
                    "then",
                    f"{_named(spec)} is on another shard than job {op.id!r}: a follow-up must be "
                    "of the same tenant; enqueue it on its own",
                )
            if self._is_elsewhere(spec.id, shard):
                raise Duplicate("id", spec.id, spec.id)
            self.made[spec.id] = shard

    def _is_hidden(self, job_id: str, shard: int, grant: Grant | None) -> bool:
        """Whether a job must look as if it did not exist, so that no error may reveal it."""
        return grant is not None and not jobs_on(self._cluster.shards[shard], [job_id], grant)

    def _jobs(self, op: ops.JobsOp) -> Route:
        by_shard: dict[int, list[str]] = {}
        lost: list[str] = []
        for job_id in dict.fromkeys(op.ids):
            shard = self._locate(job_id, op.grant)
            if shard is None:
                lost.append(job_id)
            else:
                by_shard.setdefault(shard, []).append(job_id)
        if lost or not by_shard:  # one of the shards says that they are missing
            by_shard.setdefault(next(iter(by_shard), self._or_home(None)), []).extend(lost)
        if len(by_shard) == 1:
            return Route([Part(next(iter(by_shard)), op)], fixed=False)
        parts = [Part(on, replace(op, ids=tuple(ids))) for on, ids in by_shard.items()]
        return Route(parts, fixed=False)

    def _replay_edited(self, op: ops.ReplayEdited) -> Route:
        shard = self._or_home(self._locate(op.id, op.grant))
        if self._is_elsewhere(op.new_id, shard):
            if not self._is_hidden(op.id, shard, op.grant):
                raise Duplicate("id", op.new_id, op.new_id)
            return Route([Part(shard, op)], fixed=False)
        self.made[op.new_id] = shard
        return Route([Part(shard, op)], fixed=False)

    def _locate(self, job_id: str, grant: Grant | None) -> int | None:
        """The shard of a job, or None if there is no such job. Raises the error if that is not
        known."""
        place: Place = self.made.get(job_id)
        if place is None:
            place = self._cluster.locator.hints.get(job_id)
        if place is None:
            place = self._located.get(job_id)
        if isinstance(place, Conflict) and grant is not None:
            place = self._cluster.locator.search([job_id], grant)[job_id]
        if isinstance(place, TenureError):
            raise place
        return place

    def _or_home(self, shard: int | None) -> int:
        if shard is not None:
            return shard
        among = self._order or self._placing.used
        return next(iter(self._cluster.responsive(among)), among[0])

    # What is not of one job ---------------------------------------------------------------------

    def _claim(self, op: ops.Claim) -> Route:
        """Route a claim that asks a single shard; claims.py handles the others."""
        shard = None if op.tenant is None else self._placing.of_tenant(op.tenant)
        if shard is not None:
            return Route([Part(shard, op)])
        added_to = next(iter(self.made.values()), None)
        shard = self._cluster.with_ready(op, added_to, self._order)
        return Route([Part(shard, op)], fixed=False)

    def _scoped(self, op: ops.SetLimit | ops.ClearLimit | ops.Pause | ops.Resume) -> Route:
        shard = self._placing.of_scope(op.queue, op.tenant, op.group)
        if shard is not None:
            return Route([Part(shard, op)])
        if isinstance(op, ops.SetLimit):
            self._refuse_shared_limit(op)
        return self._to_all(op, in_turn=True)

    def _refuse_shared_limit(self, op: ops.SetLimit) -> None:
        if self._placing.divides(op):
            whose = "a queue" if op.tenant is None else "all jobs without a tenant"
            raise InvalidInput(
                "limit",
                f"{whose} is on {len(self._placing.used)} shards, which do not share a count: "
                "limit each tenant (tenant='*'), or keep such a queue in a store of its own",
            )

    def _reconcile(self, op: ops.Reconcile) -> Route:
        shard = self._placing.of_scope(op.queue, op.tenant, op.group)
        return self._to_all(op) if shard is None else Route([Part(shard, op)])

    def _to_all(self, op: Op, *, in_turn: bool = False) -> Route:
        parts = [Part(shard, op) for shard in self._placing.used]
        return Route(parts, in_turn=in_turn or op.for_all == "in_turn")

    def _slot(self, op: ops.TakeSlot | ops.DropSlot | ops.ReconcileSlots) -> Route:
        shard = self._placing.of_slots(op.scope)
        return self._to_all(op) if shard is None else Route([Part(shard, op)])

    def _records(self, op: PutRecords) -> Route:
        by_shard: dict[int, list[NewRecord]] = {}
        for record in op.records:
            if record.value is not None and len(record.value) > MAX_RECORD_BYTES:
                raise InvalidInput("value", f"is larger than {MAX_RECORD_BYTES:,} bytes")
            shard = self._placing.of_record(record.space, record.key)
            by_shard.setdefault(shard, []).append(record)
        parts = [Part(shard, PutRecords(tuple(some))) for shard, some in by_shard.items()]
        return Route(parts or [Part(self._placing.used[0], op)])

    # Schedules ----------------------------------------------------------------------------------

    def _put_schedule(self, op: ops.PutSchedule) -> Route:
        name = op.schedule.name
        shard = self._placing.of_schedule(name, op.schedule.job)
        for on, old in self._cluster.schedules_named(name):
            if on == shard:
                continue
            if op.grant and not op.grant.allows(old.job.queue, old.job.tenant):
                raise Forbidden(f"the name {name!r} is taken by another schedule")
            raise Conflict(
                f"the schedule {name!r} exists for {_named(old.job)}, on shard "
                f"{self._placing.names[on]!r}: drop it before you add one for another tenant"
            )
        return Route([Part(shard, op)], fixed=False)  # it cannot be checked while a shard is away

    def _named_schedule(self, op: ops.DropSchedule | ops.Fire) -> Route:
        found = [on for on, _ in self._cluster.schedules_named(op.name, first=True)]
        if isinstance(op, ops.Fire) and found:
            self.made[op.id] = found[0]
        return Route([Part(on, op) for on in found or [self._or_home(None)]], fixed=False)


def chosen_ids(op: Op) -> Iterable[str]:
    """The ids of new jobs that another shard may have."""
    for spec in op.adds:
        if not spec.made_up_id and not _UUID7.fullmatch(spec.id):
            yield spec.id
    if isinstance(op, ops.ReplayEdited) and not _UUID7.fullmatch(op.new_id):
        yield op.new_id


def _named(spec: JobSpec) -> str:
    return f"tenant {spec.tenant!r}" if spec.tenant else f"job {spec.id!r} without a tenant"


_ROUTES: dict[type[Op], Callable[[Router, Any], Route]] = {
    ops.Enqueue: Router._enqueue,
    ops.Claim: Router._claim,
    ops.LeaseOp: Router._lease,
    ops.JobsOp: Router._jobs,
    ops.ReplayEdited: Router._replay_edited,
    **dict.fromkeys(SCOPED, Router._scoped),
    **dict.fromkeys(SLOTTED, Router._slot),
    ops.Reconcile: Router._reconcile,
    ops.PutSchedule: Router._put_schedule,
    ops.DropSchedule: Router._named_schedule,
    ops.Fire: Router._named_schedule,
    ops.Import: Router._import,
    PutRecords: Router._records,
}


@cache
def _route_of(kind: type[Op]) -> Callable[[Router, Any], Route]:
    """How operations of a kind are routed, or of the first of its bases that has a route."""
    if kind.for_all is not None:
        return Router._to_all
    return next(_ROUTES[base] for base in kind.__mro__ if base in _ROUTES)
