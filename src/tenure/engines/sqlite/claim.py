"""Claim: tenants in turns, each tenant's jobs in order, within every limit.

Only what can run is looked at: tenants with an open lane, in the order of their turns; lanes with
a ready job and room, in the order of their heads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from tenure import ops, states
from tenure.engines.sqlite.books import Head, LaneBook, QueueBook, TenantBook
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.rows import CODES, DELAYED, LEASED, READY, Row, job_of
from tenure.engines.sqlite.transaction import Transaction
from tenure.job import Job, State
from tenure.ops import Answer

# What the table makes of a ready job that is claimed; one that expired is looked for apart.
_CLAIMED = states.plain(State.PENDING, states.Claimed)
_BEFORE_ALL: Head = (-(2**63), 0)

Picked = tuple[int, LaneBook]  # a seq and its lane


def claim(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    """Claims in a row that differ only in worker, lease and limit are picked for together, and
    dealt out in order."""
    answers: list[Answer] = []
    for _, run in groupby(batch, key=lambda op: (op.queues, op.tenant, op.not_groups)):
        calls = list(run)
        picked = _pick(tx, calls[0], sum(op.limit for op in calls), len(calls))
        if not picked:
            answers.extend(ops.Leased([]) for _ in calls)
            continue
        token = tx.next_numbers("token", len(calls))
        start = 0
        for n, op in enumerate(calls, 1):
            mine = picked[start : start + op.limit]
            start += op.limit
            answers.append(ops.Leased(_lease(tx, op, mine, token + n) if mine else []))
        tx.settle()
    return answers


def _pick(tx: Transaction, op: ops.Claim, limit: int, calls: int) -> list[Picked]:
    picked: list[Picked] = []
    for name in dict.fromkeys(op.queues):
        queue = tx.books.queue(name)
        if queue is None or len(picked) >= limit:
            continue
        sweep_if_due(tx, queue, tx.sweep * calls)
        if queue.paused:
            continue
        room = min(limit - len(picked), _room(queue, tx.now))
        if room <= 0:
            continue
        tx.books.flush()
        serve = _in_turns if op.tenant is None else _of_tenant
        found = serve(tx, queue, op, room)
        if queue.rate is not None:
            queue.tokens -= len(found) * queue.per_ms
            queue.dirty = True
        picked.extend(found)
    return picked


def _room(queue: QueueBook, now: int) -> int:
    """How many more the queue's own limits allow."""
    room = 2**31
    if queue.max_leased is not None:
        room = queue.max_leased - queue.counts[LEASED]
    if queue.rate is not None:
        gained = max(0, now - queue.tokens_at) * queue.rate
        queue.tokens = min(queue.tokens + gained, queue.rate * queue.per_ms)
        queue.tokens_at = now
        queue.dirty = True
        room = min(room, queue.tokens // queue.per_ms)
    return room


def _in_turns(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """Serve the tenant that was served least, again and again."""
    picked: list[Picked] = []
    waiting = _tenants(tx, queue, room)
    turns: list[tuple[int, str, TenantBook, Iterator[Picked]]] = []
    fresh = next(waiting, None)
    while len(picked) < room:
        while fresh is not None and (not turns or (fresh.turn, fresh.name) < turns[0][:2]):
            heapq.heappush(turns, (fresh.turn, fresh.name, fresh, _line(tx, fresh, op, room)))
            fresh = next(waiting, None)
        if not turns:
            break
        _, _, tenant, line = heapq.heappop(turns)
        alone = not turns and fresh is None
        got = list(islice(line, room - len(picked) if alone else 1))
        if not got:
            continue
        picked.extend(got)
        place = max(tenant.turn, queue.served + 1) + (len(got) - 1) * tenant.stride
        queue.served, tenant.turn = place, place + tenant.stride
        queue.dirty = tenant.dirty = True
        heapq.heappush(turns, (tenant.turn, tenant.name, tenant, line))
    return picked


def _tenants(tx: Transaction, queue: QueueBook, page: int) -> Iterator[TenantBook]:
    """Tenants with an open lane and room, in the order of their turns."""
    offset = 0
    while True:
        rows = tx.db.all("tenants_in_turn", queue.id, page, offset)
        yield from [tx.books.tenant_of_row(row) for row in rows]
        if len(rows) < page:
            return
        offset += page


def _of_tenant(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """One tenant's jobs; this takes nobody's turn."""
    tenant = tx.books.tenant(queue.name, op.tenant or "")
    return [] if tenant is None else list(islice(_line(tx, tenant, op, room), room))


class LaneCursor:
    """The ready jobs of a lane in order, fetched as they are needed."""

    def __init__(self, lane: LaneBook) -> None:
        assert lane.head is not None
        self.lane = lane
        self.left = min(lane.counts[READY], lane.room)
        self.queue = [lane.head]
        self._chunk = 8

    def __lt__(self, other: LaneCursor) -> bool:
        return self.queue[0] < other.queue[0]

    def take(self) -> Head:
        self.left -= 1
        return self.queue.pop(0)

    def fetch(self, tx: Transaction, after: Head, want: int) -> bool:
        """Have the next ones at hand, more each time; False when the lane gives no more."""
        if not self.queue and self.left > 0:
            rows = tx.db.all(
                "next_in_lane", self.lane.id, *after, min(self._chunk, want, self.left)
            )
            self._chunk *= 4
            self.queue = [(row[0], row[1]) for row in rows]
        return bool(self.queue) and self.left > 0


def _line(tx: Transaction, tenant: TenantBook, op: ops.Claim, want: int) -> Iterator[Picked]:
    """A tenant's jobs in order of (priority, seq), over its open lanes, within its limits."""
    room = tenant.room
    lanes = _lanes(tx, tenant, op, want)
    cursors: list[LaneCursor] = []
    fresh = next(lanes, None)
    while room > 0:
        while fresh is not None and (not cursors or fresh < cursors[0]):
            heapq.heappush(cursors, fresh)
            fresh = next(lanes, None)
        if not cursors:
            return
        cursor = cursors[0]
        head = cursor.take()
        room -= 1
        yield head[1], cursor.lane
        if cursor.fetch(tx, head, want):
            heapq.heapreplace(cursors, cursor)
        else:
            heapq.heappop(cursors)


def _lanes(tx: Transaction, tenant: TenantBook, op: ops.Claim, page: int) -> Iterator[LaneCursor]:
    """The tenant's open lanes in the order of their heads."""
    after, size = _BEFORE_ALL, 2
    while True:
        rows = tx.db.all("lanes_by_head", tenant.id, *after, size)
        for row in rows:
            lane = tx.books.lane_of_row(row)
            if lane.group not in op.not_groups:
                yield LaneCursor(lane)
        if len(rows) < size:
            return
        after, size = (rows[-1][3], rows[-1][4]), page


def _lease(tx: Transaction, op: ops.Claim, picked: list[Picked], token: int) -> list[Job]:
    seqs = [seq for seq, _ in picked]
    rows = tx.db.named(
        "lease_jobs",
        {
            "leased": CODES[_CLAIMED.target][0],
            "attempts": _CLAIMED.attempts,
            "until": tx.now + op.lease_ms,
            "token": token,
            "worker": op.worker,
            "now": tx.now,
            "seqs": listed(seqs),
        },
    )
    large = [row[0] for row in rows if row[-1] is None]
    payloads = dict(tx.db.all("payloads", listed(large))) if large else {}
    jobs: dict[int, Job] = {}
    lanes = dict(picked)
    by_lane: dict[int, int] = {}
    for row in rows:
        seq, lane_id = row[0], row[1]
        lane = lanes[seq]
        by_lane[lane_id] = by_lane.get(lane_id, 0) + 1
        payload = row[-1] if row[-1] is not None else payloads[seq]
        jobs[seq] = job_of(row, lane.tenant.queue.name, lane.tenant.name, lane.group, payload)
    for lane_id, n in by_lane.items():
        lane = tx.books.lane_by_id(lane_id)
        lane.head_known = False
        tx.books.move(lane, READY, LEASED, n)
    if len(jobs) < len(seqs):
        for row in tx.db.all("rows_by_seq", listed(seq for seq in seqs if seq not in jobs)):
            tx.move(Row(*row), states.Claimed())
    return [jobs[seq] for seq in seqs if seq in jobs]


def sweep_if_due(tx: Transaction, queue: QueueBook, limit: int) -> None:
    """Look after what time has brought, if it has brought anything."""
    ((due,),) = tx.db.named("anything_over", {"queue": queue.id, "now": tx.now})
    if due:
        sweep(tx, queue.id, limit)


def sweep(tx: Transaction, queue: int, limit: int) -> tuple[int, int, int]:
    """Delays that are over, leases that ran out, jobs that expired: how many of each."""
    leases = tx.db.all("leases_over", queue, tx.now, limit)
    for row in leases:
        tx.move(Row(*row), states.LeaseRanOut())
    tx.settle()
    due = tx.db.all("jobs_due", queue, tx.now, limit)
    if due:
        tx.db.run("promote_jobs", listed(seq for seq, _, _ in due))
        by_lane: dict[int, int] = {}
        for seq, lane_id, priority in due:
            tx.books.lane_by_id(lane_id).joined(priority, seq)
            by_lane[lane_id] = by_lane.get(lane_id, 0) + 1
        for lane_id, n in by_lane.items():
            tx.books.move(tx.books.lane_by_id(lane_id), DELAYED, READY, n)
    expired = tx.db.all("jobs_expired", queue, tx.now, limit)
    for row in expired:
        tx.move(Row(*row), states.Expired())
    tx.settle()
    return len(due), len(leases), len(expired)
