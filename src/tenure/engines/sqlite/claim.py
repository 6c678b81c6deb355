"""Claims. Fetches what core.claim picks from, and leases what it picked.

Only jobs that can run are looked at: tenants with an open lane, in the order of their turns, and
lanes with a ready job and room, in the order of their heads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, groupby, pairwise, repeat
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from tenure.core.claim import InOrder, alike, pick, room_of
from tenure.core.limits import refilled
from tenure.core.moves import move, resume, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.sql.rows import CODES, LEASED, READY, with_rare
from tenure.engines.sqlite.counters import Head, LaneBook, QueueBook, TenantBook
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.model import ops, states
from tenure.model.job import NULL, Job, State
from tenure.model.ops import Answer
from tenure.model.tally import tally

# The transition of a ready job that is claimed. Expired jobs are handled separately.
_CLAIMED = states.plain(State.PENDING, states.Claimed)
_BEFORE_ALL: Head = (-(2**63), 0)

Row = tuple[Any, ...]
_SEQ, _PAYLOAD, _RARE = 1, 6, 7  # columns of a row

# What few jobs have: when they run, attempts, when they expire, unique key, options, errors.
Rare = tuple[int | None, int | None, int | None, str | None, str | None, str | None]
_EXPIRES_AT: Final = 2
_UNIQUE_KEY: Final = 3
_OPTIONS: Final = 4
_NONE: Rare = (None, None, None, None, None, None)
_decode_rare = msgspec.json.Decoder(Rare).decode


class Picks:
    """Picked jobs in order: the row of each, or only its head if it was not read yet, and its
    lane."""

    __slots__ = ("lanes", "rows")

    def __init__(self, rows: list[Row], lanes: list[LaneBook]) -> None:
        self.rows: list[Row] = rows
        self.lanes: list[LaneBook] = lanes

    def part(self, start: int, end: int) -> Picks:
        return Picks(self.rows[start:end], self.lanes[start:end])


# path: a claim
def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Run adjacent claims, those that look for the same jobs together."""
    answers: list[Answer] = []
    for calls in alike(batch):
        queues = [book for name in dict.fromkeys(calls[0].queues) if (book := tx.books.queue(name))]
        # Run due maintenance first: no job may join a lane after jobs were picked from it.
        left = [
            _sweep_if_due(tx, queue, min(tx.most_swept * len(calls), tx.may_sweep))
            for queue in sorted(queues, key=attrgetter("name"))
        ]
        # Expired jobs that are still in line must not use up the room of the next claim.
        for together in [[call] for call in calls] if any(left) else [calls]:
            answers += _claim(tx, queues, together)
    return answers


def _claim(
    tx: Transaction, queues: Sequence[QueueBook], calls: Sequence[ops.Claim]
) -> Iterator[Answer]:
    tx.shared = len(calls) > 1
    tx.upcoming.clear()
    tx.books.flush()
    op, picks = calls[0], Picks([], [])
    ends = list(accumulate((call.limit for call in calls), initial=0))
    pick((Source(tx, queue, op.not_groups, picks) for queue in queues), op.tenant, ends[-1])
    dealt = [picks.part(start, end) for start, end in pairwise(ends)] if tx.shared else [picks]
    tokens = iter(tx.next_tokens(sum(bool(mine.rows) for mine in dealt)) if picks.rows else ())
    for op, mine in zip(calls, dealt, strict=True):
        yield ops.Leased(_lease(tx, op, mine, next(tokens)) if mine.rows else [])
    settle(tx)


