"""The reference model, adapted where engines are free to differ: when the claims of a batch sweep
due jobs, and, for some engines, which tenant they serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from tenure.clock import Clock
from tenure.engines.foundationdb.claim import _MOST_JOBS as MOST_AT_ONCE
from tenure.engines.foundationdb.engine import _claims_at_once
from tenure.engines.foundationdb.keyed_calls import before_claims, claims_come_last
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


class Sweep(NamedTuple):
    """What is swept for an operation of a batch."""

    queues: Sequence[tuple[str, int]]  # and how many of each kind are swept there
    within: bool = False  # by the operation itself, just before its claims; otherwise before it


_NONE = Sweep(())


class Model(MemoryEngine):
    """A model that sweeps when and where the engine does. The same history has the same tokens."""

    token_steps = 1

    def __init__(self, clock: Clock, sweep: int, sweeps: Sweeps) -> None:
        super().__init__(clock, 0)  # claims do not sweep by themselves
        self._most = sweep
        self._sweeps = sweeps
        self._pending = _NONE  # what the next call under a key sweeps

    def plan(self, batch: Sequence[Op]) -> list[Sweep]:
        """What to sweep for each of the operations."""
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
                plan += [_NONE for _ in row]
        return plan

    def _row(self, claims: list[ops.Claim], sweeps: Sweeps) -> list[Sweep]:
        groups = [
            list(run)
            for _, run in groupby(claims, key=lambda op: (op.queues, op.tenant, op.not_groups))
        ]
        plan: list[Sweep] = []
        for group in groups:
            most = self._most * len(group)
            plan.append(Sweep([(queue, most) for queue in dict.fromkeys(group[0].queues)]))
            plan += [_NONE for _ in group[1:]]
        if sweeps == "for alike":
            return plan
        most = self._most * len(groups[0])
        queues = dict.fromkeys(queue for claim in claims for queue in claim.queues)
        return [Sweep([(queue, most) for queue in queues]), *(_NONE for _ in claims[1:])]

    def sweep_for(self, sweep: Sweep) -> None:
        """Sweep as planned for the next operation, or let it do that."""
        if sweep.within:
            self._pending = sweep
        else:
            self._sweep_all(sweep)

    def _sweep_all(self, sweep: Sweep) -> None:
        """Sweep in the order of the queues' names."""
        for queue, most in sorted(sweep.queues):
            if queue in self._queues:
                self._sweep(queue, most, self._clock.now_ms())

    def _plan_together(self, batch: Sequence[Op]) -> list[Sweep]:
        plan: list[Sweep] = []
        for together, run in groupby(batch, key=_claims_last):
            for part in _claims_at_once(run) if together else [[one] for one in run]:
                first = self._together(part) if together else _NONE
                plan += [first, *(_NONE for _ in part[1:])]
        return plan

    def _together(self, part: Sequence[Op]) -> Sweep:
        claims = [op for op in ops.flat(part) if isinstance(op, ops.Claim)]
        named = Counter(queue for claim in claims for queue in dict.fromkeys(claim.queues))
        most = max(self._most, MOST_AT_ONCE)
        queues = [(queue, min(self._most * count, most)) for queue, count in named.items()]
        return Sweep(queues, within=isinstance(part[0], ops.Once) and bool(before_claims(part[0])))

    def _once(self, op: ops.Once, now: int) -> Answer:
        answer = super()._once(op, now)
        self._sweep_pending()  # even if it was applied before
        return answer

    def _sweep_pending(self) -> None:
        sweep, self._pending = self._pending, _NONE
        self._sweep_all(sweep)

    def _in_order(self, batch: Sequence[Op], now: int) -> list[Answer]:
        together = self._sweeps == "together"
        last = together and _claims_last(ops.Once("", tuple(batch)))
        if last:
            plan: list[Sweep] = [_NONE for _ in batch]
        elif together:  # then claims are made one by one
            plan = [sweep for op in batch for sweep in self._plan_rows([op], "for alike")]
        else:
            plan = self.plan(batch)
        answers: list[Answer] = []
        for one, sweep in zip(batch, plan, strict=True):
            if last and isinstance(one, ops.Claim):
                self._sweep_pending()
            self._sweep_all(sweep)
            answers.append(self._run(one, now))
        return answers


def _claims_last(op: Op) -> bool:
    """Whether an operation is a claim, or ends with claims."""
    return isinstance(op, ops.Claim) or (isinstance(op, ops.Once) and claims_come_last(op))


class Follower(Model, FollowingModel):
    """A model that also serves the tenants that the engine served, if the rules allow it, and has
    its own tokens."""

    def _claim(self, op: ops.Claim, now: int) -> Answer:
        self.begin_claim()
        answer = MemoryEngine._claim(self, op, now)
        self.end_claim()
        return answer
