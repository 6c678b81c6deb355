"""Outcomes that could not be stored at once: a row is locked, a shard is away, an answer was lost.

An outcome is kept and sent again until it is stored, or until the store rejects it for good, such
as after its lease was lost. Threads do this apart from the other calls of the worker, one for each
part of the store: jobs that are not concerned do not wait. The keeper renews the leases of kept
outcomes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeGuard

from tenure.errors import (
    Busy,
    Closed,
    Duplicate,
    InvalidInput,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreRejected,
    TenureError,
    Unauthorized,
)
from tenure.model import ops
from tenure.model.job import Lease, State
from tenure.model.ops import Answer, Op
from tenure.observe.logs import counted
from tenure.queue import Queue, store_of
from tenure.worker.job_log import JobLog
from tenure.worker.outcome import after_refusal
from tenure.worker.post import EndOp, Post

log = logging.getLogger("tenure.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two tries
MOST_AT_ONCE = 1_000  # outcomes in one batch
MOST_ALONE = 5  # outcomes that are tried alone after a batch has failed
MOST_SAID = 20  # errors that are logged as warnings until nothing is kept; jobs in a message

# To send the outcome again would not help.
FINAL = (LeaseLost, NotFound, InvalidInput, Duplicate, StoreRejected)


class Failed(NamedTuple):
    """An outcome that could not be stored, and why."""

    op: EndOp
    error: TenureError


def is_kept(answer: Answer) -> TypeGuard[TenureError]:
    """Whether an outcome with this answer must be sent again."""
    return isinstance(answer, TenureError) and not isinstance(answer, FINAL)


def is_of_one(error: Exception) -> bool:
    """Whether one operation made a whole batch fail, rather than the store."""
    may_pass = isinstance(error, Busy | StoreError | Unauthorized | Closed)
    return isinstance(error, StoreRejected) or not may_pass


def as_store_error(error: Exception) -> TenureError:
    """The error of a batch. One that nobody thought of is logged."""
    if isinstance(error, TenureError):
        return error
    log.error("an operation failed unexpectedly", exc_info=error)
    return StoreError(repr(error))


def after_all(op: Op, answer: Answer) -> Answer:
    """What an answer means if an earlier try may have been stored: then a lost lease may be the
    lease that this very outcome ended."""
    if isinstance(op, ops.Ack):
        is_done = isinstance(answer, LeaseLost) and answer.state == State.DONE
        if is_done or (isinstance(answer, NotFound) and not op.keep):
            return ops.Ok()
    elif isinstance(answer, LeaseLost) and answer.state not in (State.DONE, State.LEASED):
        return ops.Moved(State(answer.state), 0)
    return answer


def say_unstored(leases: Sequence[Lease]) -> None:
    """Log which outcomes are lost when the worker ends."""
    if leases:
        ids = ", ".join([lease.id for lease in leases[:MOST_SAID]])
        log.error("could not be stored: the outcomes of %s: %s", counted(len(leases), "job"), ids)


class _Line:
    """What is kept for one part of the store, and sent by a thread of its own."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[Post, EndOp]] = {}
        self.thread: threading.Thread | None = None
        self.hurry = threading.Event()
        self.is_away = False  # the whole part, when the outcomes were sent the last time
        self.turn = 0
        self.settled = 0  # how many


