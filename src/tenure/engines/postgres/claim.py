"""Claim: tenants take turns, each tenant's jobs in order, within all limits.

The books are locked first, so that nothing changes while deciding. Candidates are fetched locked,
each tenant's in order and within the limits of the tenant and its lanes. The turns are decided
here. All picked jobs are then leased in one statement.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from tenure.core.limits import refilled
from tenure.core.moves import move, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.postgres.db import Sent
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
        self._before = self.saved

    @property
    def saved(self) -> tuple[int, int]:
        return self.tokens, self.tokens_at

    @property
    def changed(self) -> bool:
        return self.saved != self._before

    def room(self, now: int) -> int:
        """How many more jobs the queue's own limits allow."""
        if self.paused:
            return 0
        room = 2**31 if self.max_leased is None else self.max_leased - self.leased
        if self.rate is not None:
            room = min(room, self._refilled(now) // self.per_ms)
        return int(room)

    def spend(self, n: int, now: int) -> None:
        """Take tokens from the bucket for `n` jobs leased at `now`."""
        if self.rate is not None:
            self.tokens = self._refilled(now) - n * self.per_ms
            self.tokens_at = max(self.tokens_at, now)

    def _refilled(self, now: int) -> int:
        limit = Limit(self.name, None, None, None, self.rate, self.per_ms)
        return refilled(self.tokens, now - self.tokens_at, limit)


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


def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Run adjacent claims. Those that differ only in worker, lease and limit are picked together,
    and the jobs are distributed in order. The books of all their queues are locked at once. A queue
    skipped then because it was empty stays skipped: locking it later could deadlock."""
    answers: list[Answer] = []
    names = list(dict.fromkeys(name for op in batch for name in op.queues))
    alike = groupby(batch, key=lambda op: (op.queues, op.tenant, op.not_groups))
    waiting = deque(list(run) for _, run in alike)
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
        spent = Counter(pick.queue.id for pick in picked)
        for queue in books.values():
            if spent[queue.id]:
                queue.spend(spent[queue.id], tx.now)
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
        first = _send(tx, asked[0], calls[0], 0, limit, None) if asked else None
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
    op, limit = calls[0], sum(call.limit for call in calls)
    picked: list[Pick] = []
    for n, queue in enumerate(queues):
        if len(picked) == limit:
            break
        tx.now = queue.now
        room = min(limit - len(picked), queue.room(tx.now))
        if room > 0:
            mine = first if n == 0 and queue.name == op.queues[0] else None
            picked += _of_queue(tx, queue, op, room, mine)
    return picked


def _send(
    tx: Transaction, queue: str, op: ops.Claim, past: int, most: int, share: int | None
) -> Sent:
    return tx.db.send("candidates", queue, op.tenant, list(op.not_groups), past, most, share)


def _of_queue(
    tx: Transaction, queue: QueueBook, op: ops.Claim, room: int, first: Sent | None
) -> list[Pick]:
    if queue.beside:
        return _beside(tx, queue, op, room)
    turns = Turns(tx, queue, op, room, first)
    picked: list[Pick] = []
    while len(picked) < room:
        line, alone = turns.next()
        if line is None:
            break
        n = room - len(picked) if alone or op.tenant is not None else 1
        rows = turns.take(line, n)
        picked += [Pick(seq, lane, at, queue, line, group) for lane, group, seq, at in rows]
        if rows and op.tenant is None:  # a claim of a single tenant does not count as its turn
            place = max(line.turn, queue.served + 1) + (len(rows) - 1) * line.stride
            queue.served, line.turn = place, place + line.stride
        if rows:
            turns.back(line)
    return picked


def _beside(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Pick]:
    """Pick jobs while another transaction holds the books: unlocked jobs of the only lane."""
    picked: list[Pick] = []
    not_groups = frozenset(op.not_groups)
    for line in _lines(tx.db.all("candidates_beside", queue.name, room)):
        wanted = op.tenant in (None, line.name)
        rows = [row for row in line.rows if wanted and row[1] not in not_groups]
        picked += [Pick(seq, lane, at, queue, line, group) for lane, group, seq, at in rows]
        if rows and op.tenant is None:
            tx.lane(queue.id, rows[0][0]).served += len(rows)
    return picked


class Turns:
    """The tenants of a queue that can be served, in the order of their turns."""

    def __init__(
        self, tx: Transaction, queue: QueueBook, op: ops.Claim, room: int, first: Sent | None
    ) -> None:
        self._tx = tx
        self._queue = queue
        self._op = op
        self._room = room
        self._heap: list[tuple[int, str, TenantJobs]] = []
        self._past = 0  # tenants read so far
        self._last: tuple[int, str] | None = None  # the turn and name of the last of them
        self._all = False
        self._first = first

    def next(self) -> tuple[TenantJobs | None, bool]:
        """The tenant whose turn it is, and whether it is the only one left."""
        while not self._all and (
            self._last is None or not self._heap or self._heap[0][:2] > self._last
        ):
            self._read_page()
        if not self._heap:
            return None, True
        line = heapq.heappop(self._heap)[2]
        return line, self._all and not self._heap

    def back(self, line: TenantJobs) -> None:
        """Put a tenant back in line."""
        heapq.heappush(self._heap, (line.turn, line.name, line))

    def take(self, line: TenantJobs, n: int) -> list[Candidate]:
        """The tenant's next jobs, at most `n`. More are fetched as needed: jobs that others had
        locked the first time may be free the second."""
        if len(line.rows) < n and line.may_have_more:
            line.share = len(line.taken) + self._room
            found = self._tx.db.all(
                "candidates", self._queue.name, line.name, list(self._op.not_groups), 0, 1,
                line.share,
            )  # fmt: skip
            line.fill([row[4:8] for row in found if row[6] is not None])
        return line.take(n)

    def _read_page(self) -> None:
        page = self._room
        sent, self._first = self._first, None
        if sent is None:
            sent = _send(self._tx, self._queue.name, self._op, self._past, page, None)
        lines = _lines(sent.fetchall())
        for line in lines:
            self._last = (line.turn, line.name)
            if line.rows:
                self.back(line)
        self._past += len(lines)
        self._all = len(lines) < page or self._op.tenant is not None


def _lines(rows: Sequence[tuple[Any, ...]]) -> list[TenantJobs]:
    lines: list[TenantJobs] = []
    for _, run in groupby(rows, key=itemgetter(0)):
        mine = list(run)
        lines.append(TenantJobs(mine[0]))
        lines[-1].fill([row[4:8] for row in mine if row[6] is not None])
    return lines


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
    return leased_job(row, pick.queue.name, pick.line.name, pick.group)
