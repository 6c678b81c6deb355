"""Group commit: operations that arrive while a commit is in progress share the next one.

Callers (threads or asyncio tasks) submit operations and wait. A committer thread takes everything
that is waiting, applies it as one batch, and returns the answers once it is durable. There is no
timer: a batch is whatever arrived in the meantime. If nothing else is waiting, a calling thread
applies its own operations and skips the committer thread. Operations that the tasks of an event
loop submit during one iteration go together.

An engine says how many concurrent batches it benefits from. Below that number, operations are sent
at once; at that number they are collected, and go together. Claims have their own line, one batch
at a time: concurrent claims of one queue would only wait for each other. A worker whose claims
cannot meet can submit one beside them. Renewals of leases have a line of their own, too: a lease
must not expire because something else is slow, locked or away.

A worker that found nothing can leave a standing claim. It runs in the same transaction as the next
enqueue to one of its queues, so a job on an idle queue is stored and claimed in one commit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from tenure.engines import Engine, Recording, parts_of
from tenure.errors import (
    Busy,
    Closed,
    OutcomeUnknown,
    StoreError,
    StoreReadOnly,
    StoreRejected,
    Unauthorized,
)
from tenure.features.rates.counter import RateCounter
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue.commit_line import CommitLine, load_of
from tenure.queue.part_lines import PartLines

log = logging.getLogger("tenure.committer")

# Operations of one kind are adjacent, so that the engine can do them together. Those that free
# capacity come first, those that use it last.
_RANK: dict[type[Op], int] = {
    ops.Progress: 0,
    ops.Ack: 1,
    ops.Fail: 2,
    ops.Release: 3,
    ops.Extend: 4,
    ops.Enqueue: 5,
    ops.Claim: 7,
}
_OTHERS = 6

# Batches of renewals at once. One that hangs must not delay those after it.
RENEWALS_AT_ONCE = 8


class Ticket:
    """A caller's operations, and what it waits on for the answers."""

    __slots__ = (
        *("abandoned", "answers", "batch", "beside", "bytes", "claims", "error"),
        *("event", "future", "loop", "part", "renews", "weight"),
    )

    def __init__(self, batch: Sequence[Op]) -> None:
        self.batch: Sequence[Op] = batch
        self.weight: int
        self.bytes: int
        self.weight, self.bytes = load_of(batch)
        self.claims: bool = _claims(batch)
        self.renews: bool = _renews(batch)
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self.abandoned: bool = False
        self.beside: bool = False  # its claims need not wait for others
        self.part: int | None = None  # of the store, if it concerns only one
        self.event: threading.Lock | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[list[Answer]] | None = None


Piece = tuple[int, Ticket, int, int]  # rank; a ticket; start and end within its operations


def _pieces(ticket: Ticket) -> list[Piece]:
    """Split a ticket by rank if that keeps its operations in order; otherwise one piece."""
    batch = ticket.batch
    kind = type(batch[0])
    whole = [(_RANK.get(kind, _OTHERS), ticket, 0, len(batch))]
    if kind is type(batch[-1]):
        return whole
    pieces: list[Piece] = []
    start = 0
    for kind, some in groupby(map(type, batch)):
        rank = _RANK.get(kind, _OTHERS)
        if pieces and rank < pieces[-1][0]:
            return whole
        end = start + len(list(some))
        pieces.append((rank, ticket, start, end))
        start = end
    return pieces


_rank_of = itemgetter(0)


class Standing(Ticket):
    """A claim by an asyncio task that waits for something to claim."""

    __slots__ = ("leaving", "now", "queues", "taken_at")

    def __init__(self, claim: ops.Claim, now: Callable[[], float]) -> None:
        super().__init__([claim])
        self.queues: tuple[str, ...] = claim.queues
        self.now: Callable[[], float] = now
        self.taken_at: float = 0.0  # when it joined a batch, by `now`
        self.leaving: bool = False  # the caller wants an answer, even an empty one
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Answer]] = self.loop.create_future()

    def on_answer(self, call: Callable[[], object]) -> None:
        """Call `call` in the event loop when there is an answer."""
        assert self.future is not None
        self.future.add_done_callback(lambda future: call())


