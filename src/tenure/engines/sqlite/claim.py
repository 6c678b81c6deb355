"""Claim: tenants take turns, each tenant's jobs in order, within all limits.

Only jobs that can run are looked at: tenants with an open lane, in the order of their turns, and
lanes with a ready job and room, in the order of their heads.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any

from tenure.core.limits import refilled
from tenure.core.moves import move, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.sql.rows import CODES, LEASED, READY, leased_job
from tenure.engines.sqlite.counters import Head, LaneBook, QueueBook, TenantBook
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.model import ops, states
from tenure.model.job import Job, State
from tenure.model.ops import Answer

# The transition of a ready job that is claimed. Expired jobs are handled separately.
_CLAIMED = states.plain(State.PENDING, states.Claimed)
_BEFORE_ALL: Head = (-(2**63), 0)

Picked = tuple[tuple[Any, ...], LaneBook]  # a job, as its row or its head, and its lane
_SEQ, _EXPIRES_AT = 1, 8  # columns of a row


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
    picked = iter(_pick(tx, queues, calls[0], sum(op.limit for op in calls)))
    dealt = [list(islice(picked, op.limit)) for op in calls]
    token = tx.next_tokens(sum(map(bool, dealt))) if dealt[0] else 0
    for op, mine in zip(calls, dealt, strict=True):
        token += bool(mine)
        yield ops.Leased(_lease(tx, op, mine, token) if mine else [])
    settle(tx)


def _pick(tx: Transaction, queues: Sequence[QueueBook], op: ops.Claim, limit: int) -> list[Picked]:
    tx.books.flush()
    picked: list[Picked] = []
    for queue in queues:
        if len(picked) == limit:
            break
        room = 0 if queue.paused else min(limit - len(picked), _room(queue, tx.now))
        if room <= 0:
            continue
        serve = _in_turns if op.tenant is None else _of_tenant
        found = serve(tx, queue, op, room)
        if queue.rate is not None:
            queue.tokens -= len(found) * queue.per_ms
            queue.dirty = True
        picked.extend(found)
    return picked


def _room(queue: QueueBook, now: int) -> int:
    """How many more jobs the queue's own limits allow."""
    room = 2**31
    if queue.max_leased is not None:
        room = queue.max_leased - queue.counts[LEASED]
    if queue.rate is not None:
        queue.tokens = refilled(queue.tokens, now - queue.tokens_at, queue.limit)
        queue.tokens_at = now
        queue.dirty = True
        room = min(room, queue.tokens // queue.per_ms)
    return room


def _in_turns(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """Repeatedly serve the tenant that was served least."""
    picked: list[Picked] = []
    waiting = _tenants(tx, queue, room)
    not_groups = frozenset(op.not_groups)
    turns: list[tuple[int, str, TenantBook, TenantJobs]] = []
    fresh = next(waiting, None)
    while len(picked) < room:
        while fresh is not None and (not turns or (fresh[0].turn, fresh[0].name) < turns[0][:2]):
            tenant, share, first = fresh
            line = TenantJobs(tx, tenant, not_groups, share, first)
            heapq.heappush(turns, (tenant.turn, tenant.name, tenant, line))
            fresh = next(waiting, None)
        if not turns:
            break
        _, _, tenant, line = heapq.heappop(turns)
        alone = not turns and fresh is None
        got = line.take(room - len(picked) if alone else 1)
        if not got:
            continue
        picked.extend(got)
        place = max(tenant.turn, queue.served + 1) + (len(got) - 1) * tenant.stride
        queue.served, tenant.turn = place, place + tenant.stride
        queue.dirty = tenant.dirty = True
        heapq.heappush(turns, (tenant.turn, tenant.name, tenant, line))
    return picked


def _tenants(
    tx: Transaction, queue: QueueBook, room: int
) -> Iterator[tuple[TenantBook, int, tuple[Any, ...] | None]]:
    """Tenants with an open lane and room, in the order of their turns; how many jobs each will get,
    roughly; and the row of its first lane, if already read."""
    offset = 0
    while True:
        rows = tx.db.all("tenants_in_turn", queue.id, room, offset)
        first: dict[int, tuple[Any, ...]] = {}
        if len(rows) > 1:
            lanes = tx.db.all("first_lanes", listed([row[0] for row in rows]))
            first = {lane[-1]: lane for lane in lanes}
        for row in rows:
            yield tx.books.tenant_of_row(row), room // len(rows), first.get(row[0])
        if len(rows) < room:
            return
        offset += room


def _of_tenant(tx: Transaction, queue: QueueBook, op: ops.Claim, room: int) -> list[Picked]:
    """Jobs of a single tenant. Does not count as its turn."""
    tenant = tx.books.tenant(queue.name, op.tenant or "")
    if tenant is None:
        return []
    return TenantJobs(tx, tenant, frozenset(op.not_groups), room, None).take(room)


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
            self._chunk = n
            self._fetch(tx, (self.head[0], self.head[1] - 1), n)
        self.left -= n
        taken = [self._rows.popleft() for _ in range(min(n, len(self._rows)))]
        if taken:
            self.head = taken[-1][0], taken[-1][1]
        return taken

    def _fetch(self, tx: Transaction, after: Head, most: int) -> None:
        wanted = (self.lane.id, *after, min(self._chunk, most))
        self._rows.extend(_packed(tx, wanted) if tx.shared else tx.db.all("next_in_lane", *wanted))
        self._chunk *= 2


def _packed(tx: Transaction, wanted: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """The same rows, fetched in one step. Large payloads do not fit and are fetched separately."""
    rows = tx.db.packed("next_in_lane_packed", *wanted)
    large = [row[_SEQ] for row in rows if row[-1] is None]
    if large:
        payloads = dict(tx.db.all("payloads", listed(large)))
        rows = [(*row[:-1], payloads.get(row[_SEQ], row[-1])) for row in rows]
    return rows


class TenantJobs:
    """A tenant's jobs in order of (priority, seq), across its open lanes, within its limits."""

    def __init__(
        self,
        tx: Transaction,
        tenant: TenantBook,
        not_groups: frozenset[str],
        share: int,
        first: tuple[Any, ...] | None,
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
    first: tuple[Any, ...] | None,
) -> Iterator[LaneCursor]:
    """The tenant's open lanes in the order of their heads."""
    if first is None:
        size, rows = 2, tx.db.all("lanes_by_head", tenant.id, *_BEFORE_ALL, 2)
    else:
        size, rows = 1, [first]
    while True:
        for row in rows:
            lane = tx.books.lane_of_row(row)
            if lane.group not in not_groups:
                yield LaneCursor(lane, share if len(rows) == 1 else max(1, share // size))
        if len(rows) < size:
            return
        after, size = (rows[-1][3], rows[-1][4]), max(2, share)
        rows = tx.db.all("lanes_by_head", tenant.id, *after, size)


def _lease(tx: Transaction, op: ops.Claim, picked: list[Picked], token: int) -> list[Job]:
    until = tx.now + op.lease_ms
    picked = _without_expired(tx, _with_rows(tx, picked))
    jobs: list[Job] = []
    taken: list[tuple[int, int, int]] = []
    for lane, run in groupby(picked, key=_lane_of):
        rows = [row for row, _ in run]
        names = (lane.tenant.queue.name, lane.tenant.name, lane.group)
        jobs += [
            leased_job((seq, id, priority, run_at, created_at, attempts + _CLAIMED.attempts,
                        max_attempts, kind, tx.now, until, token, op.worker, *rest), *names)
            for priority, seq, id, run_at, created_at, attempts, max_attempts, kind, *rest in rows
        ]  # fmt: skip
        taken.append((lane.id, *rows[-1][:2]))
        tx.books.move(lane, READY, LEASED, len(rows))
        lane.head_known = False
    # A lane's jobs are picked from its head: none of those up to the last one stays ready.
    if tx.db.many("delete_ready_up_to", taken) != len(jobs):
        raise RuntimeError(
            f"the books of {', '.join(op.queues)} do not match the queued jobs; nothing was "
            "claimed: run `tenure reconcile QUEUE`, and report this"
        )
    for queue, mine in groupby(picked, key=lambda pick: pick[1].tenant.queue.id):
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
    return jobs


def _with_rows(tx: Transaction, picked: list[Picked]) -> list[Picked]:
    """Read the rows of jobs that were picked by their head only."""
    bare = [row[_SEQ] for row, _ in picked if len(row) == 2]
    if not bare:
        return picked
    rows = {row[_SEQ]: row for row in tx.db.all("jobs_to_lease", listed(bare))}
    return [(rows.get(row[_SEQ], row), lane) for row, lane in picked]


def _without_expired(tx: Transaction, picked: list[Picked]) -> list[Picked]:
    """Bury expired jobs that the sweep did not get to."""
    late = [
        row[_SEQ]
        for row, _ in picked
        if row[_EXPIRES_AT] is not None and row[_EXPIRES_AT] <= tx.now
    ]
    if not late:
        return picked
    for row in tx.load_seqs(late):
        move(tx, row, states.Claimed())
    return [pick for pick in picked if pick[0][_SEQ] not in late]


_lane_of = itemgetter(1)


def _sweep_if_due(tx: Transaction, queue: QueueBook, limit: int) -> bool:
    """Run due maintenance of a queue, if any. Returns whether more jobs may have expired."""
    ((due,),) = tx.db.named("anything_over", {"queue": queue.id, "now": tx.now})
    return bool(due) and sweep(tx, queue.name, Swept(limit, limit, limit)).expired == limit
