"""The reference model, made to follow an engine that has a freedom.

Which tenant is served next is the engine's choice, by weighted chance. The model takes the same
jobs, if it might have: each must be the first of its tenant's line that no limit holds back, and
when the engine stops, nobody may be left who could be served.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tenure.engines import Engine
from tenure.engines.foundationdb.keyed_calls import claims_come_last
from tenure.engines.memory import MemoryEngine, Record
from tenure.model import ops, queries, states
from tenure.model.job import Job, State
from tenure.model.ops import Answer


class FollowingModel(MemoryEngine):
    """A model that is told what the engine answered."""

    token_steps = 1

    def follow(self, op: ops.Op, answer: Answer, engine: Engine) -> Answer:
        """Apply an operation as the engine did."""
        done = isinstance(op, ops.Once) and op.key in self._answered
        if isinstance(op, ops.Once) and done:
            self._sweep_anyway(op)
        self._given = [] if done else given_out(answer)
        self._engine = engine
        (answered,) = self.apply([op])
        assert not any(self._given), f"the model would not have given out {self._given}"
        return answered

    def _sweep_anyway(self, op: ops.Once) -> None:
        """The engine sweeps for claims before it reads whether their key was used."""
        if claims_come_last(op):
            names = {queue for one in op.ops if isinstance(one, ops.Claim) for queue in one.queues}
            for queue in sorted(names & self._queues.keys()):
                self._sweep(queue, self._sweep_limit, self._clock.now_ms())

    def begin_claim(self) -> None:
        """Look at what the engine gave out for the next claim of the operation."""
        self._chosen = self._given[0] if self._given else []

    def end_claim(self) -> None:
        """Check that the model gave out the same."""
        assert not self._chosen, f"the model would not have given out {self._chosen}"
        self._given = self._given[1:]

    def _claim(self, op: ops.Claim, now: int) -> Answer:
        self.begin_claim()
        if self._chosen:
            self._token = self._chosen[0][1] - 1  # claims of one commit share theirs
        answer = super()._claim(op, now)
        self.end_claim()
        return answer

    def _pick(self, queue: str, op: ops.Claim, room: int, now: int) -> list[Record]:
        if queue not in self._queues or room <= 0 or self._limit(queue).paused:
            return []
        limit = self._limit(queue)
        live = [r for r in self._live.values() if r.job.queue == queue]
        leased = [r for r in live if r.job.state is State.LEASED]
        if limit.concurrency is not None:
            room = min(room, limit.concurrency - len(leased))
        room = min(room, self._rate_room(queue, now))
        held: Counter[tuple[str, str | None]] = Counter((r.job.tenant, None) for r in leased)
        held.update((r.job.tenant, r.job.group) for r in leased)
        lines: dict[str, list[Record]] = defaultdict(list)
        for record in sorted((r for r in live if r.ready), key=lambda r: r.order):
            wanted = op.tenant is None or record.job.tenant == op.tenant
            if wanted and record.job.group not in op.not_groups:
                lines[record.job.tenant].append(record)
        picked: list[Record] = []
        while len(picked) < room:
            given = sum(self._records[job_id].job.queue == queue for job_id, _ in self._chosen)
            spare = room - len(picked) - given
            first = self._served(queue, lines, held, now, spare=spare)
            if first is None:
                break
            lines[first.job.tenant].remove(first)
            held.update([(first.job.tenant, None), (first.job.tenant, first.job.group)])
            picked.append(first)
        self._use_rate(queue, len(picked), now)
        return picked

    def _served(
        self,
        queue: str,
        lines: dict[str, list[Record]],
        held: Counter[tuple[str, str | None]],
        now: int,
        *,
        spare: int,
    ) -> Record | None:
        """The job that the engine took next. spare: how many expired jobs it may have taken, beside
        those that it gave out; later operations of the batch may have found others."""
        heads = [self._next(queue, tenant, lines, held) for tenant in lines]
        allowed = {head.job.id: head for head in heads if head is not None}
        expired = [head for head in allowed.values() if self._may_have_expired(head, now)]
        if spare and expired:
            # Sweeps later in the batch begin with those that expired first.
            return max(expired, key=lambda head: (head.job.expires_at or 0, head.seq))
        if not allowed:
            return None
        assert self._chosen, f"nothing was given out, but {sorted(allowed)} could be"
        job_id, _ = self._chosen[0]
        assert job_id in allowed, f"{job_id} was given out instead of one of {sorted(allowed)}"
        self._chosen = self._chosen[1:]
        return allowed[job_id]

    def _may_have_expired(self, head: Record, now: int) -> bool:
        """Whether the engine may have taken this job and found it expired. Then it is dead now, or
        a later operation of the batch deleted it."""
        change = states.decide(head.job, states.Claimed(), now)
        assert change is not None
        if change.state is not State.DEAD:
            return False
        found = self._engine.read(queries.GetJob(head.job.id))
        return not isinstance(found, Job) or found.state is State.DEAD


def given_out(answer: Answer) -> list[list[tuple[str, int]]]:
    """The jobs that each claim of an answer gives out, with their tokens."""
    answers = answer.answers if isinstance(answer, ops.Answers) else [answer]
    return [
        [(job.id, job.token) for job in one.jobs] for one in answers if isinstance(one, ops.Leased)
    ]
