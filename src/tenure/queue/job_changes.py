"""Calls that change jobs by their ids, or all that match a filter, and the history of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tenure.errors import Conflict, Duplicate, InvalidInput, JobNotFound
from tenure.model import ops, queries, states
from tenure.model.fields import moment_ms, span_ms, validated
from tenure.model.history import JobMove, history_of
from tenure.model.job import FINAL, Job, State, encode_json, new_ids
from tenure.model.ops import Op, good
from tenure.model.queries import Filter
from tenure.queue.arguments import Seconds, filter_of, ids_of, some_jobs, states_of
from tenure.queue.sync_async import Caller, Steps, both

PAGE = 1000  # jobs changed per operation when a filter selects them


class JobChanges(Caller):
    """A part of Calls."""

    def _cancel(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
    ) -> Steps[int]:
        """Cancel one job, several, or all that match, and return how many were cancelled. Finished
        jobs are left alone. Raises JobNotFound if a single job does not exist."""
        where = filter_of(
            queue, tuple(sorted(states.sources(states.Cancelled))), tenant, group, kind
        )
        some_jobs("cancel", jobs, queue, tenant, group, kind)
        return (yield from self._change(jobs, where, ops.Cancel))

    def _replay(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        state: str = State.DEAD,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        error: str | None = None,
    ) -> Steps[int]:
        """Run dead or cancelled jobs again from attempt 0: one, several, or all that match.
        error: the group of their last error, as in `errors.list()`. Returns how many."""
        where = filter_of(queue, states_of(state), tenant, group, kind, error)
        if jobs is not None:
            some_jobs("replay", jobs, queue, tenant, group, kind, error)
        elif not set(where.states) <= states.sources(states.Replayed):
            raise InvalidInput("state", "only dead and cancelled jobs can be replayed")
        return (yield from self._change(jobs, where, ops.Replay))

    def _delete(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        state: str | Sequence[str] | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        error: str | None = None,
    ) -> Steps[int]:
        """Delete jobs permanently: one, several, or all that match. error: the group of their last
        error, as in `errors.list()`. Returns how many."""
        where = filter_of(queue, states_of(state), tenant, group, kind, error)
        filters = (queue, tenant, group, kind, error)
        some_jobs("delete", jobs, *filters, *([] if jobs is not None else where.states))
        return (yield from self._change(jobs, where, _deleting(where.states)))

    def _purge(
        self,
        older_than: Seconds,
        *,
        queue: str | None = None,
        state: str | Sequence[str] = (State.DONE, State.CANCELLED),
    ) -> Steps[int]:
        """Delete jobs that finished more than `older_than` seconds ago, and return how many. Dead
        jobs are kept unless `state` names them."""
        before = self._store.clock.now_ms() - span_ms("older_than", older_than)
        ended = states_of(state)
        for one in ended:
            if one not in FINAL:
                raise InvalidInput("state", f"{one.value} jobs have not ended")
        removed = 0
        for one in ended:
            where = replace(filter_of(queue, (one,)), finished_before=before)
            removed += yield from self._change(None, where, _deleting((one,)))
        return removed

    def _change(
        self,
        jobs: str | Job | Sequence[str | Job] | None,
        where: Filter,
        op: Callable[[tuple[str, ...]], Op],
    ) -> Steps[int]:
        """Change jobs by id, or those that a filter matches, page by page: each page is a commit of
        its own."""
        if isinstance(jobs, str | Job):
            (one,) = ids = ids_of([jobs], "jobs")
            (answer,) = yield [op(ids)]
            changed = good(answer, ops.Changed)
            if changed.missing:
                raise JobNotFound(one)
            if changed.refused:
                job = good((yield queries.GetJob(one)), Job)
                raise Duplicate("unique_key", job.unique_key or "", changed.refused[one])
            return changed.count
        if jobs is not None:
            changes = 0
            ids = ids_of(jobs, "jobs")
            for at in range(0, max(1, len(ids)), PAGE):
                (answer,) = yield [op(ids[at : at + PAGE])]
                changes += good(answer, ops.Changed).count
            return changes
        count, cursor = 0, None
        while True:
            found = good((yield queries.FindIds(where, PAGE, cursor)), queries.Ids)
            if found.ids:
                (answer,) = yield [op(tuple(found.ids))]
                count += good(answer, ops.Changed).count
            cursor = found.cursor
            if cursor is None:
                return count

    cancel, acancel = both(_cancel)
    replay, areplay = both(_replay)
    delete, adelete = both(_delete)
    purge, apurge = both(_purge)

    # Single jobs --------------------------------------------------------------------------------

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


def _deleting(only: tuple[State, ...]) -> Callable[[tuple[str, ...]], Op]:
    return lambda ids: ops.Delete(ids, only)
