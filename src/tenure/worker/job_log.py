"""The log of a worker: what became of each job, once that is stored."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tenure.clock import Clock
from tenure.errors import TenureError
from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Op
from tenure.observe.logs import about

log = logging.getLogger("tenure.worker")


class TaskTraceback(Exception):
    """The traceback of a task that ran in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Ended(NamedTuple):
    """An attempt whose outcome is not stored yet."""

    job: Job
    handler: str
    error: BaseException | None = None
    seconds: float | None = None


class JobLog:
    """Logs a dead job as an error, a retry as a warning, and everything else as information."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: dict[tuple[str, int], Ended] = {}

    @staticmethod
    def tells(op: Op) -> bool:
        """Whether there will be something to log. At most log levels, a success is not logged."""
        return type(op) is ops.Fail or log.isEnabledFor(logging.INFO)

    @property
    def expects_some(self) -> bool:
        """Whether there are attempts to log once their outcomes are stored."""
        return bool(self._ended)

    def expect(self, ended: Ended) -> None:
        """Remember an attempt until its outcome is stored. Can be called from any thread."""
        self._ended[ended.job.id, ended.job.token] = ended

    def stored(self, op: Op, answer: Answer) -> None:
        """Log what became of a job, or why an operation failed. Can be called from any thread."""
        if isinstance(answer, TenureError) and not isinstance(op, ops.Progress):
            id = getattr(op, "id", "?")
            log.warning("%s of job %s: %s", type(op).__name__, id, answer, extra={"job": id})
        if not self._ended or not isinstance(op, ops.Ack | ops.Fail | ops.Release | Suspend):
            return
        ended = self._ended.pop((op.id, op.token), None)
        if ended is None or isinstance(answer, TenureError):
            return
        fields = about(ended.job)
        if ended.seconds is not None:
            fields["ms"] = round(ended.seconds * 1000, 3)
        if isinstance(op, ops.Fail) and isinstance(answer, ops.Moved):
            self._failed(op, answer, ended, fields)
        elif isinstance(op, ops.Ack):
            self._say("is done after %.3g s", ended, {**fields, "state": State.DONE.value})
        elif isinstance(op, Suspend) and isinstance(answer, ops.Moved):
            fields |= {"state": answer.state.value, "step": op.name}
            self._say("is suspended after %.3g s", ended, fields)
        else:
            self._say("is released after %.3g s", ended, {**fields, "state": State.PENDING.value})

    def _say(self, what: str, ended: Ended, fields: dict[str, object]) -> None:
        named = (ended.job.id, ended.handler, ended.seconds or 0.0)
        log.info(f"job %s (%s) {what}", *named, extra=fields)

    def _failed(
        self, op: ops.Fail, answer: ops.Moved, ended: Ended, fields: dict[str, object]
    ) -> None:
        fields |= {"state": answer.state.value, "error": op.type}
        named = (ended.job.id, ended.handler)
        tries = (ended.job.attempts, ended.job.max_attempts)
        if answer.state is State.DEAD:
            has_frames = "\n" in op.traceback.strip()  # or it only repeats the message
            error = ended.error or (TaskTraceback(op.traceback) if has_frames else None)
            log.error(
                "job %s (%s) is dead after attempt %d of %d: %s",
                *(*named, *tries, op.message),
                exc_info=error,
                extra=fields,
            )
        elif answer.state is State.CANCELLED:
            log.info("job %s (%s) is cancelled: %s", *named, op.message, extra=fields)
        else:
            wait_ms = max(0, answer.run_at - self._clock.now_ms())
            log.warning(
                "job %s (%s) failed in attempt %d of %d, and is tried again in %.3g s: %s",
                *(*named, *tries, wait_ms / 1000, op.message),
                extra={**fields, "retry_in_ms": wait_ms},
            )