class Source:
    """A queue to pick from. Implements core.claim.Source.

    Books that change here are saved with the counts of the jobs picked.
    """

    def __init__(
        self, tx: Transaction, book: QueueBook, not_groups: Sequence[str], picks: Picks
    ) -> None:
        self.served: int = book.served
        self._tx = tx
        self._book = book
        self._not_groups = frozenset(not_groups)
        self._picks = picks
        self._limit = book.limit
        self._tokens = refilled(book.tokens, tx.now - book.tokens_at, self._limit)
        self._share = 0  # how many jobs a tenant will get, roughly
        self._first: dict[TenantBook, LaneBook | None] = {}  # lanes, if known
        self._jobs: dict[TenantBook, InOrder[LaneCursor] | None] = {}  # None: only its head

    def room(self) -> int:
        return room_of(self._limit, self._book.counts[LEASED], self._tokens)

    def tenants(self, room: int) -> Iterator[TenantBook]:
        books, db, offset = self._tx.books, self._tx.db, 0
        while True:
            tenants = books.tenants(db.ids("tenants_in_turn", self._book.id, room, offset))
            first = {tenant: tenant.only_lane() for tenant in tenants}
            unknown = [tenant.id for tenant, lane in first.items() if lane is None]
            if len(unknown) > 1:
                lanes = map(books.lane_of_row, db.all("first_lanes", listed(unknown)))
                first.update((lane.tenant, lane) for lane in lanes)
            self._share = room // max(1, len(tenants))
            self._first.update(first)
            yield from tenants
            if len(tenants) < room:
                return
            offset += room

    # path: a claim for one tenant
    def tenant(self, name: str, room: int) -> TenantBook | None:
        tenant = self._tx.books.tenant(self._book.name, name)
        if tenant is None or tenant.room <= 0:
            return None
        self._share, self._first[tenant] = room, tenant.only_lane()
        return tenant

    def take(self, tenant: TenantBook, most: int) -> int:
        jobs = self._jobs
        if self._share <= 1 and tenant not in jobs:
            lane = self._first[tenant]
            if lane is not None and lane.line and lane.group not in self._not_groups:
                # Its first job is known, and probably the only one that it gets.
                self._picks.rows.append(lane.line[0])
                self._picks.lanes.append(lane)
                jobs[tenant] = None
                return 1
        return (jobs.get(tenant) or self._open(tenant)).take(most)

    def _open(self, tenant: TenantBook) -> InOrder[LaneCursor]:
        lanes = self._lanes(tenant, self._first[tenant])
        jobs = InOrder(lanes, LaneCursor.place, LaneCursor.take, tenant.room)
        if tenant in self._jobs:
            jobs.take(1)  # its head, which was picked before
            self._picks.rows.pop()
            self._picks.lanes.pop()
        self._jobs[tenant] = jobs
        return jobs

    def spend(self, count: int) -> None:
        book = self._book
        book.served = self.served
        if book.rate is not None:
            book.tokens = self._tokens - count * book.per_ms
            book.tokens_at = max(book.tokens_at, self._tx.now)

    def _lanes(self, tenant: TenantBook, first: LaneBook | None) -> Iterator[LaneCursor]:
        """The tenant's open lanes in the order of their heads."""
        share, size, after, left = self._share, 2, _BEFORE_ALL, tenant.open_lanes
        if first is not None:
            assert first.head is not None
            if first.group not in self._not_groups:
                yield LaneCursor(self._tx, first, share, self._picks)
            size, after, left = max(2, share), first.head, left - 1
        while left > 0:
            rows = self._tx.db.all("lanes_by_head", tenant.id, *after, size)
            for lane in map(self._tx.books.lane_of_row, rows):
                if lane.group not in self._not_groups:
                    chunk = share if len(rows) == 1 else max(1, share // size)
                    yield LaneCursor(self._tx, lane, chunk, self._picks)
            if len(rows) < size:
                return
            after, size, left = (rows[-1][3], rows[-1][4]), max(2, share), left - len(rows)


class LaneCursor:
    """The ready jobs of a lane in order, fetched on demand."""

    def __init__(self, tx: Transaction, lane: LaneBook, chunk: int, picks: Picks) -> None:
        assert lane.head is not None
        self._tx = tx
        self._lane = lane
        self._picks = picks
        self._head: Head = lane.head  # of the job that is next, or was taken last
        self._is_taken = False
        self._left = min(lane.counts[READY], lane.room)
        self._chunk = chunk
        self._rows: deque[Row] = deque()

    def place(self) -> Head | None:
        """The head, or None if no more may be taken."""
        if self._is_taken:
            if self._left > 0 and not self._rows:
                self._fetch(self._head, self._left)
            if self._left <= 0 or not self._rows:
                return None
            self._head, self._is_taken = self._rows[0][:2], False
        return self._head

    # path: the first jobs of a lane
    def take(self, most: int) -> int:
        """Pick the first jobs, or as many as there are. Returns how many. If one is all that is
        needed so far, only its head is picked."""
        lane, rows, upcoming = self._lane, self._rows, self._tx.upcoming
        most = min(most, self._left)
        if most > 1 and len(rows) < most:
            rows.clear()
            self._chunk = most + 1  # one more, which will be the head of the lane
        if not rows and self._chunk > 1:
            self._fetch((self._head[0], self._head[1] - 1), self._left + (most > 1))
        taken = [rows.popleft() for _ in range(min(most, len(rows)))] or [self._head]
        self._left -= len(taken)
        self._head, self._is_taken = taken[-1][:2], True
        if rows:
            upcoming[lane] = rows[0][:2]
        else:
            upcoming.pop(lane, None)
        self._picks.rows += taken
        self._picks.lanes += [lane] * len(taken)
        return len(taken)

    def _fetch(self, after: Head, most: int) -> None:
        wanted = (self._lane.id, *after, min(self._chunk, most))
        tx = self._tx
        self._rows.extend(_packed(tx, wanted) if tx.shared else tx.db.all("next_in_lane", *wanted))
        self._chunk *= 2


# path: jobs read as one value
def _packed(tx: Transaction, wanted: tuple[int, ...]) -> list[Row]:
    """The same rows, fetched in one step. Large payloads do not fit and are fetched separately."""
    rows = tx.db.packed("next_in_lane_packed", *wanted)
    large = [row[_SEQ] for row in rows if row[_PAYLOAD] is None]
    if large:
        payloads = dict(tx.db.all("payloads", listed(large)))
        rows = [
            (*row[:_PAYLOAD], payloads.get(row[_SEQ], row[_PAYLOAD]), row[_RARE]) for row in rows
        ]
    return rows


def _lease(tx: Transaction, op: ops.Claim, picks: Picks, token: int) -> list[Job]:
    until = tx.now + op.lease_ms
    picks = _without_expired(tx, _with_rows(tx, picks))
    rows, lanes = picks.rows, picks.lanes
    if not rows:
        return []
    counts = tally(lanes)
    upcoming = {} if tx.shared else tx.upcoming
    for lane, n in counts.items():
        lane.first_left(n, upcoming.get(lane))
    tx.books.move_all(counts.items(), READY, LEASED)
    _, seqs, ids, _, _, _, _, rare_texts = zip(*rows, strict=True)
    if _delete_ready(tx, picks, seqs, len(counts)) != len(rows):
        raise RuntimeError(
            f"the books of {', '.join(op.queues)} do not match the queued jobs; nothing was "
            "claimed: run `tenure reconcile QUEUE`, and report this"
        )
    for queue, mine in _by_queue(op, lanes, seqs):
        tx.db.named(
            "lease_jobs",
            {
                "queue": queue,
                "leased": CODES[_CLAIMED.target][0],
                "attempts": _CLAIMED.attempts,
                "until": until,
                "token": token,
                "worker": op.worker,
                "now": tx.now,
                "seqs": listed(mine),
            },
        )
    rares = [_NONE if text is None else _decode_rare(text) for text in rare_texts]
    keys = [rare[_UNIQUE_KEY] for rare in rares]
    places = zip(seqs, [lane.id for lane in lanes], keys, repeat(token))
    tx.books.places.update(zip(ids, places, strict=True))
    now, worker, more, leased = tx.now, op.worker, _CLAIMED.attempts, State.LEASED
    jobs = [
        Job(id, queue, leased, Raw(payload), priority, created_at if run_at is None else run_at,
            created_at, now, (attempts or 0) + more, max_attempts, tenant, group, kind, now, until,
            token, worker, None, expires_at, unique_key, None, None, (), "wait", None, None, NULL)
        for (priority, _, id, created_at, max_attempts, kind, payload, _), (queue, tenant, group),
            (run_at, attempts, expires_at, unique_key, _, _)
            in zip(rows, [lane.name for lane in lanes], rares, strict=True)
    ]  # fmt: skip
    if rares.count(_NONE) == len(jobs):
        return jobs
    return [
        with_rare(job, *rare[_OPTIONS:]) if rare[_OPTIONS:] != (None, None) else job
        for job, rare in zip(jobs, rares, strict=True)
    ]


def _by_queue(
    op: ops.Claim, lanes: Sequence[LaneBook], seqs: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """The jobs of each queue."""
    if len(op.queues) == 1:
        yield lanes[0].tenant.queue.id, list(seqs)
        return
    for queue, mine in groupby(zip(lanes, seqs, strict=True), lambda one: one[0].tenant.queue.id):
        yield queue, [seq for _, seq in mine]


def _delete_ready(tx: Transaction, picks: Picks, seqs: Sequence[int], lanes: int) -> int:
    """Take jobs out of the lanes that they were picked from. Returns how many were there."""
    if lanes * 2 > len(seqs):
        return tx.db.run("delete_ready_jobs", listed(seqs))
    # A lane's jobs are picked from its head: none of those up to the last one stays ready.
    last = dict(zip(picks.lanes, picks.rows, strict=True))
    taken = [(lane.id, row[0], row[_SEQ]) for lane, row in last.items()]
    return tx.db.many("delete_ready_up_to", taken)


def _with_rows(tx: Transaction, picks: Picks) -> Picks:
    """Read the rows of jobs that were picked by their head only."""
    bare = [row[_SEQ] for row in picks.rows if len(row) == 2]
    if not bare:
        return picks
    found = tx.db.all("jobs_to_lease", listed(bare))
    if len(found) == len(picks.rows):  # in the same order
        return Picks(found, picks.lanes)
    rows = {row[_SEQ]: row for row in found}
    return Picks([rows.get(row[_SEQ], row) for row in picks.rows], picks.lanes)


def _without_expired(tx: Transaction, picks: Picks) -> Picks:
    """Bury expired jobs that the sweep did not get to."""
    late = {
        row[_SEQ]
        for row in picks.rows
        if row[_RARE] is not None
        and (expires_at := _decode_rare(row[_RARE])[_EXPIRES_AT]) is not None
        and expires_at <= tx.now
    }
    if not late:
        return picks
    for row in tx.load_seqs(late):
        move(tx, row, states.Claimed())
    kept = [row[_SEQ] not in late for row in picks.rows]
    return Picks([*compress(picks.rows, kept)], [*compress(picks.lanes, kept)])


def _sweep_if_due(tx: Transaction, queue: QueueBook, limit: int) -> bool:
    """Run due maintenance of a queue, if any, and go on telling children about their parents.
    Returns whether more jobs may have expired."""
    ((untold, due),) = tx.db.named("anything_over", {"queue": queue.id, "now": tx.now})
    if untold:
        resume(tx)
    if not due or limit <= 0:
        return bool(due)
    swept = sweep(tx, queue.name, Swept(limit, limit, limit))
    tx.may_sweep -= sum(swept)
    return swept.expired == limit
