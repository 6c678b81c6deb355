"""The app: declares tasks and schedules, and creates the workers that run them."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import itertools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import Forbidden, InvalidInput, TenureError, Unauthorized
from tenure.model.cron import CatchUp, next_tick
from tenure.model.fields import check_name
from tenure.model.job import Job, NewJob, new_ids
from tenure.model.ops import PutSchedule
from tenure.observe.logs import counted
from tenure.queue import Queue, connect, store_of
from tenure.queue.arguments import listed
from tenure.queue.queue import settings_of
from tenure.settings import Settings
from tenure.tasks.task import AsyncTask, Errors, Handle, Options, SyncTask, Task
from tenure.worker.handler import Handler
from tenure.worker.post import Post, post_of
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.worker")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Task[..., Any])


class Cron(msgspec.Struct, frozen=True):
    """A declared schedule."""

    expression: str
    tz: str
    catch_up: CatchUp
    job: NewJob


class Sandbox(Protocol):
    """What an app needs of the sandbox it is tested in; see tenure.testing."""

    eager: bool

    @property
    def queue(self) -> Queue: ...
    def drain(self) -> int: ...
    async def adrain(self) -> int: ...


class Declare(Protocol):
    """A decorator that turns a function into a task."""

    @overload
    def __call__(self, function: T, /) -> T: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class Tenure:
    """An app: its tasks, its schedules, and the store that holds their jobs.

    The store is opened on first use, so an app can be created at import time.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        default_queue: str = "default",
        include: Sequence[str] = (),
    ) -> None:
        """url, settings, clock: as for `connect()`. name: the owner of the app's schedules; apps
        that share a store need different names. Defaults to the module that creates the app.
        default_queue: the queue of tasks that name none. include: modules that declare tasks,
        imported before jobs run."""
        self.name: str = check_name("name", name or _module_of(sys._getframe(1).f_globals))
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.crons: dict[str, Cron] = {}
        self._loads: dict[str, object] = {}  # by task: the execution of its module
        self.handlers: list[Handler] = []
        self.default_queue: str = check_name("default_queue", default_queue)
        self._include = listed("include", include)
        self._settings: dict[str, Any] = {"url": url, "settings": settings, "clock": clock}
        self._queue: Queue | None = None
        self._opening = threading.Lock()
        self.sandbox: Sandbox | None = None

    def __repr__(self) -> str:
        return f"<tenure.Tenure {self.name}: {counted(len(self.tasks), 'task')}>"

    @property
    def queue(self) -> Queue:
        """The app's queue handle, opened on first use."""
        if self.sandbox is not None:
            return self.sandbox.queue
        with self._opening:
            if self._queue is None:
                self._queue = connect(**self._settings)
                _OPENED.add(self)
            return self._queue

    @property
    def url(self) -> str:
        """The URL of the app's store, whether or not it is open."""
        if self.sandbox is not None:
            return self.sandbox.queue.settings.url
        known = self._settings
        return settings_of(known["url"], known.get("token"), known["settings"]).url

    def move_to(self, url: str | None, **options: Any) -> None:
        """Use another store from now on, with these options of `connect()`; None keeps the
        current URL."""
        self.close()
        self._settings |= options if url is None else {"url": url, **options}

    def close(self) -> None:
        """Close the store if it is open. The next use opens it again."""
        with self._opening:
            queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    async def aclose(self) -> None:
        """Awaitable form of `close`."""
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
    def task(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        unique: bool | Callable[..., str] = False,
        process: bool = False,
        retry_on: Errors | None = None,
        no_retry_on: Errors = (),
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
        retry_on: Errors | None = None,
        no_retry_on: Errors = (),
        **options: Unpack[Options],
    ) -> Any:
        """Turn a function into a task. `async def` functions run in the event loop, plain ones in
        a thread, or in a separate process with process=True.

        unique: allow one unfinished job per set of arguments, or per value of a function of the
        arguments; enqueueing another call returns the existing job. retry_on: only retry after
        these exceptions. no_retry_on: do not retry after these. The other options are those of
        Queue.enqueue; `using()` overrides them for one call.
        """
        options.setdefault("queue", self.default_queue)

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            if isinstance(function, Task):
                raise InvalidInput("task", f"{function.name} is already a task")
            own = check_name("name", name or str(getattr(function, "__name__", "")))
            make = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
            task: Task[Any, Any] = make(
                self,
                function,
                own,
                unique=unique,
                process=process,
                retry_on=retry_on,
                no_retry_on=no_retry_on,
            )
            task = task.using(**options)
            task._check_options()
            self._check_is_new(own, function)
            self.tasks[own] = task
            return task

        return declare if function is None else declare(function)

    def _check_is_new(self, name: str, function: Callable[..., Any]) -> None:
        """Raise InvalidInput if another function is the task of this name."""
        other, loaded = self.tasks.get(name), _load_of(function)
        before, self._loads[name] = self._loads.get(name), loaded
        if other is None or other.function is function:
            return
        old, new = _where(other.function), _where(function)
        if old == new and "<" not in new and _code(other.function) is not _code(function):
            if loaded is None or loaded is not before:
                return  # its module was loaded again
            both = f"two tasks of {function.__module__} are named {name!r}"
        else:
            both = f"{old} and {new} are both named {name!r}"
        raise InvalidInput("name", f"{both}: give one of them a name=")

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
        name: str | None = None,
        **options: Unpack[Options],
    ) -> Declare:
        """Run a function, or a task, at the times of a cron expression: minute, hour, day, month,
        weekday. An expression of six fields begins with seconds.

        Each time fires once, no matter how many schedulers run. catch_up: which times to fire that
        were missed while no scheduler ran: the "last", "all" or "none".
        """
        next_tick(expression, tz, 0)  # raises if the expression is invalid
        if catch_up not in ("last", "all", "none"):
            raise InvalidInput("catch_up", f"{catch_up!r} is not one of 'last', 'all', 'none'")

        def declare(function: Any) -> Any:
            task = function if isinstance(function, Task) else self.task(**options)(function)
            fired = task.using(**options)
            fired._check_options()
            job = fired.job()  # raises if the task needs arguments
            own = check_name("name", name or task.name)
            if own in self.crons and self.crons[own].job.kind != task.name:
                raise InvalidInput("name", f"two schedules are named {own!r}: give one a name=")
            self.crons[own] = Cron(expression, tz, catch_up, job)
            return task

        return declare

    def register(self, handler: Handler) -> None:
        """Let a Handler handle its queue in every worker of this app."""
        if any(handler.queue == other.queue for other in self.handlers):
            raise InvalidInput("queue", f"{handler.queue!r} already has another Handler")
        handler.spec()  # raises if it is not usable
        self.handlers.append(handler)

    def put_schedules(self) -> None:
        """Store the schedules declared with @cron, and disable those that this app declared before
        and no longer does."""
        for name, cron in self.crons.items():
            self.queue.schedules.put(
                name,
                cron.expression,
                cron.job,
                tz=cron.tz,
                catch_up=cron.catch_up,
                owner=self.name,
            )
        try:
            self._disable_removed()
        except TenureError as error:
            if self.crons or isinstance(error, Unauthorized):
                raise
            # An app without schedules must start even if it may not read them.
            log.info("schedules of app %s could not be checked: %s", self.name, error)

    def _put_schedules_if_allowed(self) -> None:
        """Store the schedules. A worker whose token is not allowed to do so starts anyway."""
        try:
            self.put_schedules()
        except Forbidden as error:
            log.warning(
                "the schedules of app %s are not stored: %s; run the app once with a token that "
                "has the scope admin",
                self.name,
                error,
                extra={"app": self.name},
            )

    def _disable_removed(self) -> None:
        for one in self.queue.schedules.list():
            if one.owner != self.name or one.name in self.crons or one.disabled:
                continue
            (answer,) = store_of(self.queue).do([PutSchedule(replace(one, disabled=True))])
            if isinstance(answer, TenureError):
                raise answer
            log.warning(
                "schedule %s is disabled: app %s no longer declares it; if another app of this "
                "name does, give each its own: Tenure(name=...)",
                one.name,
                self.name,
                extra={"schedule": one.name, "app": self.name},
            )

    def load(self) -> None:
        """Import the modules that declare the tasks."""
        for module in self._include:
            importlib.import_module(module)

    # Several jobs at once -----------------------------------------------------------------------

    def chain(self, *jobs: NewJob) -> list[Handle[Any]]:
        """Enqueue jobs that run one after another, all or none, and return their handles.

        A job reads the result of the one before it with `current_job().results()`.
        """
        return self._enqueue_all(self._chained(jobs))

    async def achain(self, *jobs: NewJob) -> list[Handle[Any]]:
        """Awaitable form of `chain`."""
        return await self._aenqueue_all(self._chained(jobs))

    def fan_out(self, jobs: Iterable[NewJob], then: NewJob | None = None) -> list[Handle[Any]]:
        """Enqueue jobs that run in parallel, and `then`, which runs when all of them are done.

        All or none are enqueued. If a job fails, `if_parent_fails` of `then` says what happens to
        `then`. Returns the handles of the jobs, with that of `then` last.
        """
        return self._enqueue_all(self._fanned_out(jobs, then))

    async def afan_out(
        self, jobs: Iterable[NewJob], then: NewJob | None = None
    ) -> list[Handle[Any]]:
        """Awaitable form of `fan_out`."""
        return await self._aenqueue_all(self._fanned_out(jobs, then))

    def _chained(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        linked = self._with_ids(jobs)
        for before, job in itertools.pairwise(linked):
            job.after = [*job.after, str(before.id)]
        return linked

    def _fanned_out(self, jobs: Iterable[NewJob], then: NewJob | None) -> list[NewJob]:
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
                    f"jobs[{n}]", f"must be a job made with task.job(...), not {job!r:.60}"
                )
            if job.kind not in self.tasks:
                raise InvalidInput(f"jobs[{n}]", f"{job.kind!r} is not a task of this app")
        fresh = new_ids(self.queue.clock.now_ms(), len(jobs))
        return [replace(job, id=job.id or made) for job, made in zip(jobs, fresh, strict=True)]

    def _enqueue_all(self, jobs: list[NewJob]) -> list[Handle[Any]]:
        ids = self.queue.enqueue_many(jobs)
        self._enqueued()
        return self._handles(jobs, ids)

    async def _aenqueue_all(self, jobs: list[NewJob]) -> list[Handle[Any]]:
        ids = await self.queue.aenqueue_many(jobs)
        await self._aenqueued()
        return self._handles(jobs, ids)

    def result_of(self, job: Job) -> Any:
        """The result of a done job, decoded as the return type of its task."""
        task = self.tasks.get(job.kind)
        return job.result if task is None else task.result_of(job)

    def _handles(self, jobs: list[NewJob], ids: list[str]) -> list[Handle[Any]]:
        return [Handle(self.tasks[job.kind], id) for job, id in zip(jobs, ids, strict=True)]

    # Running ------------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        **options: Any,
    ) -> Worker:
        """Create a worker for this app's jobs. queues: only work on these, in this order.
        concurrency: how many jobs run at once. See Worker for the other options."""
        worker = Worker(self.queue, self.posts(queues, concurrency), **options)
        worker.before_start = self._put_schedules_if_allowed
        return worker

    def posts(self, queues: Sequence[str] | None = None, concurrency: int = 10) -> list[Post]:
        """The queues of the app's tasks and Handlers, with what runs their jobs."""
        self.load()
        whole = {handler.queue: handler for handler in self.handlers}
        known = [str(task.options.get("queue")) for task in self.tasks.values()]
        known += [cron.job.queue for cron in self.crons.values()]
        all_of_them = list(dict.fromkeys([*known, *whole]))
        wanted = all_of_them if queues is None else listed("queues", queues)
        tasks = [name for name in wanted if name not in whole]
        posts = [post_of(whole[name]) for name in wanted if name in whole]
        if tasks:
            handlers = {name: task.handler for name, task in self.tasks.items()}
            posts.append(Post(tasks, concurrency, handlers, in_order=queues is not None))
        return posts

    @asynccontextmanager
    async def lifespan(self, asgi_app: object = None, **options: Any) -> AsyncIterator[None]:
        """Run jobs while a web server runs: `FastAPI(lifespan=app.lifespan)`. Closes the store at
        the end. The options are those of `worker()`."""
        worker = self.worker(**options)
        await worker.start()
        watching = asyncio.create_task(_tell_if_it_ends(worker))
        try:
            yield
        finally:
            watching.cancel()
            await worker.stop()
            await self.aclose()

    # Testing ------------------------------------------------------------------------------------

    def _enqueued(self) -> None:
        """Called after each enqueue; an eager sandbox runs what is ready."""
        if self.sandbox is not None and self.sandbox.eager:
            self.sandbox.drain()

    async def _aenqueued(self) -> None:
        """Awaitable form of `_enqueued`."""
        if self.sandbox is not None and self.sandbox.eager:
            await self.sandbox.adrain()

    def _settle(self) -> bool:
        """Run what is ready if the app is in a sandbox, where no worker does; returns whether it
        is."""
        if self.sandbox is not None:
            self.sandbox.drain()
        return self.sandbox is not None

    async def _asettle(self) -> bool:
        """Awaitable form of `_settle`."""
        if self.sandbox is not None:
            await self.sandbox.adrain()
        return self.sandbox is not None


async def _tell_if_it_ends(worker: Worker) -> None:
    """Log why a worker has ended, because the web server continues without it."""
    try:
        await worker.wait()
    except TenureError as error:
        log.error("worker %s has ended: %s", worker.name, error)  # noqa: TRY400  # no traceback


def _module_of(variables: dict[str, Any]) -> str:
    """The name of a module by its variables, as it would be imported if it is run as a script."""
    name = str(variables.get("__name__", ""))
    if name != "__main__":
        return name or "app"
    spec, file = variables.get("__spec__"), variables.get("__file__")
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else name


def _load_of(function: Callable[..., Any]) -> object:
    """What stays the same while a module is executed once. A reload replaces the spec of a module;
    a script has none. None for an interactive session, which can define everything again."""
    module = sys.modules.get(function.__module__)
    variables = getattr(function, "__globals__", {})
    return getattr(module, "__spec__", None) or variables.get("__file__")


def _code(function: Callable[..., Any]) -> object:
    return getattr(function, "__code__", function)


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


_OPENED: WeakSet[Tenure] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the apps of a program that ends without closing them: closing stores what they have
    counted for `rates`."""
    for app in list(_OPENED):
        app.close()
