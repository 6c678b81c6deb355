"""Moving tenants from one ring of shards to another, while the rest works.

Every shard stores how far the move is (ring.py). Tenants move in the order of a hash of their
names, a few at a time. Such a step

1. gives every shard a mark that says which tenants move now, and that their old and new shards are
   *frozen*: they accept changes from this move only. Processes that do not know of it are rejected
   by the fence in the transaction of the shard, read the new mark, and wait;
2. copies everything of these tenants to their new shards, unchanged, leases and tokens included;
3. removes it from the old ones;
4. gives every shard a mark that says that the tenants have moved.

The first step gives new shards the limits that all shards have. The last one freezes all shards: it
moves jobs without a tenant that share a group or a unique key, and empties shards that are no
longer used.

It can be killed at any moment. The marks say what was begun, a step can be repeated, and the next
run begins with a new mark, which fences off an older run that is still alive. The first shard of
the ring is always marked first, so that of two runs only one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

from tenure.clock import Clock
from tenure.core.fencing import Fenced
from tenure.engines.sharded import catalog, ring
from tenure.engines.sharded.carrying import BY_KEY, Carrier, copy_common, counted
from tenure.engines.sharded.catalog import Catalog
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.placing import END, Placing, position
from tenure.engines.sharded.ring import Ring
from tenure.engines.sharded.shard import Shard
from tenure.errors import Busy, Conflict, InvalidInput
from tenure.model.job import Job

STEP_JOBS = 200  # that move in one step, unless a single tenant has more
STEP_TENANTS = 50
MARK_SECONDS = 30.0  # that a mark waits for transactions of applications
_MOST_COUNTED = 1_000  # tenants of one query


class Plan(NamedTuple):
    """What would move."""

    tenants: int
    jobs: int
    all_tenants: int
    all_jobs: int
    largest: tuple[str, int] | None  # the tenant with the most jobs, and how many


class Unit(NamedTuple):
    """A tenant that moves."""

    tenant: str
    source: str
    target: str
    jobs: int

    @property
    def position(self) -> int:
        return position(self.tenant)


class Load(NamedTuple):
    """The jobs that go from one shard to another in one step, and the tenants that go with them."""

    carrier: Carrier
    tenants: list[str]
    ids: list[str]


class Reshard:
    """A move to other shards; `run` it."""

    def __init__(self, engine: ShardedEngine, to: Collection[str], clock: Clock) -> None:
        """engine: must know all shards of both rings, or only the old ones for a plan."""
        self._cluster = engine.cluster
        self._shards: dict[str, Shard] = {one.name: one for one in self._cluster.shards}
        self._names = [*self._shards, *(name for name in to if name not in self._shards)]
        self._to = tuple(sorted(to))
        self._clock = clock
        self._ring = self._cluster.view.ring
        numbers = [self._names.index(name) for name in self._to]
        self._new = Placing(self._names, spread=self._ring.spread, ring=numbers)
        self._catalogs: dict[str, Catalog] = {}
        self.resumed: bool = False
        self.tenants: int = 0  # moved by this run
        self.jobs: int = 0
        self.longest: float = 0.0  # seconds that shards were frozen at once
        self.stop: bool = False  # ends the run after the current step

    # What is to be done -------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What a run would move, as things are now."""
        self._check()
        everyone: dict[str, int] = {}
        for name in self._ring.names:
            for tenant, count in catalog.tenants(self._shards[name]).items():
                everyone[tenant] = everyone.get(tenant, 0) + count
        units = self._units()
        largest = max(units, key=lambda unit: unit.jobs, default=None)
        return Plan(
            len(units),
            sum(unit.jobs for unit in units),
            len(everyone),
            sum(everyone.values()),
            None if largest is None else (largest.tenant, largest.jobs),
        )

    def _check(self) -> None:
        """Raise an error if another move is unfinished, or a shard is away."""
        for shard in self._shards.values():
            ring.ring_of(shard)
        self._ring = self._cluster.refresh(self._cluster.view).ring
        if self._ring.is_moving and set(self._ring.to) != set(self._to):
            raise Conflict(
                f"a move to the shards {' '.join(self._ring.to)} has begun: finish it first"
            )
        if len(" ".join({*self._ring.used, *self._to})) > ring.MAX_NAMES:
            raise InvalidInput("shards", f"all names have more than {ring.MAX_NAMES} characters")
        if not self._ring.is_moving:
            self._check_limits()

    def _check_limits(self) -> None:
        """Raise Conflict if the new shards would exceed a limit together."""
        for limit in catalog.limits(self._shards[self._ring.names[0]]):
            if self._new.divides(limit):
                whose = "all its jobs" if limit.tenant is None else "its jobs without a tenant"
                raise Conflict(
                    f"queue {limit.queue!r} has a limit of {whose}, and shards do not share a "
                    "count: clear it first"
                )

    def _units(self) -> list[Unit]:
        """The tenants that have to move, in the order in which they do."""
        found: list[Unit] = []
        for name in self._ring.names:
            for tenant, jobs in catalog.tenants(self._shards[name]).items():
                place = self._new.of_tenant(tenant)
                if place is not None and self._names[place] != name:
                    found.append(Unit(tenant, name, self._names[place], jobs))
        return sorted(found, key=lambda unit: unit.position)

    # The move -----------------------------------------------------------------------------------

    def run(self, on_step: Callable[[], object] = lambda: None) -> bool:
        """Move everything. Returns False if it was stopped before the end."""
        try:
            return self._run(on_step)
        except Fenced:
            raise _another() from None

    def _run(self, on_step: Callable[[], object]) -> bool:
        self._check()
        if not self._ring.is_moving:
            if set(self._ring.names) == set(self._to):
                return True
            self._mark(self._ring.next(to=self._to, below=0, upto=0, frozen=self._all))
        else:
            self.resumed = True
            self._mark(self._ring.next())  # an older run that is alive cannot go on
        self._catalogs = {
            name: Catalog(self._shards[name], partial(self._may_move, name))
            for name in self._ring.names
        }
        if self._ring.frozen and not self._ring.upto:
            self._share_limits()
        if self._ring.frozen:
            self._timed(self._finish_step)
        if self._ring.is_moving:  # reads all jobs, while nothing waits for it
            for one in self._catalogs.values():
                one.update()
        while self._ring.is_moving:
            if self.stop:
                return False
            began = perf_counter()
            self._timed(self._next_step)
            on_step()
            if self._ring.is_moving:
                self._clock.sleep(perf_counter() - began)  # others get half of the time
        return True

    def _timed(self, step: Callable[[], None]) -> None:
        began = perf_counter()
        step()
        self.longest = max(self.longest, perf_counter() - began)

    @property
    def _all(self) -> tuple[str, ...]:
        return tuple(sorted({*self._ring.used, *self._to}))

    def _may_move(self, source: str, job: Job) -> bool:
        return not job.tenant or self._target_of(job, source) != source

    def _share_limits(self) -> None:
        """The first step: new shards get what all shards have."""
        try:
            self._check_limits()  # nobody can set one now
        except Conflict:
            self._mark(self._ring.next(to=(), frozen=()))
            raise
        first = self._shards[self._ring.names[0]]
        for name in self._ring.to:
            if name not in self._ring.names:
                copy_common(
                    first,
                    self._shards[name],
                    self._ring.text(),
                    lambda one: self._new.of_scope(one.queue, one.tenant, one.group) is None,
                )
        self._mark(self._ring.next(frozen=()))

    def _next_step(self) -> None:
        units = [unit for unit in self._units() if unit.position >= self._ring.below]
        chosen, jobs = 0, 0
        while chosen < len(units) and chosen < STEP_TENANTS and jobs < STEP_JOBS:
            jobs += units[chosen].jobs
            chosen += 1
        if chosen == len(units):
            self._mark(self._ring.next(upto=END, frozen=self._all))
        else:
            upto = units[chosen - 1].position + 1
            self._mark(self._ring.next(upto=upto, frozen=_shards_of(units[:chosen])))
        self._finish_step(fresh=True)

    def _finish_step(self, *, fresh: bool = False) -> None:
        """Move the tenants of the step that the marks describe. fresh: nothing was copied yet, so
        that the step can be given up."""
        upto, last = self._ring.upto, self._ring.upto == END
        units = [one for one in self._units() if self._ring.below <= one.position < upto]
        missing = set(_shards_of(units)) - set(self._ring.frozen)
        if missing:  # they have got tenants since the step was planned
            frozen = tuple(sorted({*self._ring.frozen, *missing}))
            self._mark(self._ring.next(frozen=frozen))
        try:
            loads = [*self._loads(units), *(self._rest() if last else ())]
            for load in loads:
                load.carrier.check(load.carrier.entries(load.ids))
        except Conflict:
            if fresh:
                self._mark(self._ring.next(upto=self._ring.below, frozen=()))
            raise
        for load in loads:
            self._carry(load)
        if last:
            stays = tuple(name for name in self._ring.side if name in self._to)
            moved = self._ring.next(
                names=self._to, side=stays or self._to, to=(), below=0, upto=0, frozen=()
            )
            self._carry_beside(moved.placing(self._names))
            self._mark(moved)
        else:
            self._mark(self._ring.next(below=upto, upto=upto, frozen=()))
        self.tenants += len(units)

    def _loads(self, units: Sequence[Unit]) -> Iterator[Load]:
        for source, target in sorted({(unit.source, unit.target) for unit in units}):
            names = [u.tenant for u in units if (u.source, u.target) == (source, target)]
            yield Load(self._carrier(source, target), names, self._ids(source, names))

    def _carry(self, load: Load) -> None:
        carrier, of = load.carrier, frozenset(load.tenants)
        entries = carrier.entries(load.ids)
        carrier.copy_jobs(entries)
        carrier.carry_limits(lambda limit: limit.tenant in of)
        carrier.carry_schedules(lambda schedule: schedule.job.tenant in of)
        carrier.remove_jobs(entries)
        self.jobs += len(entries)
        self._catalogs[carrier.source.name].forget(load.tenants)

    def _carrier(self, source: str, target: str) -> Carrier:
        return Carrier(self._shards[source], self._shards[target], self._ring.text())

    def _ids(self, source: str, tenants: Sequence[str]) -> list[str]:
        """The ids of all jobs of these tenants, compared with the counts of the shard."""
        mine = self._catalogs[source]
        mine.update()
        for again in (False, True):
            if again:
                mine.read_again()
            ids = mine.ids(tenants)
            there = len(self._carrier(source, source).entries(ids))
            if there == self._counted(source, tenants):
                return ids
        raise Conflict(
            f"shard {source!r} has {self._counted(source, tenants)} jobs of the tenants that move, "
            f"but only {there} were found: run `tenure reconcile` for their queues"
        )

    def _counted(self, source: str, tenants: Sequence[str]) -> int:
        parts = [tenants[at : at + _MOST_COUNTED] for at in range(0, len(tenants), _MOST_COUNTED)]
        return sum(counted(self._shards[source], part) for part in parts)

    # The last step ------------------------------------------------------------------------------

    def _rest(self) -> Iterator[Load]:
        """Jobs without a tenant that leave their shard, if such jobs are spread."""
        for source in self._ring.names if self._ring.spread else ():
            moves: dict[str, list[str]] = {}
            for entry in self._carrier(source, source).entries(self._ids(source, [""])):
                target = self._target_of(entry.job, source)
                if target != source:
                    moves.setdefault(target, []).append(entry.job.id)
            for target, ids in moves.items():
                yield Load(self._carrier(source, target), [], ids)

    def _carry_beside(self, new: Placing) -> None:
        """Limits of groups and schedules without a tenant, and the records of shards that are no
        longer used. Those that are stored by key go where they are stored from now on."""
        for source in self._ring.names:
            for target in self._to:
                if source == target:
                    continue
                carrier = self._carrier(source, target)
                if self._ring.spread:
                    self._carry_untenanted(carrier)
                if source not in self._to:
                    self._carry_records(carrier, new)

    def _carry_records(self, carrier: Carrier, new: Placing) -> None:
        number = self._names.index(carrier.target.name)
        inherits = self._heir(carrier.source.name) == carrier.target.name
        carrier.carry_records(
            lambda space, key: new.of_record(space, key) == number if space in BY_KEY else inherits,
            self._clock.now_ms(),
        )

    def _carry_untenanted(self, carrier: Carrier) -> None:
        new, number = self._new, self._names.index(carrier.target.name)
        carrier.carry_limits(lambda one: new.of_scope(one.queue, one.tenant, one.group) == number)
        carrier.carry_schedules(lambda one: new.of_schedule(one.name, one.job) == number)

    def _target_of(self, job: Job, source: str) -> str:
        """The shard that a job belongs to in the new ring. A job that may be on any shard stays
        where it is, if that shard is still used."""
        place = self._new.of_job(job)
        return self._heir(source) if place is None else self._names[place]

    def _heir(self, source: str) -> str:
        """The shard for what may be on any: the same one, if it is still used."""
        if source in self._to:
            return source
        numbers = [self._names.index(name) for name in self._to]
        return self._names[self._new.chosen(f"shard {source}", numbers)]

    # Marks --------------------------------------------------------------------------------------

    def _mark(self, new: Ring) -> None:
        """Give all shards the next mark. Raises Conflict if another run was first."""
        first = self._ring.names[0]
        names = [first, *sorted({*self._ring.used, *new.used} - {first})]
        if new.frozen:  # nothing is frozen while a shard cannot be marked
            for name in names:
                self._patiently(partial(self._try_mark, self._shards[name]))
        for name in names:
            self._patiently(partial(self._mark_one, self._shards[name], name, new))
        self._ring = new
        self._cluster.refresh(self._cluster.view)

    def _patiently(self, call: Callable[[], None]) -> None:
        """Wait for open transactions of applications."""
        until = self._clock.monotonic() + MARK_SECONDS
        while True:
            try:
                return call()
            except Busy:
                if self._clock.monotonic() > until:
                    raise

    def _try_mark(self, shard: Shard) -> None:
        """Raise Busy if the mark of a shard cannot be changed now."""
        current = ring.ring_of(shard)
        if current is not None:
            with suppress(Fenced):  # it was changed meanwhile
                ring.advance(shard, current, current)

    def _mark_one(self, shard: Shard, name: str, new: Ring) -> None:
        while True:
            current = ring.ring_of(shard)
            if current == new:
                return
            if current is not None and (current.epoch >= new.epoch or current.origin != new.origin):
                raise _another()
            try:
                if current is None:
                    ring.join(shard.open(), name, new)
                else:
                    ring.advance(shard, current, new)
            except Fenced:
                continue


def _another() -> Conflict:
    return Conflict("another `tenure reshard` is moving tenants: let it finish")


def _shards_of(units: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(sorted({name for unit in units for name in (unit.source, unit.target)}))
