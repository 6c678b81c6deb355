"""Runs actions on many jobs in the background, a bounded step at a time.

A run is a record in the store, so that every process of a service can show and stop it. If the
process that runs it ends, the run ends, too: it is not continued, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from tenure.errors import Busy, Forbidden, NotFound, TenureError
from tenure.features.bulk.actions import Action, op_of
from tenure.features.bulk.data import (
    KEPT_MS,
    MOST_REFUSED,
    SILENT_MS,
    STEP,
    BulkRun,
    Refusal,
    RunState,
)
from tenure.model import ops, queries
from tenure.model.job import new_ids
from tenure.model.ops import good
from tenure.model.queries import Filter
from tenure.model.record_queries import ListRecords
from tenure.model.records import NewRecord, PutRecords, Record
from tenure.queue import Calls, Queue, store_of
from tenure.server.auth import Token, Tokens
from tenure.server.service import Part

log = logging.getLogger("tenure.service")

PAUSE = 0.5  # of the time that a step took, so that others go first
MOST_RUNS = 200  # that are listed
MOST_AT_ONCE = 10  # of one token in one process
_STOP = ".stop"
_encode = msgspec.json.encode


class BulkRuns(Part):
    """The runs of a service."""

    def __init__(self, queue: Queue, tokens: Tokens) -> None:
        super().__init__(queue, tokens)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Counter[str] = Counter()  # by the hash of the token

    async def start(
        self, queue: Calls, token: Token, action: Action, where: Filter, note: ops.Note
    ) -> BulkRun:
        """Begin a run; raises Busy. queue: limited to what the token that asks for it may do, at
        every step. The run fails when that token is revoked or changed."""
        if self._running[token.hash] >= MOST_AT_ONCE:
            raise Busy(f"{MOST_AT_ONCE} bulk runs of this token are running; wait for one to end")
        self._running[token.hash] += 1
        try:
            return await self._start(queue, token, action, where, note)
        except BaseException:
            self._running[token.hash] -= 1
            raise

    async def _start(
        self, queue: Calls, token: Token, action: Action, where: Filter, note: ops.Note
    ) -> BulkRun:
        now = self._queue.clock.now_ms()
        (run_id,) = new_ids(now, 1)
        run = BulkRun(run_id, action, note.filter or {}, note.by, note.reason, now, now)
        await self._put(token.hash, run)
        task = asyncio.create_task(self._run(queue, token, run, where, note))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._left(task, token.hash))
        return run

    def _left(self, task: asyncio.Task[None], owner: str) -> None:
        self._tasks.discard(task)
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    async def runs(self, owner: str | None = None) -> list[BulkRun]:
        """The last runs, newest first; only those of a token, if it is given."""
        records = await self._records("", "\U0010ffff", MOST_RUNS)
        found = [self._shown(one) for one in records if not one.key.endswith(_STOP)]
        return [run for whose, run in found if owner in (None, whose)]

    async def get(self, run_id: str, owner: str | None = None) -> BulkRun:
        """A run by its id; raises NotFound."""
        is_run = not run_id.endswith(_STOP)
        records = await self._records(run_id, run_id, 1) if is_run else []
        found = [run for whose, run in map(self._shown, records) if owner in (None, whose)]
        if not found:
            raise NotFound(f"there is no bulk run {run_id!r:.80}")
        return found[0]

    async def stop(self, run_id: str, owner: str | None = None) -> BulkRun:
        """Ask a run to stop after its step. Returns it; raises NotFound."""
        run = await self.get(run_id, owner)
        if run.state == "running":
            stop = NewRecord("bulk", run_id + _STOP, b"{}", KEPT_MS)
            await store_of(self._queue).ado([PutRecords((stop,))])
        return run

    def close(self) -> None:
        """Cancel the runs of this process."""
        for task in self._tasks:
            task.cancel()

    async def _run(
        self, queue: Calls, token: Token, run: BulkRun, where: Filter, note: ops.Note
    ) -> None:
        latest, owner = run, token.hash
        try:
            async for latest in self._steps(queue, token, run, where, note):
                await self._put(owner, latest)
        except TenureError as error:
            await self._put(owner, self._ended(latest, "failed", error.message))
        except Exception as error:
            log.exception("the bulk run %s failed", run.id)
            await self._put(owner, self._ended(latest, "failed", type(error).__name__))

    def _ended(self, run: BulkRun, state: RunState, error: str | None = None) -> BulkRun:
        return replace(run, state=state, error=error, ended_at=self._queue.clock.now_ms())

    async def _steps(
        self, queue: Calls, token: Token, run: BulkRun, where: Filter, note: ops.Note
    ) -> AsyncIterator[BulkRun]:
        """Carry out a run. Yields its progress after each step; raises Forbidden when its
        token is no longer valid."""
        loop, store, cursor = asyncio.get_running_loop(), store_of(queue), None
        while True:
            begun = loop.time()
            if not self._tokens.is_current(token):
                raise Forbidden("the token that started it was revoked or changed")
            found = good(await store.ado(queries.FindIds(where, STEP, cursor)), queries.Ids)
            if found.ids:
                op = op_of(run.action, tuple(found.ids), where, note)
                (answer,) = await store.ado([op])
                run = _counted(run, found.ids, good(answer, ops.Changed))
            cursor = found.cursor
            if cursor is None:
                yield self._ended(run, "done")
                return
            run = replace(run, beat_at=self._queue.clock.now_ms())
            if await self._records(run.id + _STOP, run.id + _STOP, 1):
                yield self._ended(run, "stopped")
                return
            yield run
            await asyncio.sleep((loop.time() - begun) * PAUSE)

    async def _put(self, owner: str, run: BulkRun) -> None:
        value = _encode({"owner": owner, "run": run})
        await store_of(self._queue).ado([PutRecords((NewRecord("bulk", run.id, value, KEPT_MS),))])

    async def _records(self, first: str, last: str, limit: int) -> list[Record]:
        query = ListRecords("bulk", first, last, limit, newest_first=True)
        return good(await store_of(self._queue).ado(query), list)

    def _shown(self, record: Record) -> tuple[str, BulkRun]:
        stored = _decode_stored(record.value)
        run = stored.run
        silent_ms = self._queue.clock.now_ms() - run.beat_at
        if run.state == "running" and silent_ms > SILENT_MS:
            error = "interrupted: the service that ran it has stopped"
            run = replace(run, state="failed", error=error, ended_at=run.beat_at)
        return stored.owner, run


class _Stored(msgspec.Struct):
    owner: str
    run: BulkRun


_decode_stored = msgspec.json.Decoder(_Stored).decode


def _counted(run: BulkRun, ids: list[str], changed: ops.Changed) -> BulkRun:
    refused = [Refusal(id, f"its unique key is held by {by}") for id, by in changed.refused.items()]
    return replace(
        run,
        looked_at=run.looked_at + len(ids),
        changed=run.changed + changed.count,
        refused=[*run.refused, *refused][:MOST_REFUSED],
        refused_count=run.refused_count + len(refused),
    )
