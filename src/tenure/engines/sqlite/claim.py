"""Claim: tenants take turns, each tenant's jobs in order, within all limits.

Only jobs that can run are looked at: tenants with an open lane, in the order of their turns, and
lanes with a ready job and room, in the order of their heads.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from tenure.core.limits import refilled
from tenure.core.moves import move, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.sql.rows import CODES, LEASED, READY, with_rare
from tenure.engines.sqlite.counters import Head, LaneBook, QueueBook, TenantBook
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.model import ops, states
from tenure.model.job import NULL, Job, State
from tenure.model.ops import Answer

# The transition of a ready job that is claimed. Expired jobs are handled separately.
_CLAIMED = states.plain(State.PENDING, states.Claimed)
_BEFORE_ALL: Head = (-(2**63), 0)

# A tenant with something to claim; how many jobs it will get, roughly; its first lane, if known.
Waiting = tuple[TenantBook, int, LaneBook | None]
Picked = tuple[tuple[Any, ...], LaneBook]  # a job, as its row or its head, and its lane
_SEQ, _ID, _PAYLOAD, _RARE = 1, 2, 6, 7  # columns of a row

# What few jobs have: when they run, attempts, when they expire, unique key, options, errors.
Rare = tuple[int | None, int | None, int | None, str | None, str | None, str | None]
_EXPIRES_AT: Final = 2
_UNIQUE_KEY: Final = 3
_OPTIONS: Final = 4
_NONE: Rare = (None, None, None, None, None, None)
_decode_rare = msgspec.json.Decoder(Rare).decode


def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Run adjacent claims. Those that differ only in worker, lease and limit are picked together,
    and the jobs are distributed in order."""
    answers: list[Answer] = []
    for _, run in groupby(batch, key=lambda op: (op.queues, op.tenant, op.not_groups)):
        calls = list(run)
        queues = [book for name in dict.fromkeys(calls[0].queues) if (book := tx.books.queue(name))]
        # Run due maintenance first: no job may join a lane after jobs were picked from it.
        left = [
            _sweep_if_due(tx, queue, tx.most_swept * len(calls))
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
    picked = iter(_pick(tx, queues, calls[0], sum(op.limit for op in calls)))
    dealt = [list(islice(picked, op.limit)) for op in calls]
    tokens = iter(tx.next_tokens(sum(map(bool, dealt))) if dealt[0] else ())
    for op, mine in zip(calls, dealt, strict=True):
        yield ops.Leased(_lease(tx, op, mine, next(tokens)) if mine else [])
    settle(tx)


def _pick(tx: Transaction, queues: Sequence[QueueBook], op: ops.Claim, limit: int) -> list[Picked]:
    tx.books.flush()
    picked: list[Picked] = []
    for queue in queues:
        if len(picked) == limit:
            break
        room = 0 if queue.paused else min(limit - len(picked), _room(tx, queue))
        if room <= 0:
            continue
        serve = _in_turns if op.tenant is None else _of_tenant
        found = serve(tx, queue, op, room)
        if queue.rate is not None:
            queue.tokens -= len(found) * queue.per_ms
            tx.books.touch_queue(queue)
        picked.extend(found)
    return picked


def _room(tx: Transaction, queue: QueueBook) -> int:
    """How many more jobs the queue's own limits allow."""
    room = 2**31
    if queue.max_leased is not None:
        room = queue.max_leased - queue.counts[LEASED]
    if queue.rate is not None:
        queue.tokens = refilled(queue.tokens, tx.now - queue.tokens_at, queue.limit)
        queue.tokens_at = tx.now
        tx.books.touch_queue(queue)
        room = min(room, queue.tokens // queue.per_ms)
    return room


def _in_turns(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """Repeatedly serve the tenant that was served least."""
    picked: list[Picked] = []
    waiting = _tenants(tx, queue, room)
    not_groups = frozenset(op.not_groups)
    turns: list[tuple[int, str, Waiting, TenantJobs | None]] = []  # of those served before
    fresh: Waiting | None = None  # the next of those that were not
    while len(picked) < room:
        fresh = fresh or next(waiting, None)
        if fresh is not None and (not turns or _is_before(fresh[0], turns[0])):
            one, line, fresh = fresh, None, None
        elif turns:
            _, _, one, line = heapq.heappop(turns)
            if line is None:
                line = TenantJobs(tx, not_groups, *one)
                line.take(1)  # its head, which was picked before
        else:
            break
        tenant, share, lane = one
        if line is None and share <= 1 and lane and lane.line and lane.group not in not_groups:
            # Its first job is known, and probably the only one that it gets.
            got = [(lane.line[0], lane)]
        else:
            line = line or TenantJobs(tx, not_groups, *one)
            fresh = fresh or next(waiting, None)
            alone = not turns and fresh is None
            got = line.take(room - len(picked) if alone else 1)
        if not got:
            continue
        picked += got
        place = max(tenant.turn, queue.served + 1) + (len(got) - 1) * tenant.stride
        queue.served, tenant.turn = place, place + tenant.stride
        tx.books.touch_tenant(tenant)
        heapq.heappush(turns, (tenant.turn, tenant.name, one, line))
    if picked:
        tx.books.touch_queue(queue)
    return picked


def _is_before(tenant: TenantBook, served: tuple[int, str, Waiting, TenantJobs | None]) -> bool:
    """Whether a tenant that was not served yet has its turn before one that was."""
    turn = served[0]
    return tenant.turn < turn or (tenant.turn == turn and tenant.name < served[1])


def _tenants(tx: Transaction, queue: QueueBook, room: int) -> Iterator[Waiting]:
    """Tenants with an open lane and room, in the order of their turns."""
    offset = 0
    while True:
        ids = tx.db.packed("tenants_in_turn", queue.id, room, offset)
        tenants = tx.books.tenants([tenant_id for (tenant_id,) in ids])
        first = [tenant.only_lane for tenant in tenants]
        unknown = [tenant.id for tenant, lane in zip(tenants, first, strict=True) if lane is None]
        if len(unknown) > 1:
            lanes = map(tx.books.lane_of_row, tx.db.all("first_lanes", listed(unknown)))
            found = {lane.tenant.id: lane for lane in lanes}
            first = [lane or found[tenant.id] for tenant, lane in zip(tenants, first, strict=True)]
        for tenant, lane in zip(tenants, first, strict=True):
            yield tenant, room // len(tenants), lane
        if len(tenants) < room:
            return
        offset += room


def _of_tenant(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """Jobs of a single tenant. Does not count as its turn."""
    tenant = tx.books.tenant(queue.name, op.tenant or "")
    if tenant is None:
        return []
    first = tenant.only_lane
    return TenantJobs(tx, frozenset(op.not_groups), tenant, room, first).take(room)


class LaneCursor:
    """The ready jobs of a lane in order, fetched on demand."""

    def __init__(self, lane: LaneBook, chunk: int) -> None:
        assert lane.head is not None
        self.lane = lane
        self.head: Head = lane.head
        self.left = min(lane.counts[READY], lane.room)
        self._chunk = chunk
        self._rows: deque[tuple[Any, ...]] = deque()

    def __lt__(self, other: LaneCursor) -> bool:
        return self.head < other.head

    def take(self, tx: Transaction) -> tuple[Any, ...]:
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

    def take_many(self, tx: Transaction, n: int) -> list[tuple[Any, ...]]:
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


def _packed(tx: Transaction, wanted: tuple[int, ...]) -> list[tuple[Any, ...]]:
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

    def take(self, n: int) -> list[Picked]:
        """The first `n` jobs, or as many as there are."""
        picked: list[Picked] = []
        n = min(n, self._room)
        while len(picked) < n:
            cursor = self._first()
            if cursor is None:
                break
            lane, wanted = cursor.lane, n - len(picked)
            if wanted > 1 and len(self._cursors) == 1 and self._peek() is None:
                picked += [(row, lane) for row in cursor.take_many(self._tx, wanted)]
            else:
                picked.append((cursor.take(self._tx), lane))
            self._used = cursor
        self._room -= len(picked)
        return picked

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


def _lease(tx: Transaction, op: ops.Claim, picked: list[Picked], token: int) -> list[Job]:
    until = tx.now + op.lease_ms
    picked = _without_expired(tx, _with_rows(tx, picked))
    if not picked:
        return []
    counts: dict[LaneBook, int] = {}
    for _, lane in picked:
        counts[lane] = counts.get(lane, 0) + 1
    for lane, n in counts.items():
        lane.first_left(n, None if tx.shared else tx.upcoming.get(lane))
    tx.books.move_all(counts.items(), READY, LEASED)
    if _delete_ready(tx, picked, lanes=len(counts)) != len(picked):
        raise RuntimeError(
            f"the books of {', '.join(op.queues)} do not match the queued jobs; nothing was "
            "claimed: run `tenure reconcile QUEUE`, and report this"
        )
    several = len(op.queues) > 1
    for queue, mine in groupby(picked, _queue_of) if several else [(_queue_of(picked[0]), picked)]:
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
                "seqs": listed([row[_SEQ] for row, _ in mine]),
            },
        )
    rares = [_rare_of(row) for row, _ in picked]
    tx.books.places.update(
        (row[_ID], (row[_SEQ], lane.id, rare[_UNIQUE_KEY], token))
        for (row, lane), rare in zip(picked, rares, strict=True)
    )
    now, worker, more = tx.now, op.worker, _CLAIMED.attempts
    jobs = [
        Job(id, lane.tenant.queue.name, State.LEASED, Raw(payload), priority,
            created_at if run_at is None else run_at, created_at, now, (attempts or 0) + more,
            max_attempts, lane.tenant.name, lane.group, kind, now, until, token, worker, None,
            expires_at, unique_key, None, None, (), "wait", None, None, NULL)
        for ((priority, _, id, created_at, max_attempts, kind, payload, _), lane),
            (run_at, attempts, expires_at, unique_key, _, _) in zip(picked, rares, strict=True)
    ]  # fmt: skip
    if rares.count(_NONE) == len(jobs):
        return jobs
    return [
        with_rare(job, *rare[_OPTIONS:]) if rare[_OPTIONS:] != (None, None) else job
        for job, rare in zip(jobs, rares, strict=True)
    ]


def _rare_of(row: tuple[Any, ...]) -> Rare:
    return _NONE if row[_RARE] is None else _decode_rare(row[_RARE])


def _delete_ready(tx: Transaction, picked: list[Picked], lanes: int) -> int:
    """Take jobs out of the lanes that they were picked from. Returns how many were there."""
    if lanes * 2 > len(picked):
        return tx.db.run("delete_ready_jobs", listed([row[_SEQ] for row, _ in picked]))
    # A lane's jobs are picked from its head: none of those up to the last one stays ready.
    last = {lane.id: row for row, lane in picked}
    taken = [(lane_id, row[0], row[_SEQ]) for lane_id, row in last.items()]
    return tx.db.many("delete_ready_up_to", taken)


def _with_rows(tx: Transaction, picked: list[Picked]) -> list[Picked]:
    """Read the rows of jobs that were picked by their head only."""
    bare = [row[_SEQ] for row, _ in picked if len(row) == 2]
    if not bare:
        return picked
    found = tx.db.all("jobs_to_lease", listed(bare))
    if len(found) == len(picked):  # in the same order
        return [(row, lane) for row, (_, lane) in zip(found, picked, strict=True)]
    rows = {row[_SEQ]: row for row in found}
    return [(rows.get(row[_SEQ], row), lane) for row, lane in picked]


def _without_expired(tx: Transaction, picked: list[Picked]) -> list[Picked]:
    """Bury expired jobs that the sweep did not get to."""
    late = [
        row[_SEQ]
        for row, _ in picked
        if row[_RARE] is not None
        and (expires_at := _rare_of(row)[_EXPIRES_AT]) is not None
        and expires_at <= tx.now
    ]
    if not late:
        return picked
    for row in tx.load_seqs(late):
        move(tx, row, states.Claimed())
    return [pick for pick in picked if pick[0][_SEQ] not in late]


def _queue_of(pick: Picked) -> int:
    return pick[1].tenant.queue.id


def _sweep_if_due(tx: Transaction, queue: QueueBook, limit: int) -> bool:
    """Run due maintenance of a queue, if any. Returns whether more jobs may have expired."""
    ((due,),) = tx.db.named("anything_over", {"queue": queue.id, "now": tx.now})
    return bool(due) and sweep(tx, queue.name, Swept(limit, limit, limit)).expired == limit
