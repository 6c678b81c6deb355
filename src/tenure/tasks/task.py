"""Tasks: functions whose calls can be enqueued, with arguments validated on enqueue."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

from tenure.clock import Clock
from tenure.errors import InvalidInput, JobFailed, WaitTimeout
from tenure.model.fields import span_ms
from tenure.model.job import FINAL, NULL, IfParentFails, Job, NewJob, State, encode_json, prepare
from tenure.model.ops import IfExists
from tenure.model.retry import Backoff
from tenure.queue import Queue
from tenure.queue.arguments import Seconds, listed
from tenure.tasks.signature import Signature
from tenure.worker.handler import HandlerSpec, place_of
from tenure.worker.outcome import Rules, hopeless

P = ParamSpec("P")
R = TypeVar("R")

LOOK_SECONDS = 1.0  # poll interval of `wait()`, if nothing wakes it


class Options(TypedDict, total=False):
    """The options of a job besides its arguments; see Queue.enqueue."""

    queue: str
    tenant: str
    group: str
    priority: int
    delay: Seconds
    run_at: datetime | None
    id: str | None
    unique_key: str | None
    after: Sequence[str | Job | Handle[Any]]
    if_parent_fails: IfParentFails
    max_attempts: int
    backoff: Backoff | None
    expires_in: Seconds | None
    timeout: Seconds | None
    trace: str | None
    if_exists: IfExists
    connection: Any


class App(Protocol):
    """What a task needs of its app."""

    default_queue: str

    @property
    def queue(self) -> Queue: ...
    def _enqueued(self) -> None: ...
    async def _aenqueued(self) -> None: ...
    def _settle(self) -> bool: ...
    async def _asettle(self) -> bool: ...
    def result_of(self, job: Job) -> Any: ...


Errors = type[BaseException] | tuple[type[BaseException], ...]
Call = tuple[Any, ...] | Mapping[str, Any] | NewJob

_NOT_OF_THE_JOB = {"if_exists", "connection"}


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs the function directly."""

    def __init__(
        self,
        app: App,
        function: Callable[P, Any],
        name: str,
        *,
        unique: bool | Callable[..., str] = False,
        process: bool = False,
        retry_on: Errors | None = None,
        no_retry_on: Errors = (),
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options: Options = {}
        self._unique = unique
        self._place = place_of(function, process, name)
        self._signature = Signature(function, name)
        self._rules = Rules(
            self._signature.check_result,
            (BaseException,) if retry_on is None else _errors("retry_on", retry_on),
            _errors("no_retry_on", no_retry_on),
        )
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__: str = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)

    def __repr__(self) -> str:
        return f"<tenure.Task {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Self:
        """Return the same task with other options: `task.using(delay=60).enqueue()`."""
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            known = ", ".join(sorted(Options.__annotations__))
            raise InvalidInput(min(unknown), f"is not an option; the options are {known}")
        same = copy.copy(self)
        same.options = {**self.options, **options}
        return same

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a call of the task as a job, to enqueue together with others."""
        return self._job(args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call of the task. Returns once it is durable."""
        ids = self.app.queue.enqueue_many([self._job(args, kwargs)], **self._how())
        self.app._enqueued()
        return Handle(self, ids[0], ids.created[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Awaitable form of `enqueue`."""
        ids = await self.app.queue.aenqueue_many([self._job(args, kwargs)], **self._how())
        await self.app._aenqueued()
        return Handle(self, ids[0], ids.created[0])

    def enqueue_payload(self, payload: Any) -> Handle[R]:
        """Enqueue a call whose arguments are given as in the payload of a job: a JSON object of
        arguments by name, or None. Raises InvalidInput if they do not fit."""
        if not isinstance(payload, dict | None):
            raise InvalidInput(self.name, "the payload must be an object of arguments by name")
        args, kwargs = self._signature.decode(encode_json("payload", payload, 2**62))
        ids = self.app.queue.enqueue_many([self._job(tuple(args), kwargs)], **self._how())
        self.app._enqueued()
        return Handle(self, ids[0], ids.created[0])

    def enqueue_many(self, calls: Iterable[Call]) -> list[Handle[R]]:
        """Enqueue many calls, all or none. Each call is a job made with `job(...)`, whose arguments
        a type checker checks, a tuple of arguments, or a mapping of arguments by name."""
        ids = self.app.queue.enqueue_many(self._jobs(calls), **self._how())
        self.app._enqueued()
        return [Handle(self, id, created) for id, created in zip(ids, ids.created, strict=True)]

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[Handle[R]]:
        """Awaitable form of `enqueue_many`."""
        ids = await self.app.queue.aenqueue_many(self._jobs(calls), **self._how())
        await self.app._aenqueued()
        return [Handle(self, id, created) for id, created in zip(ids, ids.created, strict=True)]

    def handle(self, id: str) -> Handle[R]:
        """Return the handle of a call that was enqueued before, here or in another process. Does
        not check that the job exists."""
        return Handle(self, id, created=False)

    def _jobs(self, calls: Iterable[Call]) -> list[NewJob]:
        jobs: list[NewJob] = []
        for n, call in enumerate(listed("calls", calls)):
            try:
                jobs.append(self._job_of(call))
            except InvalidInput as error:
                raise error.within(f"calls[{n}]") from None
        return jobs

    def _job_of(self, call: Call) -> NewJob:
        if isinstance(call, NewJob):
            if call.kind != self.name:
                raise InvalidInput("kind", f"is a job of {call.kind!r}, not of {self.name!r}")
            return call
        if isinstance(call, Mapping):
            return self._job((), dict(call))
        if isinstance(call, tuple):
            return self._job(tuple(call), {})
        kind = type(call).__name__
        raise InvalidInput("call", f"must be a tuple, a mapping or a job of the task, not {kind}")

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        payload = self._signature.encode(args, kwargs)
        job = self._with_options(payload)
        if self._unique and job.unique_key is None:
            job.unique_key = self._unique_key(payload, args, kwargs)
        return job

    def _with_options(self, payload: Any) -> NewJob:
        options: dict[str, Any] = {
            name: value for name, value in self.options.items() if name not in _NOT_OF_THE_JOB
        }
        if "after" in options:
            options["after"] = [
                getattr(parent, "id", parent) for parent in listed("after", options["after"])
            ]
        options.setdefault("queue", self.app.default_queue)
        return NewJob(payload=payload, kind=self.name, **options)

    def _check_options(self) -> None:
        """Validate the options. Raises InvalidInput."""
        prepare([self._with_options(None)], 0, len(NULL))

    def _unique_key(self, payload: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(self._unique):
            return f"{self.name}:{self._unique(*args, **kwargs)}"
        return f"{self.name}:{hashlib.blake2b(payload, digest_size=16).hexdigest()}"

    def _how(self) -> dict[str, Any]:
        """The options of the enqueue call: a unique task skips calls that exist already."""
        how = {name: self.options[name] for name in _NOT_OF_THE_JOB & self.options.keys()}  # type: ignore[literal-required]
        if self._unique:
            how.setdefault("if_exists", "skip")
        return how

    @property
    def handler(self) -> HandlerSpec:
        """The handler with which a worker calls the task."""
        return HandlerSpec(
            self._run,
            self._place,
            self.name,
            self.function.__module__,
            self.__qualname__,
            self._rules,
            self.app.result_of,
        )

    def _run(self, job: Job) -> Any:
        try:
            args, kwargs = self._signature.decode(job.raw_payload)
        except InvalidInput as error:
            raise hopeless(error) from None
        return self.function(*args, **kwargs)

    def result_of(self, job: Job) -> R:
        """The result of a done job, decoded as the function's return type."""
        result: R = self._signature.result(job.raw_result)
        return result


class SyncTask(Task[P, R]):
    """A task made of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task made of a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function: await the result."""
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


def _errors(field: str, errors: Errors) -> tuple[type[BaseException], ...]:
    """The classes, as a tuple for `except`."""
    several = errors if isinstance(errors, tuple) else (errors,)
    for one in several:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise InvalidInput(field, f"must be an exception class or a tuple of them: {one!r:.60}")
    return several


class Handle(Generic[R]):
    """An enqueued call of a task. created: False if the job existed before."""

    def __init__(self, task: Task[Any, R], id: str, created: bool = True) -> None:
        self.task = task
        self.id = id
        self.created = created

    def __repr__(self) -> str:
        return f"<tenure.Handle {self.task.name} {self.id}>"

    @property
    def _queue(self) -> Queue:
        return self.task.app.queue

    def job(self) -> Job:
        """Return the job in its current state."""
        return self._queue.get(self.id)

    async def ajob(self) -> Job:
        """Awaitable form of `job`."""
        return await self._queue.aget(self.id)

    def cancel(self) -> bool:
        """Cancel the job unless it is finished. Returns whether it was cancelled."""
        return self._queue.cancel(self.id) == 1

    async def acancel(self) -> bool:
        """Awaitable form of `cancel`."""
        return await self._queue.acancel(self.id) == 1

    def signal(self, name: str, value: Any = None) -> bool:
        """Send a signal to the job, as `Queue.signal` does. Returns whether it is the first of its
        name, and the job has not finished."""
        first = self._queue.signal(self.id, name, value) == 1
        self.task.app._enqueued()
        return first

    async def asignal(self, name: str, value: Any = None) -> bool:
        """Awaitable form of `signal`."""
        first = await self._queue.asignal(self.id, name, value) == 1
        await self.task.app._aenqueued()
        return first

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait until the job is finished and return its result. Raises JobFailed if it is dead or
        cancelled, and WaitTimeout after `timeout` seconds."""
        if self.task.app._settle():
            return self._result_now(self.job())
        if _in_a_loop():
            raise InvalidInput("result", "blocks the event loop: use `await handle.aresult()`")
        changed = threading.Event()
        stop = self._queue.changes.listen(lambda queues: changed.set())
        try:
            patience = _Patience(timeout, self._queue.clock)
            while True:
                changed.clear()
                job = self.job()
                if job.state in FINAL:
                    return self._result(job)
                changed.wait(patience.next_look(job))
        finally:
            stop()

    async def aresult(self, timeout: Seconds | None = None) -> R:
        """Awaitable form of `result`."""
        if await self.task.app._asettle():
            return self._result_now(await self.ajob())
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        stop = self._queue.changes.listen(lambda queues: _set_soon(loop, changed))
        try:
            patience = _Patience(timeout, self._queue.clock)
            while True:
                changed.clear()
                job = await self.ajob()
                if job.state in FINAL:
                    return self._result(job)
                seconds = patience.next_look(job)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), seconds)
        finally:
            stop()

    def _result_now(self, job: Job) -> R:
        if job.state not in FINAL:
            hint = "; in a sandbox, drain(forward=SECONDS) moves the clock and runs what is due"
            raise WaitTimeout(job.id, job.state.value, 0, hint)
        return self._result(job)

    def _result(self, job: Job) -> R:
        if job.state is not State.DONE:
            raise JobFailed(job.id, job.state.value, job.error)
        return self.task.result_of(job)


class _Patience:
    """The remaining time of a `wait()`."""

    def __init__(self, timeout: Seconds | None, clock: Clock) -> None:
        self._timeout_ms = None if timeout is None else span_ms("timeout", timeout)
        self._clock = clock
        self._started = clock.monotonic()

    def next_look(self, job: Job) -> float:
        """Seconds until the next check. Raises WaitTimeout when the time is up."""
        if self._timeout_ms is None:
            return LOOK_SECONDS
        left = self._timeout_ms / 1000 - (self._clock.monotonic() - self._started)
        if left <= 0:
            raise WaitTimeout(job.id, job.state.value, self._timeout_ms / 1000)
        return min(left, LOOK_SECONDS)


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop was closed
        loop.call_soon_threadsafe(event.set)