class Committer:
    """Collects the operations of all callers and applies them to an engine in batches."""

    def __init__(
        self,
        engine: Engine,
        max_waiting: int,
        max_waiting_bytes: int,
        committed: Callable[[Sequence[Op], Sequence[Answer]], None] = lambda batch, answers: None,
        rates: RateCounter | None = None,
    ) -> None:
        self._engine = engine
        self._recording = engine if isinstance(engine, Recording) else None
        self._committed = committed  # called after each commit, in any thread
        self._rates = rates  # counts what is committed; None if the store does so
        self._max_waiting = max_waiting
        self._max_bytes = max_waiting_bytes
        self._closed = False
        self.start_anew()
        _COMMITTERS.add(self)

    def start_anew(self) -> None:
        """Reset all state, as after a fork: a child has none of its parent's threads, and one of
        them may have held the locks."""
        self._lock = threading.Lock()
        most = self._engine.in_flight
        self._line = CommitLine[Ticket](max(1, most - 1), self._commit)
        self._claims = CommitLine[Ticket](1, self._commit) if most > 1 else self._line
        self._renewals = CommitLine[Ticket](RENEWALS_AT_ONCE if most > 1 else 1, self._commit)
        self._aside: dict[object, threading.Lock] = {}  # by part of the store; "upkeep" of all
        part_of = parts_of(self._engine)
        self._parts: PartLines[Ticket] | None = None
        if part_of is not None:
            self._parts = PartLines(part_of, lambda: CommitLine(max(1, most - 1), self._commit))
        self._waiting = 0
        self._waiting_bytes = 0
        self._ended = False  # the lines accept no more tickets
        self._standing: list[Standing] = []
        self._gathered: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        if self._rates is not None:
            self._rates.start_anew()

    def run(self, batch: Sequence[Op]) -> list[Answer]:
        """Commit the operations and return their answers, blocking."""
        if not batch:
            return []
        if self._parts is not None and ops.is_upkeep(batch):
            return self.run_aside(batch)  # what waits in the line may wait for a part that hangs
        part = None if self._parts is None else self._parts.part_of(batch)
        if self._is_idle(part) or _renews(batch):
            answers = self._run_here(batch, part)
            if answers is not None:
                return answers
        ticket = Ticket(batch)
        ticket.event = threading.Lock()
        ticket.event.acquire()
        try:
            self._submit(ticket)
            ticket.event.acquire()
        except BaseException:
            self._abandon(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def _is_idle(self, part: int | None) -> bool:
        """Whether nothing waits that would go together with operations of this part."""
        if self._parts and part is not None:
            return not self._parts.waiting[part]
        return not (self._waiting or self._standing)

    def _run_here(self, batch: Sequence[Op], part: int | None) -> list[Answer] | None:
        """Commit the operations in the caller's thread, if that is possible now."""
        if not _claims(batch):
            line = self._renewals if _renews(batch) else self._line_at(part)
            return line.apply_if_free(lambda: self._apply_if_open(batch))
        # If the caller is interrupted right after the commit, the claimed jobs must be released. A
        # ticket of the committer thread records them too.
        if self._recording is None:
            return None
        recorded: list[Answer] = []
        try:
            return self._claims.apply_if_free(lambda: self._apply_if_open(batch, recorded))
        except BaseException:
            self.give_back(recorded)
            raise

    def run_aside(self, batch: Sequence[Op]) -> list[Answer]:
        """Like `run`, in the caller's thread and together with no others: they do not wait for
        this batch, and it does not wait for them. One at a time, of each part of the store. For
        operations that may have to wait for long, without claims."""
        part: object = None if self._parts is None else self._parts.part_of(batch)
        if ops.is_upkeep(batch):
            part = "upkeep"
        with self._aside.setdefault(part, threading.Lock()):
            return self._apply_if_open(batch)

    async def arun(self, batch: Sequence[Op], *, beside: bool = False) -> list[Answer]:
        """Commit the operations and return their answers. beside: claims among them do not wait
        for other claims."""
        return await self.submitted(batch, beside=beside) if batch else []

    def submitted(self, batch: Sequence[Op], *, beside: bool = False) -> Awaitable[list[Answer]]:
        """Submit operations, at least one. Returns what to await for their answers.

        A caller that leaves cancels the future, so that its operations are skipped if they have
        not started. Only claims need more than that, because jobs must be given back."""
        ticket = Ticket(batch)
        ticket.beside = beside
        return self._claimed(ticket) if ticket.claims else self._future_of(ticket)

    def _future_of(self, ticket: Ticket) -> asyncio.Future[list[Answer]]:
        ticket.loop = asyncio.get_running_loop()
        ticket.future = ticket.loop.create_future()
        self._submit(ticket)
        return ticket.future

    async def _claimed(self, ticket: Ticket) -> list[Answer]:
        """Submit claims, once this is awaited: a task that is cancelled before it begins must not
        claim anything."""
        future = self._future_of(ticket)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(ticket)
            raise

    def stand(self, claim: ops.Claim, now: Callable[[], float]) -> Standing:
        """Leave a claim to run together with an enqueue to its queues. Its future resolves once
        it has found something."""
        standing = Standing(claim, now)
        with self._lock:
            self._check_open()
            self._standing.append(standing)
        return standing

    async def withdraw(self, standing: Standing) -> list[Answer]:
        """Remove a standing claim, and return what it found, if it is just being answered."""
        with self._lock:
            if standing in self._standing:
                self._standing.remove(standing)
                return []
            standing.leaving = True
        assert standing.future is not None
        try:
            return await standing.future
        except asyncio.CancelledError:
            self._abandon(standing)
            raise

    def _join(self, batch: Sequence[Op]) -> list[Standing]:
        """Take the standing claims that may find something once these operations are applied."""
        queues = {spec.queue for op in batch for spec in op.adds}
        if not queues:
            return []
        with self._lock:
            joined = [one for one in self._standing if not queues.isdisjoint(one.queues)]
            for one in joined:
                self._standing.remove(one)
                one.taken_at = one.now()
                one.answers = []
        return joined

    def _part(self, joined: Sequence[Standing]) -> None:
        """Answer the standing claims that joined a batch; those that found nothing stay."""
        for one in joined:
            found = any(isinstance(answer, ops.Leased) and answer.jobs for answer in one.answers)
            with self._lock:
                stands_on = not (found or one.leaving or self._closed)
                if stands_on:
                    self._standing.append(one)
            if not stands_on:
                self._answer([one])

    def _apply(self, batch: Sequence[Op], into: list[Answer] | None = None) -> list[Answer]:
        """into: a list that gets the answers before they are committed."""
        answers = self._apply_counted(batch, into)
        if len(answers) != len(batch):
            raise OutcomeUnknown(
                f"the engine answered {len(answers):,} of {len(batch):,} operations; it is not "
                "known which of them were applied"
            )
        try:
            if self._rates is not None:
                self._rates.count(batch, answers)
            self._committed(batch, answers)
        except Exception:  # the batch is committed, so it must not be reported as failed
            log.exception("a callback after a commit failed")
        return answers

    def _apply_to(self, batch: Sequence[Op], into: list[Answer] | None) -> list[Answer]:
        if into is None or self._recording is None:
            return self._engine.apply(batch)
        self._recording.apply_to(batch, into)
        return into

    def _apply_counted(self, batch: Sequence[Op], into: list[Answer] | None) -> list[Answer]:
        """Apply a batch, and store the rates with it if it is time. Renewals wait for nothing."""
        if self._rates is None or _renews(batch):
            return self._apply_to(batch, into)
        if self._parts:  # the counts may belong to a part that is slow
            self._rates.store_apart(self._engine)
        also = [] if self._parts else self._rates.due(self._engine.read)
        if not also:
            return self._apply_to(batch, into)
        stored = False
        try:
            answers = self._apply_to([*batch, *also], into)
            stored = all(isinstance(answer, ops.Ok) for answer in answers[len(batch) :])
        except (StoreRejected, StoreReadOnly):
            # Nothing was changed. If the rates are the cause, the batch must still be applied.
            return self._apply_to(batch, into)
        finally:
            if stored:
                self._rates.stored()
            else:
                self._rates.lost()
        return answers[: len(batch)]

    def _apply_if_open(self, batch: Sequence[Op], into: list[Answer] | None = None) -> list[Answer]:
        self._check_open()
        return self._apply(batch, into)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this queue handle was closed")

    def _submit(self, ticket: Ticket) -> None:
        if self._parts and not ticket.renews:
            ticket.part = self._parts.part_of(ticket.batch)
        with self._lock:
            if self._closed:
                self._check_open()
            full = self._waiting >= self._max_waiting or self._waiting_bytes >= self._max_bytes
            if self._parts and not full:
                full = self._parts.is_full(
                    ticket.part,
                    self._max_waiting - self._waiting,
                    self._max_bytes - self._waiting_bytes,
                )
            if full and not (ticket.renews and self._waiting < 2 * self._max_waiting):
                raise Busy(
                    f"{self._waiting:,} operations ({self._waiting_bytes:,} bytes) are waiting to "
                    "be committed; try again later"
                )
            line = self._line_of(ticket)
            if not line.is_started:
                line.start()
            self._waiting += len(ticket.batch)
            self._waiting_bytes += ticket.bytes
            if self._parts:
                self._parts.count([ticket], 1)
            if ticket.loop is None:
                line.put([ticket])
            elif (gathered := self._gathered.get(ticket.loop)) is not None:
                gathered.append(ticket)
            else:
                self._drop_closed_loops()
                self._gathered[ticket.loop] = [ticket]
                ticket.loop.call_soon(self._submit_gathered, ticket.loop)

    def _submit_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Put what the tasks of a loop have submitted since its last iteration into the lines."""
        with self._lock:
            self._put_all(self._gathered.pop(loop, ()))

    def _put_all(self, tickets: Iterable[Ticket]) -> None:
        by_line: dict[CommitLine[Ticket], list[Ticket]] = {}
        for ticket in tickets:
            by_line.setdefault(self._line_of(ticket), []).append(ticket)
        for line, mine in by_line.items():
            line.put(mine)

    def _drop_closed_loops(self) -> None:
        """Forget the tickets of closed loops: nobody waits for them any more."""
        for loop in [one for one in self._gathered if one.is_closed()]:
            self._no_longer_wait(self._gathered.pop(loop))

    def _line_of(self, ticket: Ticket) -> CommitLine[Ticket]:
        if ticket.renews:
            return self._renewals
        if ticket.claims and not ticket.beside:
            return self._claims
        return self._line_at(ticket.part)

    def _line_at(self, part: int | None) -> CommitLine[Ticket]:
        return self._parts.of(part) if self._parts and part is not None else self._line

    def close(self) -> None:
        """Commit what was submitted, then stop."""
        with self._lock:
            self._closed = True
            for gathered in self._gathered.values():
                self._put_all(gathered)
            self._gathered.clear()
            left, self._standing = self._standing, []
        self._answer(left)
        if self._parts:
            self._parts.end()
        self._claims.end()  # before the other line: it may put claims to release there
        self._line.end()
        self._renewals.end()
        for aside in list(self._aside.values()):  # wait for those that are in progress
            with aside:
                pass
        while late := self._left_over():
            self._commit(late)
        if self._rates is not None:
            self._rates.store(self._engine)

    def _left_over(self) -> list[Ticket]:
        """Releases for callers that have left, submitted after the line was closed."""
        with self._lock:
            left = self._line.leftovers()
            self._ended = not left
        return left

    def _commit(self, tickets: list[Ticket]) -> None:
        with self._lock:
            self._no_longer_wait(tickets)
        # Not together with a part: a claim asks all, and what joins it would wait for each.
        self._commit_together(tickets, join=not any(one.part is not None for one in tickets))

    def _no_longer_wait(self, tickets: Sequence[Ticket]) -> None:
        self._waiting -= sum(len(ticket.batch) for ticket in tickets)
        self._waiting_bytes -= sum(ticket.bytes for ticket in tickets)
        if self._parts:
            self._parts.count(tickets, -1)

    def _commit_together(self, tickets: list[Ticket], *, join: bool) -> None:
        tickets = [ticket for ticket in tickets if not _has_left(ticket)]
        if not tickets:
            return
        pieces = [piece for ticket in tickets for piece in _pieces(ticket)]
        pieces.sort(key=_rank_of)
        batch: list[Op] = []
        for _, ticket, start, end in pieces:
            batch += ticket.batch[start:end]
        joined = self._join(batch) if join and self._standing else []
        pieces += [piece for one in joined for piece in _pieces(one)]
        batch += [op for one in joined for op in one.batch]
        try:
            answers = self._apply(batch)
        except Exception as error:
            self._part(joined)
            if (len(tickets) > 1 or joined) and _is_of_one(error):
                self._commit_apart(tickets)
                return
            for ticket in tickets:
                ticket.error = error
            self._answer(tickets)
            return
        at = 0
        for _, ticket, start, end in pieces:
            ticket.answers += answers[at : at + end - start]
            at += end - start
        self._answer(tickets)
        self._part(joined)

    def _commit_apart(self, tickets: list[Ticket]) -> None:
        """One call made a whole batch fail and nothing was applied: bisect the batch, so that only
        that call gets the error."""
        half = len(tickets) // 2
        self._commit_together(tickets[:half], join=False)
        self._commit_together(tickets[half:], join=False)

    def _answer(self, tickets: Sequence[Ticket]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.event is not None:
                ticket.event.release()
            if ticket.abandoned:
                self.give_back(ticket.answers)
            elif ticket.loop is not None:
                by_loop.setdefault(ticket.loop, []).append(ticket)
        for loop, mine in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._resolve, mine)
            except RuntimeError:  # the loop was closed while its tasks waited
                for ticket in mine:
                    self.give_back(ticket.answers)

    def _resolve(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            assert ticket.future is not None
            if ticket.future.done():
                self.give_back(ticket.answers)
            elif ticket.error is not None:
                ticket.future.set_exception(ticket.error)
            else:
                ticket.future.set_result(ticket.answers)

    def _abandon(self, ticket: Ticket) -> None:
        """The caller stopped waiting: skip its operations if they have not started."""
        ticket.abandoned = True
        self.give_back(ticket.answers)

    def give_back(self, answers: Sequence[Answer]) -> None:
        """Release the jobs claimed for a caller that is gone. A failure is only logged, because
        other callers must still get their answers; the leases then expire."""
        try:
            self._release_leases(answers)
        except Exception:
            log.warning("could not release the jobs of a caller that left", exc_info=True)

    def _release_leases(self, answers: Sequence[Answer]) -> None:
        found = [job for one in answers if isinstance(one, ops.Leased) for job in one.jobs]
        leases = [ops.Release(job.id, job.token) for job in found]
        if not leases:
            return
        with self._lock:
            if self._ended:
                self._apply(leases)
                return
            for part, some in self._by_part(leases).items():
                ticket = Ticket(some)
                ticket.part = part
                self._waiting += len(some)
                if self._parts:
                    self._parts.count([ticket], 1)
                line = self._line_of(ticket)
                line.put([ticket])
                if not self._closed:
                    line.start()

    def _by_part(self, batch: Sequence[Op]) -> dict[int | None, list[Op]]:
        """Operations by the line that commits them. The lines of parts end before the others."""
        if not self._parts or self._closed:
            return {None: list(batch)}
        by_part: dict[int | None, list[Op]] = {}
        for op in batch:
            by_part.setdefault(self._parts.part_of([op]), []).append(op)
        return by_part


def _has_left(ticket: Ticket) -> bool:
    """Whether nobody waits for the answers."""
    return ticket.abandoned or (ticket.future is not None and ticket.future.cancelled())


def _is_of_one(error: Exception) -> bool:
    """Whether a single operation made the batch fail, with nothing applied. Problems of the store
    affect all callers, and retrying them one by one would only take longer."""
    if isinstance(error, StoreError):
        return isinstance(error, StoreRejected)
    return not isinstance(error, Busy | Closed | Unauthorized)


def _claims(batch: Sequence[Op]) -> bool:
    return ops.Claim in map(type, ops.flat(batch))


def _renews(batch: Sequence[Op]) -> bool:
    return all(type(op) is ops.Extend for op in ops.flat(batch))


_COMMITTERS: weakref.WeakSet[Committer] = weakref.WeakSet()


def _in_child() -> None:
    for committer in list(_COMMITTERS):
        committer.start_anew()


os.register_at_fork(after_in_child=_in_child)
