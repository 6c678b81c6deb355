"""What a running job keeps between its attempts: steps, sleeps, signals, and results of other jobs.

Each call is written once, as a generator that yields what is to be done: something that a store
carries out, a function to call, or a pause. Where an event loop runs, its caller awaits it;
elsewhere, it blocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from tenure.errors import (
    Busy,
    ChildFailed,
    InvalidInput,
    LeaseLost,
    StoreError,
    StoreRejected,
    TenureError,
    WaitTimeout,
)
from tenure.features.steps.data import (
    MAX_RESULT_BYTES,
    Checkpoint,
    Kind,
    Recall,
    Step,
    Suspend,
    decode_steps,
)
from tenure.model.fields import check, check_label, check_name, span_ms
from tenure.model.job import FINAL, Job, NewJob, State
from tenure.model.ops import Recalled, Recorded, good
from tenure.model.retry import Backoff
from tenure.observe.logs import about
from tenure.queue import Queue, store_of
from tenure.queue.arguments import Seconds, listed
from tenure.queue.open_store import Wanted
from tenure.worker.outage import FIRST_PAUSE, LONGEST_PAUSE
from tenure.worker.outcome import Outcome, Stopped, Suspended, hopeless, is_hopeless
from tenure.worker.returns import read, returns_of, written

log = logging.getLogger("tenure.worker")

IN_PLACE_MS = 5_000  # a shorter sleep does not give the job back
LOOK_SECONDS = 0.1  # within which a thread that pauses notices that it must end
STEP_BACKOFF = Backoff("exponential", 1_000, factor=2.0, max_ms=30_000, jitter=0.1)

Retries = Annotated[int, msgspec.Meta(ge=0, le=1_000)]
T = TypeVar("T")


class Undoes(Protocol):
    """What `undo` needs of a task."""

    name: str

    def job(self, *args: Any, **kwargs: Any) -> NewJob: ...


class _Call(NamedTuple):
    """A function to call. The answer is what it returns; it is awaited first, if it can be."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]


class _Pause(NamedTuple):
    seconds: float


class _Undos(NamedTuple):
    """Wait until each undo is recorded."""


_Course = Generator[Wanted | _Call | _Pause | _Undos, Any, T]


