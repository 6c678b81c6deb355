"""Claim: tenants take turns, each tenant's jobs in order, within all limits.

Only jobs that can run are looked at: tenants with an open lane, in the order of their turns, and
lanes with a ready job and room, in the order of their heads.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, groupby, islice, pairwise, repeat
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

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

# A tenant with something to claim; how many jobs it will get, roughly; its first lane, if known.
Waiting = tuple[TenantBook, int, LaneBook | None]
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

    def add(self, rows: list[Row], lanes: list[LaneBook]) -> None:
        self.rows += rows
        self.lanes += lanes

    def part(self, start: int, end: int) -> Picks:
        return Picks(self.rows[start:end], self.lanes[start:end])


def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Run adjacent claims. Those that differ only in worker, lease and limit are picked together,
    and the jobs are distributed in order."""
    answers: list[Answer] = []
    for _, run in groupby(batch, key=lambda op: (op.queues, op.tenant, op.not_groups)):
        calls = list(run)
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
    ends = list(accumulate((op.limit for op in calls), initial=0))
    picks = _pick(tx, queues, calls[0], ends[-1])
    dealt = [picks.part(start, end) for start, end in pairwise(ends)] if tx.shared else [picks]
    tokens = iter(tx.next_tokens(sum(bool(mine.rows) for mine in dealt)) if picks.rows else ())
    for op, mine in zip(calls, dealt, strict=True):
        yield ops.Leased(_lease(tx, op, mine, next(tokens)) if mine.rows else [])
    settle(tx)


def _pick(tx: Transaction, queues: Sequence[QueueBook], op: ops.Claim, limit: int) -> Picks:
    tx.books.flush()
    picks = Picks([], [])
    for queue in queues:
        left = limit - len(picks.rows)
        if not left:
            break
        tokens = refilled(queue.tokens, tx.now - queue.tokens_at, queue.limit)
        room = 0 if queue.paused else min(left, _room(queue, tokens))
        if room <= 0:
            continue
        serve = _in_turns if op.tenant is None else _of_tenant
        found = serve(tx, queue, op, room)
        if queue.rate is not None and found.rows:
            queue.tokens = tokens - len(found.rows) * queue.per_ms
            queue.tokens_at = max(queue.tokens_at, tx.now)
            tx.books.touch_queue(queue)
        picks.add(found.rows, found.lanes)
    return picks


