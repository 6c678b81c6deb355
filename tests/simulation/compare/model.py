"""The reference model, with what engines may do in their own way: how claims of one batch look
after what is due, and, for some, whom they serve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from tenure import ops
from tenure.clock import Clock
from tenure.engines.memory import MemoryEngine
from tenure.ops import Answer, Op
from tests.simulation.following import FollowingModel

# Claims that stand in a row in a batch look after what is due ...
Sweeps = Literal[
    "for alike",  # before each group that wants the same, for as many as would one after the other
    "for all",  # before the first, in all their queues, for as many as its group would
    "once",  # before the first, in all their queues, for as many as one would
]
Sweep = list[tuple[str, int]]  # queues, and how many of each kind are looked after there


class Model(MemoryEngine):
    """Looks after what is due when and where the engine does."""

    def __init__(self, clock: Clock, sweep: int, sweeps: Sweeps) -> None:
        super().__init__(clock, 0)  # no claim by itself
        self._most = sweep
        self._sweeps = sweeps

    def plan(self, batch: Sequence[Op], sweeps: Sweeps | None = None) -> list[Sweep]:
        """What is looked after before each of the operations."""
        plan: list[Sweep] = []
        for is_claim, run in groupby(batch, key=lambda op: isinstance(op, ops.Claim)):
            row = list(run)
            if is_claim:
                plan += self._row(row, sweeps or self._sweeps)  # type: ignore[arg-type]
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
        most = self._most * (len(groups[0]) if sweeps == "for all" else 1)
        queues = dict.fromkeys(queue for claim in claims for queue in claim.queues)
        return [[(queue, most) for queue in queues], *([] for _ in claims[1:])]

    def sweep_first(self, sweep: Sweep) -> None:
        """Do what the plan says."""
        for queue, most in sweep:
            if queue in self._queues:
                self._sweep(queue, most, self._clock.now_ms())

    def _once(self, op: ops.Once, now: int) -> Answer:
        if op.key not in self._answered:
            answers: list[Answer] = []
            one_by_one: Sweeps = "for alike"
            for one, sweep in zip(op.ops, self._plan_of_once(op.ops, one_by_one), strict=True):
                self.sweep_first(sweep)
                answers.append(self._operations[type(one)](one, now))
            self._answered[op.key] = (now, ops.Answers(answers))
        return self._answered[op.key][1]

    def _plan_of_once(self, batch: Sequence[Op], sweeps: Sweeps) -> list[Sweep]:
        if self._sweeps != "once":
            return self.plan(batch)
        # Claims whose answer is stored are made one after the other.
        return [sweep for op in batch for sweep in self.plan([op], sweeps)]


class Follower(Model, FollowingModel):
    """The same, and serves whom the engine served, if it may; with tokens of its own."""

    def _claim(self, op: ops.Claim, now: int) -> Answer:
        return MemoryEngine._claim(self, op, now)
