"""The shards together: calls to several of them, and whose turn it is."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Sequence

from tenure.clock import Clock
from tenure.engines.sharded.locating import Locator, jobs_on
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.shard import Shard
from tenure.engines.sharded.threads import Threads
from tenure.errors import OutcomeUnknown, StoreError, StoreRejected, TenureError
from tenure.model import ops, queries
from tenure.model.job import Job
from tenure.model.ops import Answer, Op, Schedule

log = logging.getLogger("tenure.shards")

READS_AT_ONCE = 4  # of each shard


class Cluster:
    """All shards of one queue."""

    def __init__(self, shards: Sequence[Shard], placing: Placing, clock: Clock) -> None:
        self.shards = shards
        self.placing = placing
        self.clock = clock
        self.in_flight = max([2, *(one.store.in_flight for one in shards if one.store)])
        self._writing = Threads(len(shards) * self.in_flight, "tenure-shard-write")
        self._reading = Threads(len(shards) * READS_AT_ONCE, "tenure-shard-read")
        self.locator = Locator(shards, self.each)
        self._turns = itertools.count(random.randrange(len(shards)))
        self._schedules: dict[str, int] = {}  # where they were seen last

    def close(self) -> None:
        for shard in self.shards:
            shard.close()
        self._writing.close()
        self._reading.close()

    def away(self) -> dict[str, str]:
        """The shards that are away, and why."""
        return {shard.name: shard.away for shard in self.shards if shard.away is not None}

    # Writing ------------------------------------------------------------------------------------

    def send(self, parts: dict[int, list[Op]]) -> dict[int, list[Answer]]:
        """Apply batches on several shards at once. An error of a shard is the answer to each
        operation of its batch."""
        answers = self._writing.map(lambda number: self._apply(number, parts[number]), list(parts))
        return dict(zip(parts, answers, strict=True))

    def _apply(self, number: int, batch: list[Op]) -> list[Answer]:
        shard = self.shards[number]
        try:
            answers = shard.apply(batch)
        except StoreRejected as error:  # one of them made all fail, and nothing was applied
            if len(batch) == 1:
                return [error]
            half = len(batch) // 2
            return self._apply(number, batch[:half]) + self._apply(number, batch[half:])
        except TenureError as error:
            return [error] * len(batch)
        except Exception as error:  # other shards have applied their parts: these did not happen
            log.exception("shard %s failed", shard.name)
            return [StoreError(f"shard {shard.name!r}: {error!r}")] * len(batch)
        if len(answers) != len(batch):
            lost = f"shard {shard.name!r} answered {len(answers)} of {len(batch)} operations"
            return [OutcomeUnknown(lost)] * len(batch)
        return answers

    # Reading ------------------------------------------------------------------------------------

    def each(
        self, call: Callable[[Shard], object], of: Sequence[Shard] | None = None
    ) -> list[object]:
        """What the call returns, or the TenureError that it raises, for each shard."""

        def caught(shard: Shard) -> object:
            try:
                return call(shard)
            except TenureError as error:
                return error

        return self._reading.map(caught, self.shards if of is None else of)

    def jobs_by_shard(self, ids: Sequence[str]) -> dict[str, dict[int, Job]]:
        """The jobs of these ids by the shards that have them. Shards that are away are passed
        over: they stop only their own tenants."""
        found: dict[str, dict[int, Job]] = {}
        for number, jobs in enumerate(self.each(lambda shard: jobs_on(shard, ids, None))):
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
        for shard, listed in zip(
            among, self.each(lambda one: one.read(queries.ListSchedules()), among), strict=True
        ):
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
        count = len(self.shards)
        first = next(self._turns)
        return [(first + step) % count for step in range(count)]

    def with_ready(self, op: ops.Claim, otherwise: int | None) -> int:
        """The next shard that may have a job for this claim. If none seems to: `otherwise`, or the
        next."""
        order = self.next_turn()
        now = self.clock.now_ms()
        for number in order:
            try:
                ready = self.shards[number].read(queries.OldestReady(op.queues))
                due = self.shards[number].read(queries.NextDue(op.queues))
            except TenureError:
                continue
            if isinstance(ready, queries.Due) and ready.at is not None:
                return number
            if isinstance(due, queries.Due) and due.at is not None and due.at <= now:
                return number
        return order[0] if otherwise is None else otherwise