def _room(queue: QueueBook, tokens: int) -> int:
    """How many more jobs the queue's own limits allow, with these tokens of its rate."""
    room = 2**31
    if queue.max_leased is not None:
        room = queue.max_leased - queue.counts[LEASED]
    if queue.rate is not None:
        room = min(room, tokens // queue.per_ms)
    return room


def _in_turns(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> Picks:
    """Repeatedly serve the tenant that was served least."""
    picks = Picks([], [])
    waiting = _tenants(tx, queue, room)
    not_groups = frozenset(op.not_groups)
    turns: list[tuple[int, str, Waiting, TenantJobs | None]] = []  # of those served before
    fresh: Waiting | None = None  # the next of those that were not
    left, served = room, queue.served
    while left > 0:
        if fresh is None:
            fresh = next(waiting, None)
        if fresh is not None and (not turns or _is_before(fresh[0], turns[0])):
            one, line, fresh = fresh, None, None
        elif turns:
            _, _, one, line = heapq.heappop(turns)
            if line is None:
                line = TenantJobs(tx, not_groups, *one)
                line.take(1, Picks([], []))  # its head, which was picked before
        else:
            break
        tenant, share, lane = one
        if line is None and share <= 1 and lane and lane.line and lane.group not in not_groups:
            # Its first job is known, and probably the only one that it gets.
            picks.rows.append(lane.line[0])
            picks.lanes.append(lane)
            got = 1
        else:
            line = line or TenantJobs(tx, not_groups, *one)
            fresh = fresh or next(waiting, None)
            alone = not turns and fresh is None
            got = line.take(left if alone else 1, picks)
        if not got:
            continue
        left -= got
        turn, stride = tenant.turn, tenant.stride
        served = (turn if turn > served else served + 1) + (got - 1) * stride
        tenant.turn = served + stride
        tx.books.touch_tenant(tenant)
        heapq.heappush(turns, (tenant.turn, tenant.name, one, line))
    if left < room:
        queue.served = served
        tx.books.touch_queue(queue)
    return picks


def _is_before(tenant: TenantBook, served: tuple[int, str, Waiting, TenantJobs | None]) -> bool:
    """Whether a tenant that was not served yet has its turn before one that was."""
    turn = served[0]
    return tenant.turn < turn or (tenant.turn == turn and tenant.name < served[1])


def _tenants(tx: Transaction, queue: QueueBook, room: int) -> Iterator[Waiting]:
    """Tenants with an open lane and room, in the order of their turns."""
    offset = 0
    while True:
        tenants = tx.books.tenants(tx.db.ids("tenants_in_turn", queue.id, room, offset))
        first = [tenant.only_lane() for tenant in tenants]
        unknown = [tenant.id for tenant, lane in zip(tenants, first, strict=True) if lane is None]
        if len(unknown) > 1:
            lanes = map(tx.books.lane_of_row, tx.db.all("first_lanes", listed(unknown)))
            found = {lane.tenant.id: lane for lane in lanes}
            first = [lane or found[tenant.id] for tenant, lane in zip(tenants, first, strict=True)]
        share = room // max(1, len(tenants))
        yield from zip(tenants, repeat(share), first)
        if len(tenants) < room:
            return
        offset += room


def _of_tenant(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> Picks:
    """Jobs of a single tenant. Does not count as its turn."""
    picks = Picks([], [])
    tenant = tx.books.tenant(queue.name, op.tenant or "")
    if tenant is not None:
        first = tenant.only_lane()
        TenantJobs(tx, frozenset(op.not_groups), tenant, room, first).take(room, picks)
    return picks


class LaneCursor:
    """The ready jobs of a lane in order, fetched on demand."""

    def __init__(self, lane: LaneBook, chunk: int) -> None:
        assert lane.head is not None
        self.lane = lane
        self.head: Head = lane.head
        self.left = min(lane.counts[READY], lane.room)
        self._chunk = chunk
        self._rows: deque[Row] = deque()

    def __lt__(self, other: LaneCursor) -> bool:
        return self.head < other.head

    def take(self, tx: Transaction) -> Row:
        """The first job: its row, or only its head if it is the only one needed so far."""
        self.left -= 1
        tx.upcoming.pop(self.lane, None)
        if not self._rows and self._chunk > 1:
            self._fetch(tx, (self.head[0], self.head[1] - 1), self.left + 1)
        return self._rows.popleft() if self._rows else self.head

    def next(self, tx: Transaction) -> bool:
        """Advance to the next job. Returns False if the lane has no more."""
        if self.left > 0 and not self._rows:
            self._fetch(tx, self.head, self.left)
        if self.left <= 0 or not self._rows:
            return False
        self.head = self._rows[0][0], self._rows[0][1]
        return True

    def take_many(self, tx: Transaction, n: int) -> list[Row]:
        """The first `n` jobs, or as many as the lane has."""
        n = min(n, self.left)
        if len(self._rows) < n:
            self._rows.clear()
            self._chunk = n + 1  # one more, which will be the head of the lane
            self._fetch(tx, (self.head[0], self.head[1] - 1), n + 1)
        self.left -= n
        taken = [*islice(self._rows, n)]
        self._rows = deque(islice(self._rows, n, None))
        if taken:
            self.head = taken[-1][0], taken[-1][1]
        if self._rows:
            tx.upcoming[self.lane] = self._rows[0][0], self._rows[0][1]
        return taken

    def _fetch(self, tx: Transaction, after: Head, most: int) -> None:
        wanted = (self.lane.id, *after, min(self._chunk, most))
        self._rows.extend(_packed(tx, wanted) if tx.shared else tx.db.all("next_in_lane", *wanted))
        self._chunk *= 2


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


class TenantJobs:
    """A tenant's jobs in order of (priority, seq), across its open lanes, within its limits."""

    def __init__(
        self,
        tx: Transaction,
        not_groups: frozenset[str],
        tenant: TenantBook,
        share: int,
        first: LaneBook | None,
    ) -> None:
        self._tx = tx
        self._room = tenant.room
        self._lanes = _lanes(tx, tenant, not_groups, share, first)  # in the order of their heads
        self._fresh: LaneCursor | None = None  # the next of them, if already fetched
        self._cursors: list[LaneCursor] = []
        self._used: LaneCursor | None = None  # last taken from, not advanced yet

    def take(self, n: int, picks: Picks) -> int:
        """Pick the first `n` jobs, or as many as there are. Returns how many."""
        wanted = n = min(n, self._room)
        while wanted > 0:
            cursor = self._first()
            if cursor is None:
                break
            if wanted > 1 and len(self._cursors) == 1 and self._peek() is None:
                rows = cursor.take_many(self._tx, wanted)
            else:
                rows = [cursor.take(self._tx)]
            picks.add(rows, [cursor.lane] * len(rows))
            wanted -= len(rows)
            self._used = cursor
        self._room -= n - wanted
        return n - wanted

    def _first(self) -> LaneCursor | None:
        """The lane whose head comes first."""
        if self._used is not None:
            if self._used.next(self._tx):
                heapq.heapreplace(self._cursors, self._used)
            else:
                heapq.heappop(self._cursors)
            self._used = None
        while True:
            # Lanes come in the order of their heads, so the first does not depend on the second.
            fresh = self._peek()
            if fresh is None or (self._cursors and self._cursors[0] < fresh):
                break
            heapq.heappush(self._cursors, fresh)
            self._fresh = None
            if len(self._cursors) == 1:
                break
        return self._cursors[0] if self._cursors else None

    def _peek(self) -> LaneCursor | None:
        if self._fresh is None:
            self._fresh = next(self._lanes, None)
        return self._fresh


def _lanes(
    tx: Transaction,
    tenant: TenantBook,
    not_groups: frozenset[str],
    share: int,
    first: LaneBook | None,
) -> Iterator[LaneCursor]:
    """The tenant's open lanes in the order of their heads."""
    size, after, left = 2, _BEFORE_ALL, tenant.open_lanes
    if first is not None:
        assert first.head is not None
        if first.group not in not_groups:
            yield LaneCursor(first, share)
        size, after, left = max(2, share), first.head, left - 1
    while left > 0:
        rows = tx.db.all("lanes_by_head", tenant.id, *after, size)
        for lane in map(tx.books.lane_of_row, rows):
            if lane.group not in not_groups:
                yield LaneCursor(lane, share if len(rows) == 1 else max(1, share // size))
        if len(rows) < size:
            return
        after, size, left = (rows[-1][3], rows[-1][4]), max(2, share), left - len(rows)


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
