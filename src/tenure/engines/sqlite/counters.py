"""The books of one transaction: the queues, tenants and lanes it touched, with their counts.

Changes are made to the books and written once, by `flush`. A lane's own counts decide whether it
can be claimed from, and thus whether it is in the index that claims walk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tenure.core.limits import Rules, TenantGroup
from tenure.engines.sql.limits import mark, unmark
from tenure.engines.sql.rows import LEASED, READY
from tenure.engines.sqlite.db import Db, listed
from tenure.model import ops
from tenure.model.ops import Limit

Head = tuple[int, int]  # the priority and seq of a lane's first ready job


class QueueBook:
    """A row of tenure_queues."""

    id: int
    name: str
    paused: int
    max_leased: int | None
    rate: Any  # a number if per_ms is one, else None
    per_ms: Any
    tokens: int
    tokens_at: int
    served: int

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.id, self.name, self.paused, self.max_leased, self.rate, self.per_ms, self.tokens,
            self.tokens_at, self.served, *counts,
        ) = row  # fmt: skip
        self.counts: list[int] = counts
        self.dirty = False

    @property
    def limit(self) -> Limit:
        return Limit(self.name, None, None, self.max_leased, self.rate, self.per_ms)

    def row(self) -> tuple[Any, ...]:
        return (self.tokens, self.tokens_at, self.served, *self.counts, self.id)


class TenantBook:
    """A row of tenure_tenants."""

    id: int
    name: str
    turn: int
    stride: int
    max_leased: int | None
    open_lanes: int

    def __init__(self, row: tuple[Any, ...], queue: QueueBook) -> None:
        self.id, self.name, self.turn, self.stride, self.max_leased, self.open_lanes, _ = row[:7]
        self.counts: list[int] = list(row[7:14])
        self.queue = queue
        self.dirty = False
        self.saved: tuple[int, int, bool] = (self.turn, self.open_lanes, bool(row[6]))

    @property
    def room(self) -> int:
        """How many more jobs may be leased."""
        return 2**31 if self.max_leased is None else self.max_leased - self.counts[LEASED]

    @property
    def place(self) -> tuple[int, int, bool]:
        """Its position in the index that claims walk, and whether it is in there."""
        return self.turn, self.open_lanes, self.open_lanes > 0 and self.room > 0


class LaneBook:
    """A row of tenure_lanes."""

    id: int
    group: str
    max_leased: int | None

    def __init__(self, row: tuple[Any, ...], tenant: TenantBook) -> None:
        self.id, self.group, self.max_leased, head_priority, head_seq, open_ = row[:6]
        self.counts: list[int] = list(row[6:13])
        self.head: Head | None = None if head_seq is None else (head_priority, head_seq)
        self.head_known: bool = True
        self.tenant = tenant
        self.dirty = False
        self.saved: tuple[Any, ...] = (head_priority, head_seq, bool(open_))

    @property
    def room(self) -> int:
        """How many more jobs may be leased."""
        return 2**31 if self.max_leased is None else self.max_leased - self.counts[LEASED]

    @property
    def place(self) -> tuple[int | None, int | None, bool]:
        """Its position in the index that claims walk, and whether it is in there."""
        priority, seq = self.head or (None, None)
        return priority, seq, self.counts[READY] > 0 and self.room > 0

    def joined(self, priority: int, seq: int) -> None:
        """A job became ready."""
        if self.head_known and (self.head is None or (priority, seq) < self.head):
            self.head = (priority, seq)

    def left(self, priority: int, seq: int) -> None:
        """A job stopped being ready."""
        if self.head == (priority, seq):
            self.head_known = False


class Books:
    """All books that one transaction opened."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._queues: dict[int, QueueBook] = {}
        self._tenants: dict[int, TenantBook] = {}
        self._lanes: dict[int, LaneBook] = {}
        self._lanes_by_name: dict[tuple[str, str, str], LaneBook] = {}
        self._queues_by_name: dict[str, QueueBook] = {}

    def queue(self, name: str) -> QueueBook | None:
        """The book of a queue, if it exists."""
        if name not in self._queues_by_name:
            row = self._db.one("queue_by_name", name)
            if row is None:
                return None
            self._queue_of_row(row)
        return self._queues_by_name[name]

    def queue_or_new(self, name: str) -> QueueBook:
        book = self.queue(name)
        if book is None:
            self._db.run("add_queue", name)
            book = self.queue(name)
            assert book is not None
        return book

    def queue_by_id(self, queue_id: int) -> QueueBook:
        if queue_id not in self._queues:
            row = self._db.one("queue_by_id", queue_id)
            assert row is not None
            self._queue_of_row(row)
        return self._queues[queue_id]

    def _queue_of_row(self, row: tuple[Any, ...]) -> None:
        if row[0] not in self._queues:
            self._queues[row[0]] = self._queues_by_name[row[1]] = QueueBook(row)

    def tenant_of_row(self, row: tuple[Any, ...]) -> TenantBook:
        if row[0] not in self._tenants:
            self._tenants[row[0]] = TenantBook(row, self.queue_by_id(row[14]))
        return self._tenants[row[0]]

    def lane_of_row(self, row: tuple[Any, ...]) -> LaneBook:
        if row[0] not in self._lanes:
            tenant = self._tenants.get(row[13])
            if tenant is None:
                tenant_row = self._db.one("tenant_by_id", row[13])
                assert tenant_row is not None
                tenant = self.tenant_of_row(tenant_row)
            self._lanes[row[0]] = LaneBook(row, tenant)
        return self._lanes[row[0]]

    def load(self, lane_ids: Iterable[int]) -> None:
        """Open the books of several lanes at once."""
        missing = [lane_id for lane_id in lane_ids if lane_id not in self._lanes]
        if len(missing) > 1:
            for row in self._db.all("lanes_by_id", listed(missing)):
                self.tenant_of_row(row[14:])
                self.lane_of_row(row[:14])

    def load_names(self, names: Iterable[tuple[str, str, str]]) -> None:
        """Open the books of several lanes at once, skipping those that do not exist."""
        missing = [key for key in names if key not in self._lanes_by_name]
        if len(missing) > 1:
            for row in self._db.all("lanes_by_name", listed(missing)):
                tenant = self.tenant_of_row(row[14:])
                lane = self.lane_of_row(row[:14])
                self._lanes_by_name[tenant.queue.name, tenant.name, lane.group] = lane

    def lane_by_id(self, lane_id: int) -> LaneBook:
        lane = self._lanes.get(lane_id)
        if lane is None:
            row = self._db.one("lane_by_id", lane_id)
            assert row is not None
            lane = self._lane_of_joined(row)
        return lane

    def _lane_of_joined(self, row: tuple[Any, ...]) -> LaneBook:
        """The book of a lane, from a row joined with its tenant and queue."""
        self._queue_of_row(row[29:])
        self.tenant_of_row(row[14:29])
        return self.lane_of_row(row[:14])

    def tenant(self, queue: str, tenant: str) -> TenantBook | None:
        """The book of a tenant, if it exists."""
        book = self.queue(queue)
        row = None if book is None else self._db.one("tenant_by_name", book.id, tenant)
        return None if row is None else self.tenant_of_row(row)

    def lane(self, queue: str, tenant: str, group: str) -> LaneBook:
        """The book of a lane, created if necessary."""
        key = (queue, tenant, group)
        lane = self._lanes_by_name.get(key)
        if lane is None:
            row = self._db.one("lane_by_names", tenant, group, queue)
            if row is None:
                owner = self._tenant_or_new(self.queue_or_new(queue), tenant)
                bound = self._group_bound(queue, tenant, group)
                self._db.run("add_lane", owner.id, group, bound, owner.queue.id if group else None)
                row = self._db.one("lane_by_names", tenant, group, queue)
                assert row is not None
            lane = self._lanes_by_name[key] = self._lane_of_joined(row)
        return lane

    def _tenant_or_new(self, queue: QueueBook, tenant: str) -> TenantBook:
        row = self._db.one("tenant_by_name", queue.id, tenant)
        if row is None:
            bound, stride = self._tenant_bound(queue.name, tenant)
            self._db.run("add_tenant", queue.id, tenant, stride, bound)
            row = self._db.one("tenant_by_name", queue.id, tenant)
            assert row is not None
        return self.tenant_of_row(row)

    def _tenant_bound(self, queue: str, tenant: str) -> tuple[int | None, int]:
        """A tenant's concurrency and stride."""
        rules = self._rules(queue, tenant, None)
        bound = 0 if rules.tenant_paused(tenant) else rules.tenant_concurrency(tenant)
        return bound, ops.stride(rules.weight(tenant))

    def _group_bound(self, queue: str, tenant: str, group: str) -> int | None:
        """A group's concurrency."""
        if not group:
            return None
        rules = self._rules(queue, tenant, group)
        return 0 if rules.group_paused(tenant, group) else rules.group_concurrency(tenant, group)

    def _rules(self, queue: str, tenant: str, group: str | None) -> Rules:
        """The limits of a queue that apply to a tenant or a group."""
        groups = ("", "") if group is None else (mark(group), mark("*"))
        limits: dict[TenantGroup, Limit] = {}
        for t, g, concurrency, weight, paused in self._db.all(
            "limits_on", queue, mark(tenant), *groups
        ):
            scope = unmark(t), unmark(g)
            limits[scope] = Limit(queue, *scope, concurrency, weight=weight, paused=bool(paused))
        return Rules(queue, limits)

    def put_limit(self, limit: Limit) -> None:
        """Store a limit, and apply it to the affected tenants and lanes."""
        queue = self.queue_or_new(limit.queue)
        self.forget()
        key = (limit.queue, mark(limit.tenant), mark(limit.group))
        self._db.run("delete_limit", *key)
        if limit != Limit(limit.queue, limit.tenant, limit.group):
            bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight, limit.paused)
            self._db.run("insert_limit", *key, *bounds)
        if limit.tenant is None:
            own = (limit.paused, limit.concurrency, limit.rate, limit.per_ms)
            self._db.run("limit_queue", *own, queue.id)
        elif limit.group is None:
            for tenant_id, tenant in self._db.all("tenants_of_queue", queue.id, limit.tenant):
                bound, stride = self._tenant_bound(limit.queue, tenant)
                self._db.run("limit_tenant", stride, bound, tenant_id)
        else:
            for lane_id, tenant, group in self._db.all(
                "lanes_of_queue", queue.id, limit.tenant, limit.group
            ):
                bound = self._group_bound(limit.queue, tenant, group)
                self._db.run("limit_lane", bound, lane_id)
            self._db.run("open_lanes", queue.id, limit.tenant)
            self._db.run("recount_open_lanes", queue.id, limit.tenant)
        if limit.tenant is not None:
            self._db.run("open_tenants", queue.id, limit.tenant)
        self.forget()

    def move(self, lane: LaneBook, source: int | None, target: int | None, n: int = 1) -> None:
        """Count `n` jobs of the lane as moved between states. None means not in the store."""
        for book in (lane, lane.tenant, lane.tenant.queue):
            if source is not None:
                book.counts[source] -= n
            if target is not None:
                book.counts[target] += n
            book.dirty = True

    def flush(self) -> None:
        """Write all changes. If only counts changed, no index is touched."""
        lanes = [lane for lane in self._lanes.values() if lane.dirty]
        self._find_heads([lane for lane in lanes if not lane.head_known])
        for lane in lanes:
            if not lane.counts[READY]:
                lane.head = None
            lane.tenant.open_lanes += lane.place[2] - lane.saved[2]
        self._save("save_lane", lanes)
        self._save("save_tenant", [tenant for tenant in self._tenants.values() if tenant.dirty])
        queues = [queue for queue in self._queues.values() if queue.dirty]
        self._db.many("save_queue", [queue.row() for queue in queues])
        for queue in queues:
            queue.dirty = False

    def _find_heads(self, lanes: list[LaneBook]) -> None:
        if lanes:
            heads = dict(self._db.all("heads", listed([lane.id for lane in lanes])))
            for lane in lanes:
                lane.head = _decode_head(heads[lane.id]) if heads[lane.id] else None
                lane.head_known = True

    def _save(self, statement: str, books: Sequence[LaneBook] | Sequence[TenantBook]) -> None:
        moved, counted = [], []
        for book in books:
            place = book.place
            if place == book.saved:
                counted.append((*book.counts, book.id))
            else:
                moved.append((*place, *book.counts, book.id))
                book.saved = place
            book.dirty = False
        self._db.many(statement, moved)
        self._db.many(f"{statement}_counts", counted)

    def forget(self) -> None:
        """Write all changes, and read everything again from here on."""
        self.flush()
        self._queues.clear()
        self._tenants.clear()
        self._lanes.clear()
        self._lanes_by_name.clear()
        self._queues_by_name.clear()


_decode_head = msgspec.json.Decoder(Head).decode
