"""Maps the engine's tokens to those of the model.

Engines choose their own tokens. A history contains those of the model. The tokens of both must be
equal in the same cases, and grow in the same order.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from tenure.features.steps import data
from tenure.model import ops
from tenure.model.job import Job


class Last(NamedTuple):
    """The greatest pair of tokens of a job. A job that was deleted and enqueued again is a
    different job."""

    created_at: int
    model: int
    engine: int


class Tokens:
    """Pairs of tokens. strict: all jobs of one claim have the same token, which no other claim has;
    otherwise only the tokens of each job must grow."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._of_job: dict[tuple[str, int], int] = {}
        self._imported: dict[tuple[str, int], int] = {}  # as sent, not yet seen in a result
        self._last_of_job: dict[str, Last] = {}
        self._known: dict[int, int] = {}
        self._models: list[int] = []  # those that are known, in order
        self._high = (0, 0)

    def meet(self, model: Job, engine: Job) -> str | None:
        """Record or check a pair. Returns what is wrong, if anything."""
        if model.token == 0 or engine.token == 0:
            return None if model.token == engine.token else "one of them was never leased"
        key = (model.id, model.token)
        if key in self._of_job:
            known = self._of_job[key]
            return None if known == engine.token else f"it was {known} before"
        return self._pair(model, engine.token)

    def _pair(self, job: Job, engine: int) -> str | None:
        model, last = job.token, self._last(job)
        if last is not None and (model > last.model) != (engine > last.engine):
            return f"the tokens of one job must grow: it was {last.engine} before"
        problem = self._order(model, engine) if self._strict else None
        # The token of an imported job was chosen when the batch was sent. Earlier claims in the
        # batch may have got it since.
        if problem is not None and self._imported.get((job.id, model)) != engine:
            return problem
        self._of_job[job.id, model] = engine
        if last is None or model > last.model:
            self._last_of_job[job.id] = Last(job.created_at, model, engine)
        if problem is not None:
            return None
        if model not in self._known:
            insort(self._models, model)
        self._known[model] = engine
        self._high = max(self._high, (model, engine))
        return None

    def _last(self, job: Job) -> Last | None:
        last = self._last_of_job.get(job.id)
        return last if last is not None and last.created_at == job.created_at else None

    def _order(self, model: int, engine: int) -> str | None:
        if model in self._known:
            known = self._known[model]
            return None if known == engine else f"others of the same claim have {known}"
        at = bisect(self._models, model)
        if at and self._known[self._models[at - 1]] >= engine:
            return f"an earlier claim has {self._known[self._models[at - 1]]}"
        if at < len(self._models) and self._known[self._models[at]] <= engine:
            return f"a later claim has {self._known[self._models[at]]}"
        return None

    def of_engine(self, job_id: str, model: int) -> int:
        """The engine's token for a token of the model, which need not be valid."""
        if model <= 0:
            return model
        if (job_id, model) in self._of_job:
            return self._of_job[job_id, model]
        if (job_id, model) in self._imported:
            return self._imported[job_id, model]
        # Not the job's own token, though claims of one commit may have the same.
        token = self._known[model] if model in self._known else self._new(model)
        last = self._last_of_job.get(job_id)
        return token - (last is not None and token == last.engine)

    def _new(self, model: int) -> int:
        """A token that the engine has not given so far, in the matching position among those it
        gave if there is room, otherwise after all of them."""
        at = bisect(self._models, model)
        if at < len(self._models):
            below = (self._models[at - 1], self._known[self._models[at - 1]]) if at else (0, 0)
            token = min(below[1] + model - below[0], self._known[self._models[at]] - 1)
            if token > below[1]:
                return token
        return self._high[1] + max(1, model - self._high[0])

    def _of_import(self, job: Job) -> int:
        """The token of an imported job. If the job was in the store before, its tokens keep
        growing."""
        token, last = self.of_engine(job.id, job.token), self._last(job)
        if last is None or job.token <= 0 or (job.id, job.token) in self._of_job:
            return token
        return (
            max(token, last.engine + 1) if job.token > last.model else min(token, last.engine - 1)
        )

    def to_engine(self, op: Any) -> Any:
        """An operation with the engine's tokens instead of the model's."""
        match op:
            case ops.LeaseOp():
                return replace(op, token=self.of_engine(op.id, op.token))
            case ops.Once():
                return replace(op, ops=tuple(self.to_engine(one) for one in op.ops))
            case ops.Import():
                return replace(op, entries=self._entries(op.entries))
        return op

    def _entries(self, entries: Sequence[ops.Entry]) -> tuple[ops.Entry, ...]:
        found = []
        for entry in entries:
            token = self._of_import(entry.job)
            self._imported[entry.job.id, entry.job.token] = token
            job = replace(entry.job, token=token)
            found.append(replace(entry, job=job, beside=_beside(entry, token)))
        return tuple(found)


def _beside(entry: ops.Entry, token: int) -> dict[str, str]:
    """The steps of a job, suspended under the engine's token."""
    key, beside = data.head_key(entry.job.id), dict(entry.beside)
    if key in beside:
        head = data.decode_head(beside[key].encode())
        if head.suspended is not None and head.suspended.token == entry.job.token:
            head = replace(head, suspended=replace(head.suspended, token=token))
        beside[key] = data.encode(head).decode()
    return beside
