"""The app: where tasks and schedules are declared, and what runs them is made."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import InvalidInput
from tenure.model.cron import CatchUp, next_tick
from tenure.model.fields import check_name
from tenure.model.job import NewJob, new_ids
from tenure.queue import Queue, connect
from tenure.queue.arguments import listed
from tenure.settings import Settings
from tenure.tasks.task import Handle, Options, Task
from tenure.worker.handler import Worker
from tenure.worker.post import Post, post_of
from tenure.worker.runner import Runner

P = ParamSpec("P")
R = TypeVar("R")


class Cron(msgspec.Struct, frozen=True):
    """A schedule as it was declared."""

    expression: str
    tz: str
    catch_up: CatchUp
    job: NewJob


class Sandbox(Protocol):
    """Where an app works while it is tested; see testing.py."""

    eager: bool

    @property
    def queue(self) -> Queue: ...
    def drain(self) -> int: ...
    async def adrain(self) -> int: ...


class Declare(Protocol):
    """A decorator that makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Tenure:
    """An app: its tasks, its schedules, and the store that they are kept in.

    The store is opened when it is first used, so that an app can be made at import time.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        default_queue: str = "default",
        include: Sequence[str] = (),
    ) -> None:
        """include: modules that declare tasks, imported before jobs are run."""
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.crons: dict[str, Cron] = {}
        self.workers: list[Worker] = []
        self.default_queue = check_name("default_queue", default_queue)
        self._include = listed("include", include)
        self._settings: dict[str, Any] = {"url": url, "settings": settings, "clock": clock}
        self._queue: Queue | None = None
        self._opening = threading.Lock()
        self.sandbox: Sandbox | None = None

    def __repr__(self) -> str:
        return f"<tenure.Tenure of {len(self.tasks)} tasks>"

    @property
    def queue(self) -> Queue:
        """The store."""
        if self.sandbox is not None:
            return self.sandbox.queue
        with self._opening:
            if self._queue is None:
                self._queue = connect(**self._settings)
            return self._queue

    def move_to(self, url: str | None, **options: Any) -> None:
        """Keep the jobs there instead, None: where they were; with other options of connect()."""
        self.close()
        self._settings |= options if url is None else {"url": url, **options}

    def close(self) -> None:
        """Close the store, if it was opened; it is opened again when it is next used."""
        with self._opening:
            queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    async def aclose(self) -> None:
        """The same for a task of asyncio."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Tenure:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Declaring ----------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        unique: bool | Callable[..., str] = False,
        process: bool = False,
        **options: Unpack[Options],
    ) -> Declare: ...
    def task(  # type: ignore[misc]  # mypy does not see that Unpack takes what Unpack takes
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        unique: bool | Callable[..., str] = False,
        process: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """Make a task of a function. `async def` runs in the event loop, `def` in a thread, with
        process=True in a process of its own.

        unique: of calls with equal arguments, or with the same value of a function of them, one
        is unfinished at a time; a further call answers with that one. The other options are those
        of Queue.enqueue, and can be changed for one call with `using()`.
        """
        options.setdefault("queue", self.default_queue)

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            if isinstance(function, Task):
                raise InvalidInput("task", f"{function.name} is a task already")
            own = check_name("name", name or str(getattr(function, "__name__", "")))
            task: Task[Any, Any] = Task(self, function, own, unique=unique, process=process)
            task = task.using(**options)
            task.check_options()
            other = self.tasks.get(own)
            if other is not None and _where(other.function) != _where(function):
                raise InvalidInput(
                    "name",
                    f"{_where(other.function)} and {_where(function)} are both named {own!r}: "
                    "give one of them a name=",
                )
            self.tasks[own] = task
            return task

        return declare if function is None else declare(function)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
        name: str | None = None,
        **options: Unpack[Options],
    ) -> Declare:
        """Run a function, or a task, at the times of a cron expression.

        Each time is fired once, however many schedulers run. catch_up: of times that were missed
        because none ran, fire the "last", "all" or "none".
        """
        next_tick(expression, tz, 0)  # a wrong one is an error here
        if catch_up not in ("last", "all", "none"):
            raise InvalidInput("catch_up", f"{catch_up!r} is not one of 'last', 'all', 'none'")

        def declare(function: Any) -> Any:
            task = function if isinstance(function, Task) else self.task(**options)(function)
            fired = task.using(**options)
            fired.check_options()
            job = fired.job()  # it must be callable without arguments
            own = check_name("name", name or task.name)
            if own in self.crons and self.crons[own].job.kind != task.name:
                raise InvalidInput("name", f"two schedules are named {own!r}: give one a name=")
            self.crons[own] = Cron(expression, tz, catch_up, job)
            return task

        return declare

    def register(self, worker: Worker) -> None:
        """Have a Worker work on its queue, in every runner of this app."""
        if any(worker.queue == other.queue for other in self.workers):
            raise InvalidInput("queue", f"{worker.queue!r} has another Worker already")
        worker.handler()  # one that cannot work is an error here
        self.workers.append(worker)

    def put_schedules(self) -> None:
        """Write the schedules that were declared with @cron into the store."""
        for name, cron in self.crons.items():
            self.queue.put_schedule(
                name, cron.expression, cron.job, tz=cron.tz, catch_up=cron.catch_up
            )

    def load(self) -> None:
        """Import the modules that declare the tasks."""
        for module in self._include:
            importlib.import_module(module)

    # Several jobs at once -----------------------------------------------------------------------

    def chain(self, *jobs: NewJob) -> list[Handle[Any]]:
        """Enqueue jobs of which each waits for the one before it, all or none.

        A job reads what came before it with `current_job().results()`.
        """
        return self._enqueue_all(self._chained(jobs))

    async def achain(self, *jobs: NewJob) -> list[Handle[Any]]:
        """The same for a task of asyncio."""
        return await self._aenqueue_all(self._chained(jobs))

    def group(self, jobs: Iterable[NewJob], then: NewJob | None = None) -> list[Handle[Any]]:
        """Enqueue jobs that run side by side, and one that runs when all are done, all or none. If
        one of them fails, `if_parent_fails` of `then` says what becomes of it. Answers with the
        handles of the jobs, and last that of `then`."""
        return self._enqueue_all(self._grouped(jobs, then))

    async def agroup(self, jobs: Iterable[NewJob], then: NewJob | None = None) -> list[Handle[Any]]:
        """The same for a task of asyncio."""
        return await self._aenqueue_all(self._grouped(jobs, then))

    def _chained(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        linked = self._with_ids(jobs)
        for before, job in itertools.pairwise(linked):
            job.after = [*job.after, str(before.id)]
        return linked

    def _grouped(self, jobs: Iterable[NewJob], then: NewJob | None) -> list[NewJob]:
        members = self._with_ids(listed("jobs", jobs))
        if then is not None:
            (last,) = self._with_ids([then])
            last.after = [*last.after, *(str(job.id) for job in members)]
            members.append(last)
        return members

    def _with_ids(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        for n, job in enumerate(jobs):
            if not isinstance(job, NewJob):
                raise InvalidInput(
                    f"jobs[{n}]", f"must be a job, as task.job(...) makes it, not {job!r:.60}"
                )
            if job.kind not in self.tasks:
                raise InvalidInput(f"jobs[{n}]", f"{job.kind!r} is not a task of this app")
        fresh = new_ids(self.queue.clock.now_ms(), len(jobs))
        return [replace(job, id=job.id or made) for job, made in zip(jobs, fresh, strict=True)]

    def _enqueue_all(self, jobs: list[NewJob]) -> list[Handle[Any]]:
        ids = self.queue.enqueue_many(jobs)
        self.enqueued()
        return self._handles(jobs, ids)

    async def _aenqueue_all(self, jobs: list[NewJob]) -> list[Handle[Any]]:
        ids = await self.queue.aenqueue_many(jobs)
        await self.aenqueued()
        return self._handles(jobs, ids)

    def _handles(self, jobs: list[NewJob], ids: list[str]) -> list[Handle[Any]]:
        return [Handle(self.tasks[job.kind], id) for job, id in zip(jobs, ids, strict=True)]

    # Running ------------------------------------------------------------------------------------

    def runner(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        **options: Any,
    ) -> Runner:
        """What works on the jobs of the tasks. queues: only these, in this order. concurrency: how
        many run at once. For the other options see Runner."""
        runner = Runner(self.queue, self.posts(queues, concurrency), **options)
        runner.before_start = self.put_schedules
        return runner

    def posts(self, queues: Sequence[str] | None = None, concurrency: int = 10) -> list[Post]:
        """The queues of the tasks, and those of the Workers, with what handles their jobs."""
        self.load()
        workers = {worker.queue: worker for worker in self.workers}
        known = [str(task.options.get("queue")) for task in self.tasks.values()]
        known += [cron.job.queue for cron in self.crons.values()]
        all_of_them = list(dict.fromkeys([*known, *workers]))
        wanted = all_of_them if queues is None else listed("queues", queues)
        tasks = [name for name in wanted if name not in workers]
        posts = [post_of(workers[name]) for name in wanted if name in workers]
        if tasks:
            handlers = {name: task.handler for name, task in self.tasks.items()}
            posts.append(Post(tasks, concurrency, handlers, in_order=queues is not None))
        return posts

    @asynccontextmanager
    async def lifespan(self, asgi_app: object = None, **options: Any) -> AsyncIterator[None]:
        """Work on the jobs while a web server runs: `FastAPI(lifespan=app.lifespan)`; then close
        the store. The options are those of `runner()`."""
        runner = self.runner(**options)
        await runner.start()
        try:
            yield
        finally:
            await runner.stop()
            await self.aclose()

    # Testing ------------------------------------------------------------------------------------

    def enqueued(self) -> None:
        """Something was enqueued."""
        if self.sandbox is not None and self.sandbox.eager:
            self.sandbox.drain()

    async def aenqueued(self) -> None:
        """The same for a task of asyncio."""
        if self.sandbox is not None and self.sandbox.eager:
            await self.sandbox.adrain()

    def settle(self) -> bool:
        """In a sandbox, run what is ready, since nobody else will; False outside of one."""
        if self.sandbox is not None:
            self.sandbox.drain()
        return self.sandbox is not None

    async def asettle(self) -> bool:
        """The same for a task of asyncio."""
        if self.sandbox is not None:
            await self.sandbox.adrain()
        return self.sandbox is not None


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
