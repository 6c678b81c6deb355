"""Runs a history: each step on the engine and on the model, with a comparison after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from msgspec.structs import replace

from tenure.engines import Engine
from tenure.errors import LeaseLost, TenureError
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue.committer import Committer
from tests.simulation.compare.model import Follower
from tests.simulation.compare.rigs import Rig
from tests.simulation.compare.state import Compare, Difference
from tests.simulation.compare.steps import Ask, Run, Step, Wait
from tests.simulation.compare.tokens import Tokens
from tests.simulation.following import given_out

MOST_LOOKS = 8  # jobs that are compared after a step that touched them


class Recorder:
    """An engine that records its batches in order. It takes one batch at a time, because the order
    of two concurrent batches could not be observed. Renewals have a line of their own, whatever
    `in_flight` says."""

    in_flight = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_at_a_time = threading.Lock()
        self.batches: list[tuple[list[Op], list[Answer]]] = []

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        with self._one_at_a_time:
            answers = self._engine.apply(batch)
            self.batches.append((list(batch), answers))
        return answers


class Comparison:
    """Runs steps on a store and on the model."""

    def __init__(self, rig: Rig, every: int = 10) -> None:
        self.rig = rig
        self.tokens = Tokens(strict=rig.traits.strict)
        self.compare = Compare(rig.model, self.tokens, rig.age_slack_ms())
        self._once: dict[
            str, list[tuple[ops.Once, ops.Once]]
        ] = {}  # with the model's and the engine's tokens
        self._every = every  # steps between comparisons of the whole state
        self._steps = 0
        self._back_ms = 0  # by which the clock was set back so far

    def step(self, step: Step) -> None:
        """Run one step; raises a Difference."""
        self._steps += 1
        match step:
            case Wait():
                self.rig.clock.advance(step.ms / 1000)
                self._back_ms += max(0, -step.ms)
                self.compare.age_slack_ms = self.rig.age_slack_ms(self._back_ms)
            case Ask():
                caller = step.caller % len(self.rig.engines)
                self.rig.set_model_clock(caller)
                engine = self.rig.engines[caller]
                self.compare.ask(engine, step.query, self.rig.ahead_ms(caller))
            case Run():
                self._run(step)
        if self._steps % self._every == 0:
            self.look()

    def look(self) -> None:
        """Compare the whole state, through each handle in turn."""
        caller = self._steps // self._every % len(self.rig.engines)
        self.rig.set_model_clock(caller)
        self.compare.everything(
            self.rig.engines[caller],
            self.rig.ahead_ms(caller),
            transfers=self.rig.traits.transfers,
        )

    def end(self) -> None:
        """Compare the whole state a last time, and audit the store without the engine."""
        self.look()
        problems = self.rig.audit()
        if problems:
            raise Difference("audit", "; ".join(problems[:5]))

    def _run(self, step: Run) -> None:
        caller = step.caller % len(self.rig.engines)
        self.rig.set_model_clock(caller)
        engine = self.rig.engines[caller]
        originals: dict[int, Op] = {}
        calls = []
        answered = self.rig.model._answered
        self._once = {key: sent for key, sent in self._once.items() if key in answered}
        for call in step.calls:
            sent = [self._sent(op) for op in call]
            originals |= {id(one): op for one, op in zip(sent, call, strict=True)}
            calls.append(sent)
        originals |= {id(one): one for one in step.standing}
        recorder = Recorder(engine)
        try:
            answers = _perform(recorder, calls, step)
        except Exception as error:
            raise Difference("exception", f"{type(error).__name__}: {error}") from error
        self._follow(recorder, originals)
        given = {
            id(op): answer
            for batch, got in recorder.batches
            for op, answer in zip(batch, got, strict=True)
        }
        for sent, got in zip(calls, answers, strict=True):
            if any(given[id(op)] is not answer for op, answer in zip(sent, got, strict=True)):
                raise Difference("committer", "a caller was given another's answer")
        other = self.rig.engines[(caller + 1) % len(self.rig.engines)]
        self.compare.jobs(other, _touched(recorder)[:MOST_LOOKS])

    def _sent(self, op: Op) -> Op:
        """An operation with the engine's tokens. What is sent again under a key is the same as the
        first time, even if the model's tokens map to other ones by now."""
        if not isinstance(op, ops.Once):
            return self.tokens.to_engine(op)  # type: ignore[no-any-return]
        known = self._once.setdefault(op.key, [])
        for asked, sent in known:
            if asked == op:
                return replace(sent)  # a copy, as results are matched by identity
        known.append((op, self.tokens.to_engine(op)))
        return known[-1][1]

    def _follow(self, recorder: Recorder, originals: dict[int, Op]) -> None:
        for batch, answers in recorder.batches:
            if len(batch) != len(answers):
                raise Difference("answers", f"{len(answers)} to {len(batch)} operations")
            asked = [originals[id(sent)] for sent in batch]
            before = self._states() if not self.rig.traits.exact_losses else {}
            expected: list[Answer] = []
            for op, sweep, answer in zip(asked, self.rig.model.plan(asked), answers, strict=True):
                self.rig.model.sweep_for(sweep)
                expected.append(self._expected(op, answer))
            if before:
                after = self._states()
                expected = _with_losses(expected, answers, before, after)
            for op, mine, its in zip(asked, expected, answers, strict=True):
                self.compare.same(f"answer to {type(op).__name__}", mine, its)

    def _states(self) -> dict[str, str]:
        return {i: record.job.state.value for i, record in self.rig.model._records.items()}

    def _expected(self, op: Op, answer: Answer) -> Answer:
        model = self.rig.model
        if not isinstance(model, Follower):
            (expected,) = model.apply([op])
            return expected
        try:
            return model.follow(op, answer, self.rig.engines[0])
        except AssertionError as error:
            raise Difference("choice", str(error)) from None