class _Child(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job ended that was waited for, as a step of the kind "gather" records it."""

    id: str
    kind: str = ""
    state: str = State.DONE.value
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: str | None = None


_read_children = msgspec.json.Decoder(list[_Child]).decode


class Course:
    """What is known of the steps of a run."""

    def __init__(self) -> None:
        self.is_read: bool = False
        self.steps: dict[tuple[str, str], Step] = {}
        self.signals: dict[str, msgspec.Raw] = {}
        self.named: set[tuple[str, str]] = set()  # in this run
        self.suspension: Suspend | None = None
        self.undos: list[asyncio.Task[None]] = []  # that are being recorded
        self.open: dict[Future[None], asyncio.Task[Any] | None] = {}  # calls in progress


class Durable:
    """A part of CurrentJob: what a handler can do once, however often it is started."""

    __slots__ = ("_course",)

    job: Job
    reason: str | None
    _queue: Queue
    _result_of: Callable[[Job], Any]
    _lock: threading.Lock
    _course: Course | None

    def step(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        upgrade: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function once: its result is recorded, and later attempts return it without
        calling the function. Await it in an async handler; it blocks in a plain one.

        The step is named after the function, or `name`; one that repeats in a run needs a key.
        The result is stored as JSON, and returned as the return type of the function. func: async
        or plain; a plain one blocks the event loop if the handler is async. retries: how often to
        call it again if it raises, after `backoff`, within this attempt. upgrade: converts a
        recorded result that no longer fits the return type."""
        return self._carry_out(self._step(func, args, kwargs, key, name, retries, backoff, upgrade))

    def sleep(
        self,
        name: str,
        seconds: Seconds = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
    ) -> Any:
        """Sleep once. The job is given back to the store meanwhile, and no worker is needed. A
        sleep of less than 5 seconds takes place in the worker."""
        long = timedelta(days=days, hours=hours, minutes=minutes)
        span = span_ms("seconds", seconds) + span_ms("days", long)
        return self._carry_out(self._sleep(check_name("name", name), span))

    def wait_for(self, name: str, timeout: Seconds | None = None) -> Any:
        """Wait for a signal, and return its value. The job is given back to the store meanwhile.
        Raises WaitTimeout if no signal of this name is there after `timeout` seconds."""
        span = None if timeout is None else span_ms("timeout", timeout)
        return self._carry_out(self._wait_for(check_name("name", name), span))

    def gather(self, name: str, jobs: Sequence[NewJob], *, return_exceptions: bool = False) -> Any:
        """Enqueue jobs, wait until all have ended, and return their results in order. This job is
        given back to the store meanwhile. Raises ChildFailed if one is not done, or returns that
        error in its place."""
        made = listed("jobs", jobs)
        for n, job in enumerate(made):
            if not isinstance(job, NewJob):
                reason = f"must be a job made with task.job(...), not {job!r:.60}"
                raise InvalidInput(f"jobs[{n}]", reason)
        return self._carry_out(self._gather(check_name("name", name), made, return_exceptions))

    def undo(self, task: Undoes, /, *args: Any, key: str | None = None, **kwargs: Any) -> Any:
        """Enqueue this call of a task if the job ends dead or cancelled; of several, the last
        first. It is being recorded from now on, and what this run records next waits for it; it may
        be awaited. A call that repeats, in this run, needs a key."""
        job = task.job(*args, **kwargs)
        if key is None:
            payload = self._store.prepare([job])[0].payload
            key = hashlib.blake2b(payload, digest_size=8).hexdigest()
        course = self._undo(f"undo {task.name}", check_label("key", key), job)
        if not _in_a_loop():
            return self._block(course)
        work = asyncio.get_running_loop().create_task(self._await(course))
        self._known.undos.append(work)
        return work

    def idempotency_key(self, name: str, key: str = "") -> str:
        """A text for other services that recognize a repeated call. It is the same in every attempt
        of this job for a name and a key, and different for all others."""
        of = (self.job.id, str(self.job.created_at), check_name("name", name), key)
        return hashlib.blake2b("\0".join(of).encode(), digest_size=16).hexdigest()

    @property
    def uses_steps(self) -> bool:
        """Whether the handler has called any of these."""
        return self._course is not None

    @property
    def suspension(self) -> Suspend | None:
        """What the run waits for, if it was suspended."""
        return None if self._course is None else self._course.suspension

    # Each call, written once --------------------------------------------------------------------

    def _step(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        key: str | None,
        name: str | None,
        retries: int,
        backoff: Backoff | None,
        upgrade: Callable[[Any], Any] | None,
    ) -> _Course[Any]:
        name = _name_of(func) if name is None else check_name("name", name)
        key = check_label("key", key or "")
        check("retries", retries, Retries)
        returns = returns_of(func)
        with self._once(name, key):
            known = yield from self._recorded(name, key, "step")
            if known is not None:
                return read(returns, known.result, name, upgrade)
            began = self._queue.clock.monotonic()
            call = _Call(func, args, kwargs)
            value = yield from self._tried(call, name, retries, backoff or STEP_BACKOFF)
            took_ms = round((self._queue.clock.monotonic() - began) * 1000)
            result, value = written(returns, value, name)
            op = Checkpoint(
                self.job.id, self.job.token, name, key, result=result, took_ms=max(took_ms, 0)
            )
            recorded = yield from self._record(op)
            return value if recorded.created else read(returns, recorded.result, name, upgrade)

    def _tried(self, call: _Call, name: str, retries: int, backoff: Backoff) -> _Course[Any]:
        """Call a function, again if it raises."""
        for attempt in itertools.count(1):
            try:
                return (yield call)
            except Exception as error:
                gives_up = isinstance(error, Outcome | LeaseLost) or is_hopeless(error)
                if attempt > retries or gives_up or self.reason is not None:
                    raise
                wait = backoff.delay_ms(attempt, self.job.id) / 1000
                log.info(
                    "the step %r of job %s failed, and is tried again in %.3g s: %s",
                    *(name, self.job.id, wait, error),
                    extra=about(self.job),
                )
            yield _Pause(wait)
        raise AssertionError

    def _sleep(self, name: str, span: int) -> _Course[None]:
        with self._once(name):
            known = yield from self._recorded(name, "", "sleep", "step")
            if known is not None:
                return
            lease = self.job.id, self.job.token
            if span >= IN_PLACE_MS:
                yield from self._suspend(Suspend(*lease, name, kind="sleep", delay_ms=span))
            yield _Pause(span / 1000)
            yield from self._record(Checkpoint(*lease, name, took_ms=span))

    def _wait_for(self, name: str, span: int | None) -> _Course[Any]:
        with self._once(name):
            known = yield from self._recorded(name, "", "wait")
            timed_out = known is not None and known.ended_at is not None
            if not timed_out and name in self._known.signals:
                return msgspec.json.decode(self._known.signals[name])
            lease = self.job.id, self.job.token
            until = None if known is None else known.until
            if not timed_out and until is not None and until <= self.job.run_at:
                recorded = yield from self._record(Checkpoint(*lease, name, kind="wait"))
                if recorded.signalled:
                    return msgspec.json.decode(recorded.result)
                timed_out = True
            if timed_out:
                raise WaitTimeout.of_signal(self.job.id, name)
            yield from self._suspend(Suspend(*lease, name, kind="wait", delay_ms=span))

    def _gather(
        self, name: str, jobs: Sequence[NewJob], return_exceptions: bool
    ) -> _Course[list[Any]]:
        with self._once(name):
            known = yield from self._recorded(name, "", "gather")
            lease = self.job.id, self.job.token
            if known is None:
                if jobs:
                    then = tuple(self._store.prepare(jobs))
                    yield from self._suspend(Suspend(*lease, name, kind="gather", then=then))
                return []
            if known.ended_at is not None:
                return self._results(name, _read_children(known.result), return_exceptions)
            found = yield from self._queue._get_many(known.children)
            if any(job is not None and job.state not in FINAL for job in found):
                yield from self._suspend(Suspend(*lease, name, kind="gather"))
            children = [*map(_ended, known.children, found)]
            # A failure is raised before it is recorded: a child that is replayed meanwhile counts.
            results = self._results(name, children, return_exceptions)
            result = msgspec.Raw(msgspec.json.encode(children))
            if len(result) > MAX_RESULT_BYTES:
                size = f"{len(result):,} bytes; at most {MAX_RESULT_BYTES:,} are allowed"
                reason = f"the results of its jobs are {size}: gather fewer, or return less"
                raise hopeless(InvalidInput(f"the step {name!r}", reason))
            yield from self._record(Checkpoint(*lease, name, kind="gather", result=result))
            return results

    def _results(self, name: str, children: Sequence[_Child], return_exceptions: bool) -> list[Any]:
        results: list[Any] = []
        for child in children:
            if child.state == State.DONE:
                job = replace(self.job, kind=child.kind, raw_result=child.result)
                results.append(self._result_of(job))
                continue
            error = ChildFailed(name, child.id, child.state, child.error)
            if not return_exceptions:
                raise error
            results.append(error)
        return results

    def _undo(self, name: str, key: str, job: NewJob) -> _Course[None]:
        with self._once(name, key):
            known = yield from self._recorded(name, key, "undo")
            if known is None:
                then = tuple(self._store.prepare([replace(job, unique_key=None)]))
                op = Checkpoint(self.job.id, self.job.token, name, key, kind="undo", then=then)
                yield from self._sent(op)

    # What they have in common -------------------------------------------------------------------

    @property
    def _known(self) -> Course:
        with self._lock:
            if self._course is None:
                self._course = Course()
            return self._course

    @property
    def _store(self) -> Any:
        return store_of(self._queue)

    @contextmanager
    def _once(self, name: str, key: str = "") -> Iterator[None]:
        """Raise InvalidInput if the run has used a name and key. It may do so after an error."""
        named = self._known.named
        if (name, key) in named:
            what = f"the step {name!r}" + (f" with the key {key!r}" if key else "")
            reason = f"{what} was named twice in one run: give each its own key= or name"
            raise hopeless(InvalidInput("key" if key else "name", reason))
        named.add((name, key))
        try:
            yield
        except Exception:
            named.discard((name, key))
            raise

    def _recorded(self, name: str, key: str, *kinds: Kind) -> _Course[Step | None]:
        """What is recorded under a name and a key."""
        known = self._known
        if known.suspension is not None:
            raise Suspended(known.suspension)
        if not known.is_read:
            yield from self._read_all()
        step = known.steps.get((name, key))
        if step is not None and step.kind not in kinds:
            reason = f"{name!r} was recorded as {_KINDS[step.kind]}: give this its own name"
            raise hopeless(InvalidInput("name", reason))
        return step

    def _read_all(self) -> _Course[None]:
        """Read what is recorded. Several calls may do so at once."""
        known, after = self._known, 0 if self.job.has_steps else None
        while after is not None:
            op = Recall(self.job.id, self.job.token, after=after)
            page = decode_steps(good((yield from self._sent(op)), Recalled).steps)
            for step in page.steps:
                known.steps.setdefault((step.name, step.key), step)
            for sent in page.signals:
                known.signals.setdefault(sent.name, sent.value)
            after = page.after
        known.is_read = True

    def _record(self, op: Checkpoint) -> _Course[Recorded]:
        yield _Undos()
        recorded = good((yield from self._sent(op)), Recorded)
        return recorded

    def _sent(self, op: Checkpoint | Recall) -> _Course[Any]:
        """Send an operation until the store answers: what a step has done is done, even if the
        store is away for a while. Raises the error of the operation."""
        pause = FIRST_PAUSE
        while True:
            error: Exception
            try:
                (answer,) = yield [op]
                if not isinstance(answer, TenureError):
                    return answer
                raise answer
            except (Busy, StoreError) as raised:
                if isinstance(raised, StoreRejected) or self.reason is not None:
                    raise
                error = raised
            except InvalidInput as raised:
                raise hopeless(raised) from None  # every attempt would come here
            level = logging.WARNING if pause == FIRST_PAUSE else logging.DEBUG
            what = "read" if isinstance(op, Recall) else "record"
            text = "cannot %s the steps of job %s, trying again: %s"
            log.log(level, text, what, self.job.id, error, extra=about(self.job))
            yield _Pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _suspend(self, op: Suspend) -> _Course[None]:
        """End the run until something has happened. Of several suspensions the first counts."""
        yield _Undos()
        known = self._known
        if known.suspension is None:
            known.suspension = op
        raise Suspended(known.suspension)

    # Both forms ---------------------------------------------------------------------------------

    def _carry_out(self, course: _Course[Any]) -> Any:
        return self._await(course) if _in_a_loop() else self._block(course)

    def _block(self, course: _Course[T]) -> T:
        with self._in_progress(None):
            answer: Any = None
            error: BaseException | None = None
            try:
                while True:
                    try:
                        wanted = course.send(answer) if error is None else course.throw(error)
                    except StopIteration as stop:
                        result: T = stop.value
                        return result
                    answer = error = None
                    try:
                        answer = self._do(wanted)
                    except BaseException as raised:
                        error = raised
            finally:
                error = None  # break the reference cycle with this frame

    def _do(self, wanted: Any) -> Any:
        if isinstance(wanted, _Call):
            value = wanted.function(*wanted.args, **wanted.kwargs)
            return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
        if isinstance(wanted, _Pause):
            return self._pause(wanted.seconds)
        if isinstance(wanted, _Undos):
            for undo in self._known.undos:  # by an event loop in another thread
                if not undo.done():
                    asyncio.run_coroutine_threadsafe(_awaited(undo), undo.get_loop()).result()
            return self._check_undos()
        return self._store.do(wanted)

    def _pause(self, seconds: float) -> None:
        clock = self._queue.clock
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            if self.reason is not None:
                raise Stopped
            clock.sleep(min(left, LOOK_SECONDS))

    async def _await(self, course: _Course[T]) -> T:
        with self._in_progress(asyncio.current_task()):
            answer: Any = None
            error: BaseException | None = None
            try:
                while True:
                    try:
                        wanted = course.send(answer) if error is None else course.throw(error)
                    except StopIteration as stop:
                        result: T = stop.value
                        return result
                    answer = error = None
                    try:
                        answer = await self._ado(wanted)
                    except BaseException as raised:
                        error = raised
            finally:
                error = None  # break the reference cycle with this frame

    async def _ado(self, wanted: Any) -> Any:
        if isinstance(wanted, _Call):
            value = wanted.function(*wanted.args, **wanted.kwargs)
            return await value if inspect.isawaitable(value) else value
        if isinstance(wanted, _Undos):
            for undo in self._known.undos:
                await asyncio.shield(undo)
        elif isinstance(wanted, _Pause):
            await asyncio.sleep(wanted.seconds)
        else:
            return await self._store.ado(wanted)
        return None

    # The end of a run ---------------------------------------------------------------------------

    @contextmanager
    def _in_progress(self, task: asyncio.Task[Any] | None) -> Iterator[None]:
        """Note a call that the end of the run waits for."""
        known, ended = self._known, Future[None]()
        known.open[ended] = task
        try:
            yield
        finally:
            del known.open[ended]
            ended.set_result(None)

    async def asettle(self) -> None:
        """Wait until what the handler has left in progress is recorded: another attempt must not
        begin the same steps meanwhile. What is told to end early is cancelled, except undos."""
        known = self._known
        try:
            while known.open and self.reason is None:
                await asyncio.wait([asyncio.wrap_future(one) for one in [*known.open]])
        finally:
            for task in known.open.values():
                if task not in known.undos and task is not None:
                    task.cancel()
        if self.reason != "lost" and known.undos:
            await asyncio.wait(known.undos)
            self._check_undos()

    def settle(self) -> None:
        """Blocking form of `asettle`. What other threads do cannot be cancelled."""
        known = self._known
        while known.open and self.reason is None:
            wait([*known.open], LOOK_SECONDS)
        self._check_undos()

    def _check_undos(self) -> None:
        """Raise the error of an undo that could not be recorded: then the attempt has failed."""
        for undo in self._known.undos:
            error: BaseException | None
            if not undo.done():
                continue  # the run was told to end early
            if undo.cancelled():
                reason = "was not recorded before its event loop ended: await it"
                error = InvalidInput("undo", reason)
            else:
                error = undo.exception()
            if error is not None:
                if not isinstance(error, Suspended):
                    self._known.suspension = None
                raise error


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _awaited(value: Any) -> Any:
    return await value


_KINDS = {
    "step": "a step",
    "sleep": "a sleep",
    "wait": "a wait for a signal",
    "gather": "a wait for other jobs",
    "undo": "an undo",
}


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", "")
    if not name or name == "<lambda>":
        reason = f"{func!r:.60} has no name of its own: give the step one with name="
        raise hopeless(InvalidInput("name", reason))
    return check_name("name", name)


def _ended(id: str, job: Job | None) -> _Child:
    if job is None:
        return _Child(id, state="deleted", error="it was deleted before its result was read")
    if job.state is State.DONE:
        return _Child(id, job.kind, result=job.raw_result)
    return _Child(id, job.kind, job.state.value, error=job.error)
