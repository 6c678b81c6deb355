"""A claim asks the shards one after the other, beginning with the one whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tenure.engines.sharded.cluster import Cluster
from tenure.errors import TenureError
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Answer


class Asking:
    """A claim, and the shards that it has not asked."""

    def __init__(self, cluster: Cluster, op: ops.Claim, turn: Sequence[int]) -> None:
        """turn: the shards in the order in which they are asked."""
        self._cluster = cluster
        self._op = op
        self._generation: int = cluster.locator.hints.generation
        shard = None if op.tenant is None else cluster.placing.of_tenant(op.tenant)
        self._left: list[int] = list(turn) if shard is None else [shard]
        self._jobs: list[Job] = cluster.late.take(op, op.limit)
        self._answered = bool(self._jobs)
        self._error: TenureError | None = None

    @property
    def next_shard(self) -> int | None:
        """The shard to ask next; None if there are enough jobs, or all shards were asked."""
        return self._left[0] if self._left and self._missing > 0 else None

    @property
    def next_op(self) -> ops.Claim:
        return self._op if not self._jobs else replace(self._op, limit=self._missing)

    @property
    def _missing(self) -> int:
        return self._op.limit - len(self._jobs)

    def answer(self, answer: Answer) -> None:
        """Add the jobs that a shard returned."""
        shard = self._left.pop(0)
        if isinstance(answer, ops.Leased):
            self._answered = True
            if answer.jobs:
                self._jobs += answer.jobs
                ids = [job.id for job in answer.jobs]
                self._cluster.locator.hints.note(ids, shard, self._generation)
        elif isinstance(answer, TenureError):
            self._error = answer

    # path: a claim over shards
    def result(self) -> Answer:
        """All jobs; the error of a shard only if no shard could be asked."""
        if not self._jobs:
            self._jobs = self._cluster.late.take(self._op, self._op.limit)
            self._answered = self._answered or bool(self._jobs)
        if self._error is not None and not self._answered:
            return self._error
        return ops.Leased(self._jobs)
