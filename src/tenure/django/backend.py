"""The backend for Django's Tasks framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from django.core import checks
from django.db import connections

from tenure.django.call import as_job, call_of
from tenure.django.database import SharedDatabase
from tenure.django.finding import check_can_be_found, find_task
from tenure.django.framework import (
    BaseTaskBackend,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from tenure.django.options import BackendOptions
from tenure.django.result import result_of
from tenure.django.stores import STORES
from tenure.engines.sqlite.file import path_of
from tenure.errors import InvalidInput, JobNotFound
from tenure.model.job import Job
from tenure.queue import Queue


class TenureBackend(BaseTaskBackend):
    """Stores calls of Django tasks as jobs in a Tenure store."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._options = BackendOptions(alias, self.options)

    @cached_property
    def _database(self) -> SharedDatabase | None:
        """The Django database that holds the jobs, if any. Evaluated lazily, because backends are
        created while Django is still loading."""
        if self._options.database is None:
            return None
        return SharedDatabase(self._options.database, self._options.wrong)

    @property
    def url(self) -> str | None:
        """The URL of the store; None means TENURE_URL."""
        return self._options.url if self._database is None else self._database.url

    @property
    def queue(self) -> Queue:
        """The queue handle of the backend."""
        return STORES.open(self.url)

    def make_tables_in(self, database: str) -> None:
        """Create the store's tables if the backend shares this Django database."""
        shared = self._database
        if shared is not None and shared.alias == database and not shared.in_memory:
            STORES.open(shared.url)  # creates them

    # Enqueueing ---------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a call. Returns once it is durable; with a shared database, the call is part of
        the current Django transaction, if any."""
        arguments = self._arguments(task, args, kwargs)
        connection = None if self._database is None else self._database.transaction()
        if connection is not None and self._database is not None and not STORES.is_open(self.url):
            self._database.check_tables(connection)
        job = self.queue.enqueue(**arguments, connection=connection)
        result = result_of(job, call_of(job), task, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Awaitable form of `enqueue`."""
        if self._options.database is not None:
            # Django transactions belong to the thread that sync_to_async uses.
            return await super().aenqueue(task, args, kwargs)
        arguments = self._arguments(task, args, kwargs)
        queue = await STORES.aopen(self.url)
        job = await queue.aenqueue(**arguments)
        result = result_of(job, call_of(job), task, self.alias)
        await task_enqueued.asend(type(self), task_result=result)
        return result

    def _arguments(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        self.validate_task(task)
        check_can_be_found(task)
        return {**as_job(task, args, kwargs), **self._options.of_each_job}

    # Results ------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """Return the TaskResult of a call. Raises TaskResultDoesNotExist."""
        try:
            job = self.queue.get(result_id)
        except (JobNotFound, InvalidInput):
            raise TaskResultDoesNotExist(result_id) from None
        return self._found(job)

    async def aget_result(self, result_id: str) -> Any:
        """Awaitable form of `get_result`."""
        queue = await STORES.aopen(self.url)
        try:
            job = await queue.aget(result_id)
        except (JobNotFound, InvalidInput):
            raise TaskResultDoesNotExist(result_id) from None
        return self._found(job)

    def _found(self, job: Job) -> Any:
        try:
            return self.result_of(job)
        except (msgspec.DecodeError, ImportError) as error:
            raise TaskResultDoesNotExist(f"{job.id} is not a Django task: {error}") from error

    def result_of(self, job: Job) -> Any:
        """Convert a job to a TaskResult. Raises msgspec.DecodeError or ImportError if it is not a
        Django task."""
        call = call_of(job)
        alias = call.backend if call.backend in task_backends else self.alias
        task = find_task(job.kind).using(
            priority=-job.priority, queue_name=job.queue, run_after=call.run_after, backend=alias
        )
        return result_of(job, call, task, alias)

    # Checking -----------------------------------------------------------------------------------

    def check(self, **_: Any) -> list[Any]:
        """System checks for `manage.py check`."""
        shared = self._database_in_the_way()
        if shared is None:
            return []
        return [
            checks.Warning(
                f"TASKS[{self.alias!r}] keeps its jobs in the file of DATABASES[{shared!r}].",
                hint=(
                    "A task enqueued inside transaction.atomic() would wait for that transaction, "
                    f"and fail. Set OPTIONS to {{'database': {shared!r}}} instead of 'url', which "
                    "makes the job part of the transaction. Or use another file."
                ),
                id="tenure.W001",
            )
        ]

    def _database_in_the_way(self) -> str | None:
        """The Django database that uses the same file as the store, if that is not intended."""
        if self.url is None or not self.url.startswith("sqlite:") or self._database is not None:
            return None
        path = path_of(self.url)
        for alias in connections:
            if connections[alias].vendor == "sqlite":
                name = str(connections[alias].settings_dict["NAME"])
                if Path(name).absolute() == path:
                    return str(alias)
        return None
