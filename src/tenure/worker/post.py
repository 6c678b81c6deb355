"""A post: queues that a worker serves together, their running jobs, and outcomes not stored yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated

from msgspec import Meta

from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.model.fields import MAX_CLAIM, check, check_name
from tenure.model.job import Job, Lease
from tenure.model.ops import Op
from tenure.worker.handler import Handler, HandlerSpec
from tenure.worker.run import Run

ENOUGH = 200  # jobs that are worth a commit of their own

EndOp = ops.Ack | ops.Fail | ops.Release | Suspend  # the outcome of an attempt

Concurrency = Annotated[int, Meta(ge=1, le=100_000)]


class Post:
    """Queues, and how many of their jobs run at once.

    in_order: always prefer the first queue; otherwise the queues take turns.
    """

    def __init__(
        self,
        queues: Sequence[str],
        concurrency: int,
        handlers: Mapping[str, HandlerSpec],
        *,
        default: HandlerSpec | None = None,
        poll_interval: float | None = None,
        in_order: bool = False,
    ) -> None:
        self.queues: tuple[str, ...] = tuple(check_name("queues", name) for name in queues)
        self.concurrency: int = check("concurrency", concurrency, Concurrency)
        self.poll_interval = poll_interval
        self._handlers = handlers
        self._default = default
        self._in_order = in_order
        self.runs: dict[int, Run] = {}  # handlers that still run, including those given up
        self.to_tell: list[Op] = []  # outcomes to submit
        self.telling: list[list[Op]] = []  # batches being committed
        self.apart: list[list[Op]] = []  # others, each of one part of the store
        self.asked: int = 0  # jobs that claims in progress have asked for
        self.kept: dict[tuple[str, int], EndOp] = {}  # outcomes to send again, by id and token
        self.reports: dict[str, Op] = {}  # the latest progress of each job
        self.look = True  # whether something may be ready
        self.looked_ahead_at: float = -1.0
        self.changed: Signal = Signal()
        self.can_split: bool = False  # whether two batches may be committed at once
        self.split: bool = False  # whether they are, because there is enough to do
        self.for_second: Signal = Signal()

    @property
    def room(self) -> int:
        """How many jobs may be claimed. Outcomes that cannot be stored do not stop a post, because
        others can; but it keeps at most twice as many as run at once."""
        most = (self.concurrency + 1) // 2 if self.split else self.concurrency
        free = self.concurrency - len(self.runs) - self.asked
        late = len(self.kept) + sum(map(len, self.apart))
        if late > self.concurrency:
            free = max(0, free - (late - self.concurrency))
        return min(free, most, MAX_CLAIM)

    @property
    def is_telling(self) -> bool:
        """Whether batches are being committed."""
        return bool(self.telling or self.apart)

    @property
    def is_large(self) -> bool:
        """Whether half of it is worth a commit of its own."""
        return len(self.queues) == 1 and self.concurrency >= 2 * ENOUGH

    def wake(self) -> None:
        """Look again at what there is to do."""
        self.changed.set()
        if self.can_split:
            self.for_second.set()

    def found(self, jobs: Sequence[Job], room: int) -> None:
        """Note what a claim has found. If it has found as many jobs as it may, all in one lane, the
        next ones are claimed in two halves: while the store commits one, the jobs of the other
        run. In several lanes, two claims would wait for each other, and have more to do."""
        there_may_be_more = len(jobs) == room
        if there_may_be_more:
            self.look = True
        if self.can_split:
            lanes = {(job.tenant, job.group) for job in jobs} if there_may_be_more else ()
            self.split = len(lanes) == 1

    @property
    def busy(self) -> bool:
        return any(not run.ended for run in self.runs.values())

    def handler_of(self, job: Job) -> HandlerSpec | None:
        return self._handlers.get(job.kind, self._default)

    def next_order(self) -> tuple[str, ...]:
        """The queues in the order in which to claim from them."""
        if not self._in_order:
            self.queues = (*self.queues[1:], self.queues[0])
        return self.queues

    def take(self) -> list[Op]:
        """Take the operations to submit, grouped by kind."""
        reports, self.reports = self.reports, {}
        to_tell, self.to_tell = self.to_tell, []
        if len(set(map(type, to_tell))) > 1:
            to_tell.sort(key=lambda op: type(op).__name__)
        return [*reports.values(), *to_tell]

    @property
    def unstored(self) -> list[Lease]:
        """Leases of jobs whose outcome is not stored yet. Can be called from any thread."""
        return [
            Lease(op.id, op.token)
            for op in [
                *self.to_tell,
                *chain.from_iterable(self.telling),
                *chain.from_iterable(self.apart),
                *self.kept.copy().values(),
            ]
            if isinstance(op, EndOp)
        ]

    def report(self, run: int, op: ops.Progress) -> None:
        """Submit the progress of a run, unless it has ended."""
        if run in self.runs:
            self.reports[op.id] = op
            self.changed.set()


def post_of(handler: Handler) -> Post:
    """The post of a Handler: all jobs of its queue."""
    return Post(
        [handler.queue],
        handler.concurrency,
        {},
        default=handler.spec(),
        poll_interval=handler.poll_interval,
    )


class Signal:
    """An event that one task waits for, with a timeout."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        """Wait until it is set or the time is up. Returns whether it was set, and clears it."""
        if not self._set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None
            if seconds is not None:
                timer = loop.call_later(seconds, _give_up, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._set = self._set, False
        return was_set


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
