"""The shards together: calls to several of them, and whose turn it is."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeVar

from tenure.clock import Clock
from tenure.core.fencing import Fence, Fenced
from tenure.engines.sharded import late as waiting
from tenure.engines.sharded.guarding import misplaced, moved_away, not_for_all
from tenure.engines.sharded.late import Late, unanswered
from tenure.engines.sharded.locating import Locator, jobs_on
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.ring import (
    Ring,
    advance,
    is_outdated,
    join,
    lacks,
    outdated,
    ring_of,
)
from tenure.engines.sharded.shard import Shard, Store
from tenure.engines.sharded.shard_threads import Threads
from tenure.errors import (
    Busy,
    OutcomeUnknown,
    QueueNotFound,
    StoreError,
    StoreRejected,
    TenureError,
)
from tenure.features.live_workers.data import Beat
from tenure.model import ops, queries, wire
from tenure.model.job import Job
from tenure.model.ops import Answer, Op, Schedule
from tenure.model.record_queries import FindAnswers

log = logging.getLogger("tenure.shards")
T = TypeVar("T")

READS_AT_ONCE = 4  # of each shard
BESIDE = 10  # batches that the committer has in progress besides those in flight
RENEWALS = 8  # calls to each shard that renew leases
PATIENCE = 5.0  # seconds that a shard may keep a batch waiting: others wait with it
LOOK_SECONDS = 0.005  # between two looks whether tenants are still being moved


OnLate = Callable[[int, Future[list[Answer]]], list[Answer]]  # the results of a shard, by number
# Whether others may go on without the shard of this number, by what they have returned.
Enough = Callable[[int, Collection[T]], bool]


class View(NamedTuple):
    """What this process knows of the ring, and where tenants are according to it."""

    ring: Ring
    placing: Placing
    mark: str


class Cluster:
    """All shards of one queue, and other stores that the URL names."""

    def __init__(self, shards: Sequence[Shard], ring: Ring, clock: Clock) -> None:
        self.shards = shards
        self._names = [shard.name for shard in shards]
        self.view = self._view_of(ring)
        self._refreshing = threading.Lock()
        self.is_lacking = False  # whether a shard of the ring is not known here
        self.clock = clock
        self.in_flight = max([2, *(one.store.in_flight for one in shards if one.store)])
        # For renewals and repeated outcomes, too: no batch may wait until one of another has ended.
        self._writing = Threads(len(shards) * (self.in_flight + BESIDE), "tenure-shard-write")
        self._reading = Threads(len(shards) * READS_AT_ONCE, "tenure-shard-read")
        self._own = [Threads(READS_AT_ONCE, "tenure-shard-own") for _ in shards]
        # Apart: a claim that waits for the marks has one of the threads for claims.
        self._marking = [Threads(READS_AT_ONCE, "tenure-shard-mark") for _ in shards]
        self._renewing = [Threads(RENEWALS, "tenure-shard-renew") for _ in shards]
        self._upkeep = [Threads(1, "tenure-shard-upkeep") for _ in shards]
        # The last step of upkeep that was not answered in time, by process and shard.
        self._unended: dict[tuple[int, int], Future[list[Answer]]] = {}
        self._late = self._new_late()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self.locator = Locator(shards, partial(self.each, quick=True), self.is_moving)
        self._turns = itertools.count(random.randrange(len(shards)))
        self._schedules: dict[str, int] = {}  # where they were seen last
        for shard in shards:
            shard.check = partial(self._check_age, shard.name)

    @property
    def placing(self) -> Placing:
        return self.view.placing

    def _view_of(self, ring: Ring) -> View:
        return View(ring, ring.placing(self._names), ring.text())

    @property
    def late(self) -> Late:
        """Of this process: after a fork, the jobs that are kept are those of its parent."""
        if self._late.pid != os.getpid():
            self._late = self._new_late()
        return self._late

    def _new_late(self) -> Late:
        return Late(self.shards, self.clock, lambda: self.view.mark, self.wake)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake`, from any thread, when a claim may find what an earlier one has not."""
        self._listeners = (*self._listeners, wake)

        def stop() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not wake)

        return stop

    def wake(self) -> None:
        for wake in self._listeners:
            wake()

    def close(self) -> None:
        self.late.close()
        for shard in self.shards:
            shard.close()
        apart = (*self._own, *self._marking, *self._renewing, *self._upkeep)
        for threads in (self._writing, self._reading, *apart):
            threads.close()

    def away(self) -> dict[str, str]:
        """The shards that are away, and why."""
        return {shard.name: shard.away for shard in self.shards if shard.away is not None}

    # The ring -----------------------------------------------------------------------------------

    def refresh(self, known: View) -> View:
        """Read the ring from the shards, if that has not been done since `known`. A shard that has
        an older mark than others gets theirs: the process that was writing it has died. Raises
        InvalidInput if a shard of the ring is not known here."""
        with self._refreshing:
            if self.view is not known:
                return self.view
            marks = self._marks()
            rings = [one for one in marks if isinstance(one, Ring)]
            ring = max([known.ring, *rings], key=lambda one: one.epoch)
            if any(one.epoch + 1 < ring.epoch for one in rings):
                marks = self._marks()  # one that was read early may be older than at that time
            lacking = lacks(ring, self._names)
            self.is_lacking = lacking is not None
            if lacking is not None:
                raise lacking
            for shard, mine in zip(self.shards, marks, strict=True):
                if isinstance(mine, TenureError) or shard.name not in ring.used:
                    continue
                assert mine is None or isinstance(mine, Ring)
                if is_outdated(mine, ring, shard.name):
                    shard.leave(outdated(shard.name).message)
                elif mine is None or mine.epoch < ring.epoch:
                    self._hand_on(shard, mine, ring)
            if ring != known.ring:
                self.locator.hints.clear()
                self.view = self._view_of(ring)
            return self.view

    def _marks(self) -> list[object]:
        return self.each(lambda shard: ring_of(shard), quick=True, threads=self._marking)

    def _hand_on(self, shard: Shard, old: Ring | None, new: Ring) -> None:
        try:
            if old is not None:
                advance(shard, old, new)
            elif shard.name not in new.names:
                join(shard.open(), shard.name, new)
        except Fenced:
            pass  # somebody else was first
        except TenureError as error:
            log.info("shard %s could not be given its mark: %s", shard.name, error.message)

    def _check_age(self, name: str, store: Store) -> None:
        if is_outdated(ring_of(store), self.view.ring, name):
            raise outdated(name)

    def is_current(self, view: View) -> bool:
        """Whether no tenants were moved since. Every shard is marked before any tenant is moved, so
        any of them can tell."""
        for number in view.placing.used:
            try:
                return ring_of(self.shards[number]) == view.ring
            except TenureError:
                continue
        return True

    def is_settled(self, view: View) -> bool:
        """Whether nothing can have moved while it was looked for, according to the ring that was
        known then."""
        return not view.ring.frozen and self.is_current(view)

    def is_moving(self) -> bool:
        """Whether tenants are being moved, according to the shards."""
        view = self.view
        return (view if self.is_current(view) else self.refresh(view)).ring.is_moving

    # Writing ------------------------------------------------------------------------------------

    def send(
        self,
        parts: dict[int, list[Op]],
        routed: View,
        *,
        renews: bool = False,
        late: OnLate | None = None,
    ) -> dict[int, list[Answer]]:
        """Apply batches on several shards at once. An error of a shard is the answer to each
        operation of its batch. routed: what was known when it was decided which shard they go
        to. renews: these are keyed calls that only renew leases. late: the results of a shard that
        does not respond soon, while others can go on without it."""
        numbers = list(parts)

        def apply(number: int) -> list[Answer]:
            return self._apply(number, parts[number], routed)

        if not any(self.shards[number].may_hang for number in numbers):
            return dict(zip(parts, self._writing.map(apply, numbers), strict=True))
        kinds = {type(op) for some in parts.values() for op in some}
        if kinds == {ops.Claim}:
            late = partial(self._late_claims, parts, self.now())
        if late is not None:
            answers = self._claim(apply, parts, late)
        elif renews or kinds <= {ops.Extend, Beat}:
            answers = self._soon(
                apply, numbers, partial(self._late_renewals, parts), self._renewing
            )
        elif ops.is_upkeep(op for some in parts.values() for op in some):
            answers = self._keep_up(apply, parts)
        else:
            answers = self._writing.map(apply, numbers)
        return dict(zip(parts, answers, strict=True))

    def now(self) -> tuple[float, int]:
        """When a claim is made: on the clock of the store, and among the moves of tenants."""
        return self.clock.monotonic(), self.locator.hints.generation

    def _claim(
        self, apply: Callable[[int], list[Answer]], parts: dict[int, list[Op]], late: OnLate
    ) -> list[list[Answer]]:
        """The results of claims. A shard that has an earlier one to answer is not asked, unless the
        others do not answer either."""
        found: dict[int, list[Answer]] = {}
        for number, batch in parts.items():
            absent = self.shards[number].absence()
            if absent is not None or (self.late.is_silent(number) and self.can_go_on(number)):
                skipped: Future[list[Answer]] = Future()
                skipped.cancel()
                found[number] = [absent] * len(batch) if absent else late(number, skipped)
        asked = [number for number in parts if number not in found]
        patient = {number for number in asked if self.late.must_wait(number)}

        def too_late(number: int, claim: Future[list[Answer]]) -> list[Answer]:
            late(number, claim)
            return [self.late.leave(number)] * len(parts[number])

        def enough(number: int, answered: Collection[list[Answer]]) -> bool:
            return number not in patient and self.can_go_on(number)

        given = self._soon(apply, asked, too_late, self._own, enough, late)
        found |= zip(asked, given, strict=True)
        return [found[number] for number in parts]

    def _late_claims(
        self,
        parts: dict[int, list[Op]],
        asked_at: tuple[float, int],
        number: int,
        claim: Future[list[Answer]],
    ) -> list[Answer]:
        """The results of claims that a shard has not answered in time: no jobs so far. Those that
        it leases to them later are kept."""

        def keep(done: Future[list[Answer]]) -> None:
            if not done.cancelled():
                for op, answer in zip(parts[number], done.result(), strict=True):
                    assert isinstance(op, ops.Claim)
                    self.keep(number, op, answer, asked_at)

        if not claim.cancelled():
            claim.add_done_callback(keep)
        return [ops.Leased([]) for _ in parts[number]]

    def keep(
        self, number: int, claim: ops.Claim, answer: Answer, asked_at: tuple[float, int]
    ) -> None:
        """Keep the jobs of a late answer to a claim for the next one."""
        if isinstance(answer, ops.Leased) and answer.jobs:
            self.locator.hints.note([job.id for job in answer.jobs], number, asked_at[1])
            self.late.keep(number, claim, answer.jobs, asked_at[0])

    def responsive(self, numbers: Sequence[int]) -> list[int]:
        """Those of the shards that are there, without silent ones if there are others."""
        there = [number for number in numbers if self.shards[number].away is None]
        return [number for number in there if not self.late.is_silent(number)] or there

    def can_go_on(self, number: int) -> bool:
        """Whether another shard can serve claims."""
        return any(
            other != number and self.shards[other].away is None and not self.late.is_silent(other)
            for other in self.placing.used
        )

    def _late_renewals(
        self, parts: dict[int, list[Op]], number: int, renewal: Future[list[Answer]]
    ) -> list[Answer]:
        """The results of renewals that a shard has not answered in time, so that those of other
        shards, and the next ones, do not wait for it. It need not be away: rows may be locked. To
        renew a lease later does no harm."""
        renewal.cancel()
        error = waiting.too_late(self.shards[number])
        return [error] * len(parts[number])

    def _keep_up(
        self, apply: Callable[[int], list[Answer]], parts: dict[int, list[Op]]
    ) -> list[list[Answer]]:
        """The results of upkeep. A shard that has not answered in time is left out until it has, so
        that nobody waits for it again. It need not be away: it may have much to do."""
        pid = os.getpid()

        def late(number: int, step: Future[list[Answer]]) -> list[Answer]:
            self._unended[pid, number] = step
            return self._late_renewals(parts, number, step)

        steps = {number: self._unended.get((pid, number)) for number in parts}
        hung = {number: step for number, step in steps.items() if step and not step.done()}
        free = [number for number in parts if number not in hung]
        found = dict(zip(free, self._soon(apply, free, late, self._upkeep), strict=True))
        return [found[one] if one in found else late(one, hung[one]) for one in parts]

    def _soon(
        self,
        call: Callable[[int], T],
        numbers: Sequence[int],
        too_late: Callable[[int, Future[T]], T],
        threads: Sequence[Threads],
        enough: Enough[T] | None = None,
        late: Callable[[int, Future[T]], T] | None = None,
    ) -> list[T]:
        """Call with each shard, in its own threads: one that hangs keeps only its own busy.
        too_late: the result of a shard that does not respond soon. enough: whether to wait only
        for a moment; the result is that of `late` then, or else of `too_late`."""
        began = monotonic()
        calls = {number: threads[number].submit(call, number) for number in numbers}
        if enough is not None:
            wait(
                [calls[one] for one in numbers if not self.late.is_silent(one)],
                waiting.PROMPT_SECONDS,
            )
        found: dict[int, T] = {}
        for number in sorted(numbers, key=lambda one: not calls[one].done()):
            one = calls[number]
            if enough is not None and not one.done():
                self.late.note(number, one, began)
                if enough(number, found.values()):
                    one.cancel()  # if it has not begun
                    found[number] = (late or too_late)(number, one)
                    continue
            try:
                found[number] = one.result(max(0.0, began + waiting.SLOW_SECONDS - monotonic()))
            except TimeoutError:
                found[number] = too_late(number, one)
        return [found[number] for number in numbers]

    def _apply(self, number: int, batch: list[Op], routed: View) -> list[Answer]:
        shard = self.shards[number]
        try:
            answers = self._apply_fenced(number, batch, routed)
        except StoreRejected as error:  # one of them made all fail, and nothing was applied
            if len(batch) == 1:
                return [error]
            half = len(batch) // 2
            return self._apply(number, batch[:half], routed) + self._apply(
                number, batch[half:], routed
            )
        except TenureError as error:
            return [error] * len(batch)
        except Exception as error:  # other shards have applied their parts: these did not happen
            log.exception("shard %s failed", shard.name)
            return [StoreError(f"shard {shard.name!r}: {error!r}")] * len(batch)
        if len(answers) != len(batch):
            lost = f"shard {shard.name!r} answered {len(answers)} of {len(batch)} operations"
            return [OutcomeUnknown(lost)] * len(batch)
        return answers

    def _apply_fenced(self, number: int, batch: list[Op], routed: View) -> list[Answer]:
        """Apply a batch if the shard has the mark that is known here. Otherwise read the new one,
        and apply the operations that still belong here."""
        shard, view = self.shards[number], self.view
        until = self.clock.monotonic() + PATIENCE
        while True:
            if shard.name in view.ring.frozen:
                only_claims = all(isinstance(op, ops.Claim) for op in batch)
                if not only_claims:
                    self._wait(shard, until)
                view = self.refresh(view)
                if only_claims and shard.name in view.ring.frozen:
                    return [ops.Leased([])] * len(batch)
                continue
            refused = self._refused(number, batch, view, routed)
            good = [op for at, op in enumerate(batch) if at not in refused]
            if not good:
                return [refused[at] for at in range(len(batch))]
            try:
                answers = iter(shard.apply(good, Fence(view.mark)))
                return [refused[at] if at in refused else next(answers) for at in range(len(batch))]
            except Fenced:
                self._wait(shard, until)
                view = self.refresh(view)

    def _refused(self, number: int, batch: list[Op], view: View, routed: View) -> dict[int, Answer]:
        """The operations that do not belong on this shard any more."""
        if view is routed and not view.ring.is_moving:
            return {}
        refused: dict[int, Answer] = {}
        for at, op in enumerate(batch):
            error = misplaced(op, number, view.placing)
            if error is None and view is not routed:
                error = not_for_all(op, routed.placing, view.placing) or moved_away(
                    op, self.shards[number]
                )
            if error is not None:
                refused[at] = error
        return refused

    def _wait(self, shard: Shard, until: float) -> None:
        if self.clock.monotonic() > until:
            raise Busy(
                f"shard {shard.name!r}: tenants are being moved by `tenure reshard`, and this did "
                "not end; if it was killed, run the same command again"
            )
        self.clock.sleep(LOOK_SECONDS)

    # Reading ------------------------------------------------------------------------------------

    def each(
        self,
        call: Callable[[Shard], object],
        of: Sequence[Shard] | None = None,
        *,
        quick: bool = False,
        enough: Enough[object] | None = None,
        threads: Sequence[Threads] | None = None,
    ) -> list[object]:
        """What the call returns, or the TenureError that it raises, for each shard. quick: a shard
        that does not respond soon is away. enough: whether to wait for it only for a moment."""

        def caught(shard: Shard) -> object:
            try:
                return call(shard)
            except TenureError as error:
                return error

        among = self.shards if of is None else of
        if not quick:
            return self._reading.map(caught, among)
        there = [self.shards.index(shard) for shard in among if shard.away is None]
        found = self._soon(
            lambda number: caught(self.shards[number]),
            there,
            lambda number, _: self.late.leave(number),
            threads or self._own,
            enough,
            lambda number, _: unanswered(self.shards[number]),
        )
        known = dict(zip(there, found, strict=True))
        numbers = [self.shards.index(shard) for shard in among]
        return [known[one] if one in known else caught(self.shards[one]) for one in numbers]

    def has_queue(self, name: str | None) -> bool:
        """Whether any shard that is there has a queue of this name."""
        if name is None:
            return False
        found = self.each(lambda shard: shard.read(queries.GetStats(name)))
        return any(isinstance(one, list) and one for one in found)

    def settled(self, op: Op, answer: Answer) -> Answer:
        """A tenant has nothing to resume or clear if only other shards have its queue."""
        if not isinstance(op, ops.Resume | ops.ClearLimit) or not isinstance(answer, QueueNotFound):
            return answer
        return ops.Ok() if self.has_queue(op.queue) else answer

    def jobs_by_shard(self, ids: Sequence[str]) -> dict[str, dict[int, Job]]:
        """The jobs of these ids by the shards that have them. Shards that are away are skipped:
        they block only their own tenants."""
        found: dict[str, dict[int, Job]] = {}
        on = self.each(lambda shard: jobs_on(shard, ids, None), quick=True)
        for number, jobs in enumerate(on):
            if isinstance(jobs, list):
                for job in jobs:
                    found.setdefault(job.id, {})[number] = job
        return found

    def schedules_named(self, name: str, *, first: bool = False) -> list[tuple[int, Schedule]]:
        """The shards that have a schedule of this name, and the schedule. Shards that are away are
        skipped if another has it. first: ask the shard where it was last seen, and the others
        only if it is not there. Raises StoreError."""
        known = self._schedules.get(name) if first else None
        found = [] if known is None else self._find_schedule(name, [self.shards[known]])
        if not found:
            found = self._find_schedule(name, None)
        self.saw_schedules(found)
        return found

    def _find_schedule(self, name: str, of: Sequence[Shard] | None) -> list[tuple[int, Schedule]]:
        found: list[tuple[int, Schedule]] = []
        trouble: TenureError | None = None
        among = self.shards if of is None else of
        lists = self.each(
            lambda one: one.read(queries.ListSchedules()),
            among,
            quick=True,
            enough=lambda _, found: any(_has_schedule(name, one) for one in found),
        )
        for shard, listed in zip(among, lists, strict=True):
            if isinstance(listed, TenureError):
                trouble = listed
                continue
            assert isinstance(listed, list)
            number = self.shards.index(shard)
            found += [(number, schedule) for schedule in listed if schedule.name == name]
        if trouble is not None and not found and of is None:
            raise trouble
        return found

    def saw_schedules(self, found: Iterable[tuple[int, Schedule]]) -> None:
        """Remember where schedules are."""
        self._schedules.update({schedule.name: number for number, schedule in found})

    # Turns --------------------------------------------------------------------------------------

    def next_turn(self) -> list[int]:
        """The shards in the order in which the next claim asks them."""
        used = self.placing.used
        first = next(self._turns)
        return [used[(first + step) % len(used)] for step in range(len(used))]

    def with_ready(self, op: ops.Claim, otherwise: int | None, order: Sequence[int]) -> int:
        """The first shard that may have a job for this claim. If none seems to: `otherwise`, or the
        first that is there."""
        now = self.clock.now_ms()

        def has_ready(shard: Shard) -> bool:
            ready = shard.read(queries.OldestReady(op.queues))
            if isinstance(ready, queries.Due) and ready.at is not None:
                return True
            due = shard.read(queries.NextDue(op.queues))
            return isinstance(due, queries.Due) and due.at is not None and due.at <= now

        there = self.responsive(order or self.next_turn())
        for number in there:
            (found,) = self.each(
                has_ready,
                [self.shards[number]],
                quick=True,
                enough=lambda number, _: self.can_go_on(number),
            )
            if found is True:
                return number
        if otherwise is not None:
            return otherwise
        return next(iter(self.responsive(there)), self.placing.used[0])

    def answers_of(
        self, wanted: ops.Once, order: Sequence[int], enough: Enough[object] | None = None
    ) -> dict[int, Answer]:
        """What shards that are there have stored for this call, in this order."""
        found = self.each(
            lambda shard: shard.read(FindAnswers(wanted.key)),
            [self.shards[one] for one in order],
            quick=True,
            enough=enough,
        )
        known: dict[int, Answer] = {}
        for number, texts in zip(order, found, strict=True):
            if isinstance(texts, list) and texts:
                answer = wire.decode_once(wanted, texts[0], lambda ids: {})
                if not isinstance(answer, TenureError):
                    known[number] = answer
        return known


def has_any(number: int, found: Collection[object]) -> bool:
    """Whether a shard has answered."""
    return any(not isinstance(one, TenureError) for one in found)


def _has_schedule(name: str, listed: object) -> bool:
    return isinstance(listed, list) and any(schedule.name == name for schedule in listed)
