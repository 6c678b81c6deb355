"""One attempt at a Django task, with the signals that Django's own backends send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from msgspec.structs import replace

from tenure.django.backend import TenureBackend
from tenure.django.framework import (
    TASK_REFRESH_ATTRS,
    TaskContext,
    normalize_json,
    task_finished,
    task_started,
)
from tenure.model import ops
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Op
from tenure.model.states import Failed, decide
from tenure.worker.current_job import current_job
from tenure.worker.outcome import Outcome, after_error, after_return

# A receiver that raises is logged by Django and harms nobody: the work of a task does not become
# undone by it, and shall not be done again.


class Attempt:
    """A job that a worker has claimed, run as the Django task that it is."""

    def __init__(self, backend: TenureBackend, job: Job) -> None:
        self._backend = backend
        self._job = job
        self._result = backend.result_of(job)
        self._signal = {"sender": type(backend), "task_result": self._result}

    def run(self) -> Any:
        """Of a plain function, in a thread; what it returns and raises is the runner's."""
        close_old_connections()
        try:
            task_started.send_robust(**self._signal)
            args, kwargs = self._arguments()
            try:
                value = self._returned(self._result.task.func(*args, **kwargs))
            except BaseException as error:
                if self._raised(error):
                    task_finished.send_robust(**self._signal)
                raise
            if self._result.is_finished:
                task_finished.send_robust(**self._signal)
            return value
        finally:
            if current_job().reason is None:
                close_old_connections()
            else:
                _drop_connections()

    async def arun(self) -> Any:
        """The same of a coroutine function, in the loop."""
        value, error = await self._acall()
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # it knows this frame

    async def _acall(self) -> tuple[Any, BaseException | None]:
        """What the coroutine returned, or raised. It is not raised here: sync_to_async writes
        itself into the traceback of an exception that is under way."""
        value: Any = None
        try:
            await self._atell(task_started)
            args, kwargs = self._arguments()
            async with ThreadOfItsOwn():
                value = await self._result.task.func(*args, **kwargs)
            value = self._returned(value)
        except BaseException as error:
            traceback = error.__traceback__
            if self._raised(error):
                await self._atell(task_finished)
            return None, error.with_traceback(traceback)
        if self._result.is_finished:
            await self._atell(task_finished)
        return value, None

    async def _atell(self, signal: Any) -> None:
        """Receivers may use the ORM, which may not be used in the loop."""

        def tell() -> None:
            close_old_connections()
            signal.send_robust(**self._signal)
            close_old_connections()

        await sync_to_async(tell)()

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args = list(self._result.args)
        if self._result.task.takes_context:
            args.insert(0, TaskContext(task_result=self._result))
        return args, self._result.kwargs

    def _returned(self, value: Any) -> Any:
        if isinstance(value, Outcome):
            raise value
        value = normalize_json(value)
        limit = self._backend.queue.settings.payload_limit
        self._note(after_return(self._job, value, current_job().reason, limit))
        return value

    def _raised(self, error: BaseException) -> bool:
        """Whether that was the end of it: there may be further attempts."""
        self._note(after_error(self._job, error, current_job().reason))
        finished: bool = self._result.is_finished
        return finished

    def _note(self, op: Op | None) -> None:
        """Let the result say what the runner is about to tell the store."""
        now = self._backend.queue.clock.now_ms()
        job = self._job
        if isinstance(op, ops.Ack):
            job = replace(job, state=State.DONE, raw_result=op.result)
        elif isinstance(op, ops.Fail):
            event = Failed(op.message, op.type, op.traceback, op.retry_in_ms, op.fatal, op.cancel)
            change = decide(job, event, now)
            if change is not None:
                job = replace(job, state=change.state, worker=change.worker, errors=change.errors)
        elif isinstance(op, ops.Release):
            job = replace(job, state=State.PENDING, attempts=job.attempts - 1, worker="")
        if job.state in FINAL:
            job = replace(job, finished_at=now)
        new = self._backend.result_of(job)
        for name in TASK_REFRESH_ATTRS:
            object.__setattr__(self._result, name, getattr(new, name))


class ThreadOfItsOwn(ThreadSensitiveContext):
    """What is called with sync_to_async meanwhile, and so the ORM, has a thread of its own, as in
    a request of Django's. It is not there until it is used."""

    async def __aexit__(self, *raised: Any) -> None:
        """Its connections end with it."""
        if self in SyncToAsync.context_to_thread_executor:
            # In a task, which knows nothing of an exception that is under way: see _acall.
            await asyncio.create_task(_close_connections())
        await super().__aexit__(*raised)


async def _close_connections() -> None:
    await sync_to_async(connections.close_all)()


def _drop_connections() -> None:
    """Of a thread whose task was interrupted, perhaps while it began or ended a transaction: what
    Django believes of its connections may be wrong, and the next task is given new ones."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):
            connection.close()
        del connections[connection.alias]
