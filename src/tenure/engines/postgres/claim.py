"""Claims. Fetches what core.claim picks from, and leases what it picked.

The books are locked first, so that nothing changes while deciding. Candidates are fetched locked,
each tenant's in order and within the limits of the tenant and its lanes. All picked jobs are then
leased in one statement.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from tenure.core.claim import alike, pick, room_of
from tenure.core.limits import refilled
from tenure.core.moves import move, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.postgres.session import Sent
from tenure.engines.postgres.transaction import Transaction
from tenure.engines.sql.rows import CODES, leased_job
from tenure.model import ops, states
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Limit

# The transition of a ready job that is claimed. Expired jobs are handled separately.
_CLAIMED = states.plain(State.PENDING, states.Claimed)
_STARTED_AT = 8  # column of a leased row


class QueueBook:
    """A row of queues, while its books are locked."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.id, self.name, self.paused, self.max_leased, self.rate, self.per_ms, self.tokens,
            self.tokens_at, self.served, self.leased, self.now, self.due, self.taken, self.beside,
        ) = row  # fmt: skip
        self.picked = 0  # how many of its jobs
        self._before = self.saved

    @property
    def saved(self) -> tuple[int, int]:
        return self.tokens, self.tokens_at

    @property
    def changed(self) -> bool:
        return self.saved != self._before

    @property
    def limit(self) -> Limit:
        bounds = (self.max_leased, self.rate, self.per_ms, None)
        return Limit(self.name, None, None, *bounds, self.paused)

    def refilled(self, now: int) -> int:
        """The tokens of its rate."""
        return refilled(self.tokens, now - self.tokens_at, self.limit)

    def spend(self, now: int) -> None:
        """Take the tokens of the jobs picked, which were leased at `now`."""
        if self.rate is not None and self.picked:
            self.tokens = self.refilled(now) - self.picked * self.per_ms
            self.tokens_at = max(self.tokens_at, now)


class Pick(NamedTuple):
    """A job to lease, and its place."""

    seq: int
    lane: int
    expires_at: int | None
    queue: QueueBook
    line: TenantJobs
    group: str


Candidate = tuple[int, str, int, int | None]  # lane, group, seq, expires_at


class TenantJobs:
    """The candidates of a tenant, in order."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.id, self.name, self.turn, self.stride = row[:4]
        self.share = row[8]
        self.rows: list[Candidate] = []
        self.taken: dict[int, int] = {}  # the lanes of the jobs taken, by seq
        self.may_have_more = False

    def fill(self, rows: list[Candidate]) -> None:
        """Add the candidates, except those already taken. If as many came as were requested, there
        may be more.

        The query returns as many as there is room for, in total and per lane. Jobs already taken
        count, whether they are among the rows or not: another transaction may have released an
        earlier one.
        """
        self.may_have_more = len(rows) >= self.share
        room = Counter(row[0] for row in rows)
        room.subtract(self.taken.values())
        self.rows = []
        for row in rows:
            in_all = len(rows) - len(self.taken) - len(self.rows)
            if row[2] not in self.taken and room[row[0]] > 0 and in_all > 0:
                room[row[0]] -= 1
                self.rows.append(row)

    def take(self, n: int) -> list[Candidate]:
        taken, self.rows = self.rows[:n], self.rows[n:]
        self.taken.update({row[2]: row[0] for row in taken})
        return taken


# path: a claim
def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Run adjacent claims, those that look for the same jobs together. The books of all their
    queues are locked at once. A queue skipped then because it was empty stays skipped: locking it
    later could deadlock."""
    answers: list[Answer] = []
    names = list(dict.fromkeys(name for op in batch for name in op.queues))
    waiting = deque(alike(batch))
    swept = left = False
    while waiting:
        calls = waiting.popleft()
        tx.forget()
        asked = [name for name in dict.fromkeys(calls[0].queues) if name in names]
        books, first, more = _open(tx, calls, names, asked, swept)
        left = left or more
        if left:  # expired jobs still in line must not use up the room of the next claim
            waiting.extendleft([call] for call in reversed(calls[1:]))
            calls, first = calls[:1], None
        names, swept = [name for name in names if name in books], True
        picked = _pick(tx, calls, [books[name] for name in asked if name in books], first)
        hand = iter(picked)
        dealt = [list(islice(hand, op.limit)) for op in calls]
        answers += _lease(tx, calls, dealt)
        for queue in books.values():
            queue.spend(tx.now)
            if queue.changed:
                tx.db.send("save_queue", *queue.saved, queue.id)
    return answers


def _open(
    tx: Transaction, calls: Sequence[ops.Claim], names: list[str], asked: list[str], swept: bool
) -> tuple[dict[str, QueueBook], Sent | None, bool]:
    """Lock the books of these queues after running due maintenance, and at the same time request
    the candidates of the first queue asked for. The last value returned is whether more jobs may
    have expired than were handled."""
    left = False
    while True:
        sent = tx.db.send("open_books", names, tx.given, swept, True)
        limit = sum(call.limit for call in calls)
        first = _send(tx, asked[0], calls[0], 0, limit) if asked else None
        books = {row[1]: QueueBook(row) for row in sent.fetchall()}
        due = [book for _, book in sorted(books.items()) if book.due]
        if not due:
            taken = {n: book for n, book in books.items() if book.taken or book.beside}
            return taken, first, left
        most = tx.most_swept * len(calls)
        for book in due:
            tx.now, tx.queues[book.name] = book.now, book.id
            left = sweep(tx, book.name, Swept(most, most, most)).expired == most or left
        tx.reread()
        swept = True


