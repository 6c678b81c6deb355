"""What a runner works on when it runs Django tasks: any kind of job that is one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NoReturn

from tenure.django.attempt import Attempt
from tenure.django.backend import TenureBackend
from tenure.django.finding import find_task_from_loop
from tenure.model.job import Job
from tenure.worker.handler import Handler
from tenure.worker.post import Post


class TaskPost(Post):
    """Queues of a backend. Tasks are imported when a job names them."""

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

    def handler_of(self, job: Job) -> Handler:
        """How to run the task that the job is of; a job of none is run to fail, and say why."""
        try:
            task = find_task_from_loop(job.kind)
        except (Exception, SystemExit) as error:
            return Handler(partial(_fail, error), "thread", job.kind)
        if iscoroutinefunction(task.func):
            return Handler(self._arun, "loop", job.kind)
        return Handler(self._run, "thread", job.kind)

    def _run(self, job: Job) -> Any:
        return Attempt(self._backend, job).run()

    async def _arun(self, job: Job) -> Any:
        return await Attempt(self._backend, job).arun()


def _fail(error: BaseException, job: Job) -> NoReturn:
    raise error
