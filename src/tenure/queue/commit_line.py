"""A line of tickets: threads take turns to take all waiting tickets and handle them as a batch.

One thread waits at the head of the line. It takes the first ticket, waits for a turn if the maximum
number of batches is in progress, takes everything that has arrived meanwhile, and then passes the
head of the line to the next thread before it handles the batch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tenure.model import ops
from tenure.model.ops import Answer, Op

MAX_BATCH = 2_000  # operations and new jobs: a batch of this size takes no more tickets


class HasWeight(Protocol):
    weight: int  # how many operations and new jobs


T = TypeVar("T", bound=HasWeight)


class Turn:
    """Permission to handle one batch."""


class CommitLine(Generic[T]):
    """Handles at most `most` batches at once, each in its own thread."""

    def __init__(self, most: int, handle: Callable[[list[T]], None]) -> None:
        self._most = most
        self._handle = handle
        self._inbox: queue.SimpleQueue[Sequence[T] | None] = queue.SimpleQueue()
        self._turns: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        for _ in range(most):
            self._turns.put(Turn())
        self._free = iter(self._turns.get_nowait, None)
        self._head = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.is_started: bool = False

    @property
    def free_turns(self) -> int:
        return self._turns.qsize()

    def start(self) -> None:
        """Start the threads, unless they are running. Must not be called concurrently."""
        while len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="tenure-committer", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.is_started = True

    def put(self, tickets: Sequence[T]) -> None:
        """Add tickets. They are taken together, up to the size of a batch."""
        some: list[T] = []
        size = 0
        for ticket in tickets:
            if some and size + ticket.weight > MAX_BATCH:
                self._inbox.put(some)
                some, size = [], 0
            some.append(ticket)
            size += ticket.weight
        self._inbox.put(some)

    def apply_if_free(self, apply: Callable[[], list[Answer]]) -> list[Answer] | None:
        """Call `apply` in the caller's thread if a turn is free; otherwise return None."""
        mine: list[Turn] = []
        try:
            try:
                mine.extend(islice(self._free, 1))  # one step, which no signal can interrupt
            except queue.Empty:
                return None
            return apply()
        finally:
            if mine:
                self._turns.put(mine[0])

    def end(self) -> None:
        """Handle the remaining tickets and stop the threads. Returns when nothing is running."""
        self._inbox.put(None)
        for thread in self._threads:
            thread.join()
        for turn in [self._turns.get() for _ in range(self._most)]:
            self._turns.put(turn)

    def leftovers(self) -> list[T]:
        """Tickets that were added after `end`."""
        left: list[T] = []
        with suppress(queue.Empty):
            while True:
                left.extend(self._inbox.get_nowait() or ())
        return left

    def _work(self) -> None:
        open_ = True
        while open_:
            with self._head:
                first = self._inbox.get()
                turn = self._turns.get()
                tickets, open_ = self._take(first)
            try:
                self._handle(tickets)
            finally:
                self._turns.put(turn)

    def _take(self, first: Sequence[T] | None) -> tuple[list[T], bool]:
        """The waiting tickets, up to the size of a batch, and whether the line is still open."""
        tickets: list[T] = []
        size, some = 0, first
        while some is not None:
            tickets.extend(some)
            size += sum([ticket.weight for ticket in some])
            if size >= MAX_BATCH:
                return tickets, True
            try:
                some = self._inbox.get_nowait()
            except queue.Empty:
                return tickets, True
        self._inbox.put(None)  # stop the other threads, too
        return tickets, False


def load_of(batch: Sequence[Op]) -> tuple[int, int]:
    """How many operations and new jobs a batch has, and the bytes of JSON that it holds in
    memory."""
    weight = size = 0
    for op in ops.flat(batch):
        weight += len(op.adds) if type(op) is ops.Enqueue else 1 + len(op.adds)
        size += ops.bytes_in(op)
    return weight, size
