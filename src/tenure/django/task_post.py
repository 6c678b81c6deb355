"""The post of a worker that runs Django tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NoReturn

from tenure.django.attempt import Attempt
from tenure.django.backend import TenureBackend
from tenure.django.finding import NoSuchTask, find_task_from_loop
from tenure.model.job import Job
from tenure.worker.handler import HandlerSpec
from tenure.worker.post import Post


class TaskPost(Post):
    """Queues of a backend. A task is imported when a job names it."""

    def __init__(
        self,
        backend: TenureBackend,
        queues: Sequence[str],
        concurrency: int,
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__(queues, concurrency, {}, in_order=in_order)
        self._backend = backend

    def handler_of(self, job: Job) -> HandlerSpec | None:
        """The handler of the job's task, or None if there is no such task. If the task cannot be
        used, a handler that raises the reason."""
        try:
            task = find_task_from_loop(job.kind)
        except NoSuchTask:
            return None
        except (Exception, SystemExit) as error:
            return HandlerSpec(partial(_fail, error), "thread", job.kind)
        if iscoroutinefunction(task.func):
            return HandlerSpec(self._arun, "loop", job.kind)
        return HandlerSpec(self._run, "thread", job.kind)

    def _run(self, job: Job) -> Any:
        return Attempt(self._backend, job).run()

    async def _arun(self, job: Job) -> Any:
        return await Attempt(self._backend, job).arun()


def _fail(error: BaseException, job: Job) -> NoReturn:
    raise error