def _with_losses(
    expected: Sequence[Answer],
    found: Sequence[Answer],
    before: dict[str, str],
    after: dict[str, str],
) -> list[Answer]:
    """The expected results, where a lost lease may name the state before or after the batch."""
    answers: list[Answer] = []
    for mine, its in zip(expected, found, strict=True):
        if isinstance(mine, ops.Answers) and isinstance(its, ops.Answers):
            inner = _with_losses(mine.answers, its.answers, before, after)
            answers.append(ops.Answers(inner))
        elif isinstance(mine, LeaseLost) and isinstance(its, LeaseLost):
            allowed = (before.get(its.job_id), after.get(its.job_id))
            answers.append(its if mine.job_id == its.job_id and its.state in allowed else mine)
        else:
            answers.append(mine)
    return answers


def _perform(recorder: Recorder, calls: list[list[Op]], step: Run) -> list[list[Answer]]:
    """Apply the calls, and return the results of each."""
    if not step.commit:
        batch = [op for call in calls for op in call]
        answers = iter(recorder.apply(batch))
        return [[next(answers) for _ in call] for call in calls]
    committer = Committer(recorder, 100_000, 2**30)  # type: ignore[arg-type]
    try:
        if len(calls) == 1 and not step.standing:
            return [committer.run(calls[0])]
        return asyncio.run(_submit(committer, calls, step.standing))
    finally:
        committer.close()


async def _submit(
    committer: Committer, calls: list[list[Op]], standing: Sequence[ops.Claim]
) -> list[list[Answer]]:
    waiting = [committer.stand(claim, lambda: 0.0) for claim in standing]
    answers = await asyncio.gather(*(committer.arun(call) for call in calls))
    for one in waiting:
        await committer.withdraw(one)
    return answers


def _touched(recorder: Recorder) -> list[str]:
    """The jobs that operations name or results contain, the last first."""
    ids: dict[str, None] = {}
    for batch, answers in recorder.batches:
        for op in ops.flat(batch):
            match op:
                case ops.Ack() | ops.Fail() | ops.Extend() | ops.Release() | ops.Progress():
                    ids[op.id] = None
                case ops.JobsOp():
                    ids |= dict.fromkeys(op.ids)
                case ops.Enqueue():
                    ids |= {spec.id: None for spec in op.jobs}
                case ops.Fire():
                    ids[op.id] = None
                case ops.Import():
                    ids |= {entry.job.id: None for entry in op.entries}
        for answer in answers:
            if not isinstance(answer, TenureError):
                ids |= {job_id: None for jobs in given_out(answer) for job_id, _ in jobs}
    return list(ids)[::-1]
