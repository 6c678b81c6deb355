"""One attempt at a Django task, with the signals that Django's own backends send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from msgspec.structs import replace

from tenure.django.backend import TenureBackend
from tenure.django.call import check_arguments
from tenure.django.framework import (
    TASK_REFRESH_ATTRS,
    TaskContext,
    normalize_json,
    task_finished,
    task_started,
)
from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Op
from tenure.model.states import Failed, decide
from tenure.worker.current_job import current_job
from tenure.worker.outcome import Outcome, after_error, after_return, hopeless

# Signals are sent with send_robust: if a receiver raises, Django logs it. The task is done, and
# must not run again because of that.


class Attempt:
    """Runs a claimed job as a Django task."""

    def __init__(self, backend: TenureBackend, job: Job) -> None:
        self._backend = backend
        self._job = job
        try:
            self._result = backend.result_of(job)
        except msgspec.DecodeError as error:
            raise hopeless(error) from None
        self._signal = {"sender": type(backend), "task_result": self._result}

    def run(self) -> Any:
        """Run a plain function, in a thread. What it returns or raises goes to the worker."""
        close_old_connections()
        try:
            task_started.send_robust(**self._signal)
            try:
                args, kwargs = self._arguments()
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
        """Run a coroutine function, in the event loop."""
        value, error = await self._acall()
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # break the reference cycle with this frame

    async def _acall(self) -> tuple[Any, BaseException | None]:
        """Return the coroutine's return value, or the error it raised. The error is not raised
        here, because sync_to_async adds itself to the traceback of an active exception."""
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
        """Send a signal in a thread: receivers may use the ORM, which an event loop must not."""

        def tell() -> None:
            close_old_connections()
            signal.send_robust(**self._signal)
            close_old_connections()

        await sync_to_async(tell)()

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args = list(self._result.args)
        try:
            check_arguments(self._result.task, args, self._result.kwargs)
        except TypeError as error:
            raise hopeless(error) from None
        if self._result.task.takes_context:
            args.insert(0, TaskContext(task_result=self._result))
        return args, self._result.kwargs

    def _returned(self, value: Any) -> Any:
        if isinstance(value, Outcome):
            raise value
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise hopeless(error) from None
        limit = self._backend.queue.settings.payload_limit
        run = current_job()
        self._note(after_return(self._job, value, run.reason, limit, suspension=run.suspension))
        return value

    def _raised(self, error: BaseException) -> bool:
        """Note the error; returns whether the task is finished, with no further attempts."""
        run = current_job()
        self._note(after_error(self._job, error, run.reason, suspension=run.suspension))
        finished: bool = self._result.is_finished
        return finished

    def _note(self, op: Op | None) -> None:
        """Update the TaskResult with the outcome that the worker is about to submit."""
        now = self._backend.queue.clock.now_ms()
        job = self._job
        if isinstance(op, ops.Ack):
            job = replace(job, state=State.DONE, raw_result=op.result)
        elif isinstance(op, ops.Fail):
            event = Failed(op.message, op.type, op.traceback, op.retry_in_ms, op.fatal, op.cancel)
            change = decide(job, event, now)
            if change is not None:
                job = replace(job, state=change.state, worker=change.worker, errors=change.errors)
        elif isinstance(op, ops.Release | Suspend):
            job = replace(job, state=State.PENDING, attempts=job.attempts - 1, worker="")
        if job.state in FINAL:
            job = replace(job, finished_at=now)
        new = self._backend.result_of(job)
        for name in TASK_REFRESH_ATTRS:
            object.__setattr__(self._result, name, getattr(new, name))


class ThreadOfItsOwn(ThreadSensitiveContext):
    """Gives sync_to_async, and so the ORM, a separate thread while it is active, as in a Django
    request. The thread is started on first use."""

    async def __aexit__(self, *raised: Any) -> None:
        """Close the thread's database connections."""
        if self in SyncToAsync.context_to_thread_executor:
            # In a new task, which does not see an active exception: see _acall.
            await asyncio.create_task(_close_connections())
        await super().__aexit__(*raised)


async def _close_connections() -> None:
    await sync_to_async(connections.close_all)()


def _drop_connections() -> None:
    """Drop the connections of a thread whose task was interrupted, perhaps while it started or
    ended a transaction: Django's view of them may be wrong, so the next task gets new ones."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):
            connection.close()
        del connections[connection.alias]
