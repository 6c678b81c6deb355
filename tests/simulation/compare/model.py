"""The reference model, adapted where engines are free to differ: when the claims of a batch sweep
due jobs, and, for some engines, which tenant they serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from tenure.clock import Clock
from tenure.engines.foundationdb.claim import _MOST_JOBS as MOST_AT_ONCE
from tenure.engines.foundationdb.engine import _claims_at_once
from tenure.engines.foundationdb.once import before_claims, claims_come_last
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tests.simulation.following import FollowingModel

# When consecutive claims in a batch sweep:
Sweeps = Literal[
    "for alike",  # before each group of equal claims, as much as they would one by one
    "for all",  # before the first, in all their queues, as much as its group would
    "together",  # also under keys: before the first, as much as the claims of each queue would
]
Sweep = list[tuple[str, int]]  # queues, and how many of each kind are swept there


class Model(MemoryEngine):
    """A model that sweeps when and where the engine does."""

    def __init__(self, clock: Clock, sweep: int, sweeps: Sweeps) -> None:
        super().__init__(clock, 0)  # claims do not sweep by themselves
        self._most = sweep
        self._sweeps = sweeps
        self._within: dict[int, Sweep] = {}  # what calls under a key sweep
        self._pending: Sweep = []

    def plan(self, batch: Sequence[Op]) -> list[Sweep]:
        """What to sweep before each of the operations."""
        if self._sweeps == "together":
            return self._plan_together(batch)
        return self._plan_rows(batch, self._sweeps)

    def _plan_rows(self, batch: Sequence[Op], sweeps: Sweeps) -> list[Sweep]:
        plan: list[Sweep] = []
        for is_claim, run in groupby(batch, key=lambda op: isinstance(op, ops.Claim)):
            row = list(run)
            if is_claim:
                plan += self._row(row, sweeps)  # type: ignore[arg-type]
            else:
                plan += [[] for _ in row]
        return plan

    def _row(self, claims: list[ops.Claim], sweeps: Sweeps) -> list[Sweep]:
        groups = [
            list(run)
            for _, run in groupby(claims, key=lambda op: (op.queues, op.tenant, op.not_groups))
        ]
        plan: list[Sweep] = []
        for group in groups:
            plan.append(
                [(queue, self._most * len(group)) for queue in dict.fromkeys(group[0].queues)]
            )
            plan += [[] for _ in group[1:]]
        if sweeps == "for alike":
            return plan
        most = self._most * len(groups[0])
        queues = dict.fromkeys(queue for claim in claims for queue in claim.queues)
        return [[(queue, most) for queue in queues], *([] for _ in claims[1:])]

    def sweep_first(self, sweep: Sweep) -> None:
        """Sweep as planned, in the order of the queues' names."""
        for queue, most in sorted(sweep):
            if queue in self._queues:
                self._sweep(queue, most, self._clock.now_ms())

    def _plan_together(self, batch: Sequence[Op]) -> list[Sweep]:
        plan: list[Sweep] = []
        for together, run in groupby(batch, key=_claims_last):
            for part in _claims_at_once(run) if together else [[one] for one in run]:
                sweep = self._together(part) if together else []
                if isinstance(part[0], ops.Once) and before_claims(part[0]):
                    self._within[id(part[0])], sweep = sweep, []
                plan += [sweep, *([] for _ in part[1:])]
        return plan

    def _together(self, part: Sequence[Op]) -> Sweep:
        claims = [op for op in ops.flat(part) if isinstance(op, ops.Claim)]
        named = Counter(queue for claim in claims for queue in dict.fromkeys(claim.queues))
        most = max(self._most, MOST_AT_ONCE)
        return [(queue, min(self._most * count, most)) for queue, count in named.items()]

    def _once(self, op: ops.Once, now: int) -> Answer:
        self._pending = self._within.pop(id(op), [])
        answer = super()._once(op, now)
        self._sweep_pending()  # even if it was applied before
        return answer

    def _sweep_pending(self) -> None:
        sweep, self._pending = self._pending, []
        self.sweep_first(sweep)

    def _in_order(self, batch: Sequence[Op], now: int) -> list[Answer]:
        together = self._sweeps == "together"
        last = together and _claims_last(ops.Once("", tuple(batch)))  # type: ignore[arg-type]
        if last:
            plan: list[Sweep] = [[] for _ in batch]
        elif together:  # then claims are made one by one
            plan = [sweep for op in batch for sweep in self._plan_rows([op], "for alike")]
        else:
            plan = self.plan(batch)
        answers: list[Answer] = []
        for one, sweep in zip(batch, plan, strict=True):
            if last and isinstance(one, ops.Claim):
                self._sweep_pending()
            self.sweep_first(sweep)
            answers.append(self._run(one, now))
        return answers


def _claims_last(op: Op) -> bool:
    """Whether an operation is a claim, or ends with claims."""
    return isinstance(op, ops.Claim) or (isinstance(op, ops.Once) and claims_come_last(op))


class Follower(Model, FollowingModel):
    """A model that also serves the tenants that the engine served, if the rules allow it, and has
    its own tokens."""

    def _claim(self, op: ops.Claim, now: int) -> Answer:
        """Keep a rate as it was unless it was used or the time was set back: in production it is
        measured by the versions of the cluster, which only grow."""
        before = {
            name: (book.tokens, book.tokens_at)
            for name in op.queues
            if (book := self._queues.get(name)) is not None
        }
        self.begin_claim()
        answer = MemoryEngine._claim(self, op, now)
        self.end_claim()
        given = {job.queue for job in answer.jobs} if isinstance(answer, ops.Leased) else set()
        for name, (tokens, at) in before.items():
            if name not in given and now >= at:
                self._queues[name].tokens, self._queues[name].tokens_at = tokens, at
        return answer