class KeptOutcomes:
    """Sends the outcomes that the posts keep, until none is left."""

    def __init__(
        self,
        queue: Queue,
        posts: Sequence[Post],
        job_log: JobLog,
        settled: Callable[[Post], object],
    ) -> None:
        """settled: called for each outcome that is no longer kept, in any thread."""
        self._queue = queue
        self._posts = posts
        self._job_log = job_log
        self._settled = settled
        self._part_of = store_of(queue).part_of
        self._lock = threading.Lock()
        self._lines: dict[int | None, _Line] = {}  # by part of the store, if it has any
        self._idle = threading.Event()  # nothing is kept, as far as the threads know
        self._stopping = False
        self._unsure: set[tuple[str, int]] = set()  # may have been stored
        self._said: set[str] = set()  # errors since something is kept

    def note(self, post: Post, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """Log what became of the outcomes in a batch, and keep those that could not be stored. Can
        be called from any thread."""
        has_log = self._job_log.expects_some
        failed: list[Failed] = []
        for op, answer in zip(batch, answers, strict=True):
            if type(answer) is ops.Ok and not has_log:
                continue
            if isinstance(op, EndOp) and is_kept(answer):
                failed.append(Failed(op, answer))
            elif not isinstance(op, ops.Claim):
                self._job_log.stored(op, answer)
                self._instead(post, op, answer)
        if failed:
            self._say(failed)
            self._add(post, [op for op, _ in failed])

    def send(self, post: Post, op: EndOp) -> None:
        """Send an outcome now. Can be called from any thread, and does not wait."""
        self._add(post, [op])
        self.hurry()

    def _add(self, post: Post, outcomes: Sequence[EndOp]) -> None:
        with self._lock:
            self._idle.clear()
            for op in outcomes:
                part = None if self._part_of is None else self._part_of([op])
                line = self._lines.setdefault(part, _Line())
                line.kept[op.id, op.token] = (post, op)
                post.kept[op.id, op.token] = op
                if line.thread is None and not self._stopping:
                    work = partial(self._work, line)
                    thread = threading.Thread(target=work, name="tenure-kept", daemon=True)
                    thread.start()
                    line.thread = thread

    def hurry(self) -> None:
        """Send everything again now."""
        for line in list(self._lines.values()):
            line.hurry.set()

    def wait(self, seconds: float) -> None:
        """Wait until nothing is kept any more."""
        if any(post.kept for post in self._posts):
            self._idle.wait(seconds)

    def stop(self) -> None:
        self._stopping = True
        self.hurry()

    def _work(self, line: _Line) -> None:
        pause = FIRST_PAUSE
        while True:
            line.hurry.wait(pause)
            line.hurry.clear()
            pause = FIRST_PAUSE if self._send_all(line) else min(pause * 2, LONGEST_PAUSE)
            with self._lock:
                if self._stopping or not line.kept:
                    line.thread = None
                    if all(one.thread is None for one in self._lines.values()):
                        self._idle.set()
                        self._over()
                    return

    def _over(self) -> None:
        if self._said and not self._stopping:
            log.info("all outcomes that were kept are stored or rejected")
        self._said.clear()
        self._unsure.clear()

    def _send_all(self, line: _Line) -> bool:
        """Send what is kept. Returns whether anything was settled."""
        kept = list(line.kept.values())
        failed: list[Failed] = []
        line.is_away = False
        settled = line.settled
        try:
            for start in range(0, len(kept), MOST_AT_ONCE):
                if not self._stopping:
                    failed += self._send(line, kept[start : start + MOST_AT_ONCE])
            self._say(failed)
            if len(failed) > 1 and not line.is_away:
                self._send_alone(line, failed)
        except Exception:  # whatever it is, the outcomes are still kept
            log.exception("kept outcomes could not be sent")
        return line.settled > settled

    def _send_alone(self, line: _Line, failed: Sequence[Failed]) -> None:
        """Try some outcomes alone, others each time: one of them may be what makes all fail."""
        again = {(op.id, op.token) for op, error in failed if isinstance(error, StoreError)}
        kept = [one for key, one in list(line.kept.items()) if key in again]
        line.turn += MOST_ALONE
        first = line.turn % len(kept) if kept else 0
        for one in [*kept[first:], *kept[:first]][:MOST_ALONE]:
            self._send(line, [one])

    def _send(self, line: _Line, kept: Sequence[tuple[Post, EndOp]]) -> list[Failed]:
        """Send some outcomes in one batch. Returns those that are still to be stored."""
        batch = [op for _, op in kept]
        try:
            answers: Sequence[Answer] = store_of(self._queue).do_aside(batch)
        except Exception as error:
            if len(batch) > 1 and is_of_one(error):
                half = len(batch) // 2
                return self._send(line, kept[:half]) + self._send(line, kept[half:])
            line.is_away = True
            answers = [as_store_error(error)] * len(batch)
        failed: list[Failed] = []
        for (post, op), answer in zip(kept, answers, strict=True):
            if is_kept(answer):
                failed.append(Failed(op, answer))
            else:
                self._settle(line, post, op, answer)
        return failed

    def _settle(self, line: _Line, post: Post, op: EndOp, answer: Answer) -> None:
        if (op.id, op.token) in self._unsure:
            answer = after_all(op, answer)
        line.kept.pop((op.id, op.token), None)
        post.kept.pop((op.id, op.token), None)
        line.settled += 1
        self._job_log.stored(op, answer)
        self._instead(post, op, answer)
        self._settled(post)

    def _instead(self, post: Post, op: Op, answer: Answer) -> None:
        """Fail a job that the store refuses to suspend."""
        failure = after_refusal(op, answer)
        if failure is not None:
            self.send(post, failure)

    def _say(self, failed: Sequence[Failed]) -> None:
        """Log each error once, however many outcomes meet it and however often."""
        by_text: dict[str, list[Failed]] = {}
        for one in failed:
            by_text.setdefault(str(one.error), []).append(one)
            if isinstance(one.error, OutcomeUnknown):
                self._unsure.add((one.op.id, one.op.token))
        for text, some in by_text.items():
            is_new = text not in self._said and len(self._said) < MOST_SAID
            if is_new:
                self._said.add(text)
            op = some[0].op
            others = f" and of {counted(len(some) - 1, 'other')}" if len(some) > 1 else ""
            log.log(
                logging.WARNING if is_new else logging.DEBUG,
                f"%s of job %s{others} could not be stored, and is kept until it can be: %s",
                *(type(op).__name__, op.id, text),
                extra={"job": op.id},
            )