def _pick(
    tx: Transaction, calls: Sequence[ops.Claim], queues: list[QueueBook], first: Sent | None
) -> list[Pick]:
    op, picked = calls[0], list[Pick]()
    sources = (
        Source(tx, queue, op, first if queue.name == op.queues[0] else None, picked)
        for queue in queues
    )
    pick(sources, op.tenant, sum(call.limit for call in calls))
    return picked


def _send(
    tx: Transaction, queue: str, op: ops.Claim, past: int, most: int, share: int | None = None
) -> Sent:
    return tx.db.send("candidates", queue, op.tenant, list(op.not_groups), past, most, share)


class Source:
    """A queue to pick from. Implements core.claim.Source."""

    def __init__(
        self, tx: Transaction, book: QueueBook, op: ops.Claim, first: Sent | None, into: list[Pick]
    ) -> None:
        self.served: int = book.served
        self._tx = tx
        self._book = book
        self._op = op
        self._first = first  # the first candidates, if they were requested
        self._into = into
        self._room = 0
        tx.now = book.now

    def room(self) -> int:
        book = self._book
        return room_of(book.limit, book.leased, book.refilled(book.now))

    def tenants(self, room: int) -> Iterator[TenantJobs]:
        past, is_last = 0, False
        while not is_last:
            lines = self._read(past, room)
            yield from (line for line in lines if line.rows)
            past += len(lines)
            is_last = len(lines) < room or self._book.beside

    def tenant(self, name: str, room: int) -> TenantJobs | None:
        return next((line for line in self._read(0, room) if line.name == name), None)

    def _read(self, past: int, room: int) -> list[TenantJobs]:
        """Candidates of the next tenants in turn, or of the one that the claim asks for. While
        another transaction holds the books, these are unlocked jobs of the only lane."""
        tx, queue, op = self._tx, self._book.name, self._op
        self._room = room
        if self._book.beside:
            rows = tx.db.all("candidates_beside", queue, room)
            return _lines([row for row in rows if row[5] not in op.not_groups])
        sent, self._first = self._first, None
        return _lines((sent or _send(tx, queue, op, past, room)).fetchall())

    def take(self, tenant: TenantJobs, most: int) -> int:
        """More candidates are fetched as needed: jobs that others had locked the first time may be
        free the second."""
        if len(tenant.rows) < most and tenant.may_have_more:
            tenant.share = len(tenant.taken) + self._room
            only = replace(self._op, tenant=tenant.name)
            found = _send(self._tx, self._book.name, only, 0, 1, tenant.share).fetchall()
            tenant.fill(_candidates(found))
        rows = tenant.take(most)
        self._into += [
            Pick(seq, lane, at, self._book, tenant, group) for lane, group, seq, at in rows
        ]
        return len(rows)

    def spend(self, count: int) -> None:
        book = self._book
        book.served, book.picked = self.served, count
        if book.beside and self._op.tenant is None:
            self._tx.lane(book.id, self._into[-1].lane).served += count


def _lines(rows: Sequence[tuple[Any, ...]]) -> list[TenantJobs]:
    lines: list[TenantJobs] = []
    for _, run in groupby(rows, key=itemgetter(0)):
        mine = list(run)
        lines.append(TenantJobs(mine[0]))
        lines[-1].fill(_candidates(mine))
    return lines


def _candidates(rows: Sequence[tuple[Any, ...]]) -> list[Candidate]:
    return [row[4:8] for row in rows if row[6] is not None]


def _lease(tx: Transaction, calls: Sequence[ops.Claim], dealt: list[list[Pick]]) -> list[Answer]:
    """Lease the jobs of each call under a token of its own. Bury expired jobs that the sweep did
    not get to."""
    busy = [(call, mine) for call, mine in zip(calls, dealt, strict=True) if mine]
    fresh = [
        (n, pick)
        for n, (_, mine) in enumerate(busy, 1)
        for pick in mine
        if pick.expires_at is None or pick.expires_at > tx.now
    ]
    found: dict[int, tuple[Any, ...]] = {}
    if busy:
        lanes = {pick.lane: pick for _, mine in busy for pick in mine}
        counts = Counter(pick.lane for _, pick in fresh)
        turns = [
            (None, None)
            if calls[0].tenant is not None or pick.queue.beside
            else (pick.line.turn, pick.queue.served)
            for pick in lanes.values()
        ]
        rows = tx.db.all(
            "lease", tx.given, [pick.seq for _, pick in fresh], [n for n, _ in fresh],
            [call.worker for call, _ in busy], [call.lease_ms for call, _ in busy],
            CODES[_CLAIMED.target][0], _CLAIMED.attempts,
            [pick.queue.id for pick in lanes.values()], list(lanes),
            [counts[lane] for lane in lanes],
            [turn for turn, _ in turns], [last for _, last in turns],
        )  # fmt: skip
        found = {row[0]: row for row in rows}
        if len(found) != len(fresh):
            raise RuntimeError("a claim picked a job it had not locked; nothing was claimed")
        if rows:
            tx.now = rows[0][_STARTED_AT]
    late = [pick.seq for _, mine in busy for pick in mine if pick.seq not in found]
    if late:
        for row in tx.load_seqs(late):
            move(tx, row, states.Claimed())
        settle(tx)
        tx.flush()
    return [
        ops.Leased([_job(found[pick.seq], pick) for pick in mine if pick.seq in found])
        for mine in dealt
    ]


def _job(row: tuple[Any, ...], pick: Pick) -> Job:
    return leased_job(row[:-2], pick.queue.name, pick.line.name, pick.group)
