"""Calls that change single jobs, or return their history."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from tenure.errors import Conflict, JobNotFound
from tenure.model import ops, queries
from tenure.model.fields import moment_ms, span_ms, validated
from tenure.model.history import JobMove, history_of
from tenure.model.job import Job, encode_json, new_ids
from tenure.queue.arguments import Seconds, good
from tenure.queue.sync_async import Caller, Steps, both


class Editing(Caller):
    """A part of Calls."""

    def _update(
        self,
        id: str,
        *,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        payload: Any = UNSET,
    ) -> Steps[Job]:
        """Change a job that was not claimed, and return it: its priority, when it may run (in
        `delay` seconds from now, or at `run_at`), its payload. Raises JobNotFound, or Conflict if
        the job is running or has finished."""
        op = ops.Update(
            (id,),
            priority,
            None if run_at is None else moment_ms("run_at", run_at),
            None if delay is None else span_ms("delay", delay),
            self._payload(payload),
        )
        (answer,) = yield [validated(op)]
        changed = good(answer, ops.Changed)
        if changed.missing:
            raise JobNotFound(id)
        job = good((yield queries.GetJob(id)), Job)
        if not changed.count:
            raise Conflict(f"the job {id!r} is {job.state.value}: only jobs that wait are changed")
        return job

    def _replay_edited(
        self,
        id: str,
        *,
        payload: Any = UNSET,
        priority: int | None = None,
        delay: Seconds = 0,
    ) -> Steps[str]:
        """Enqueue a finished job again as a new one, with another payload, priority or delay, and
        return the new id. The new job's `replay_of` is the id of the old one, which is not changed.
        Raises Conflict if the job has not finished, and Duplicate if its unique key is taken."""
        (new_id,) = new_ids(self._store.clock.now_ms(), 1)
        delay_ms = span_ms("delay", delay)
        op = ops.ReplayEdited(id, new_id, priority, delay_ms, self._payload(payload))
        (answer,) = yield [validated(op)]
        return good(answer, ops.Enqueued).ids[0]

    def _payload(self, payload: Any) -> msgspec.Raw | msgspec.UnsetType:
        if isinstance(payload, msgspec.UnsetType):
            return payload
        return encode_json("payload", payload, self._store.settings.payload_limit)

    def _history(self, id: str) -> Steps[list[JobMove]]:
        """Return the last 20 moves of a job, oldest first: when it was created, claimed and ended,
        its failures, and what operators did to it. Only the last claim is known. Raises
        JobNotFound."""
        job = good((yield validated(queries.GetJob(id))), Job)
        past = good((yield queries.ListPast(id)), list)
        return history_of(job, past)

    update, aupdate = both(_update)
    replay_edited, areplay_edited = both(_replay_edited)
    history, ahistory = both(_history)
