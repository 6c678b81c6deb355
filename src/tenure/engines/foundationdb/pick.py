"""Picks jobs for a claim: a tenant at random, by weight, then the first job of its lanes, within
all limits. Uses snapshot reads; only the counts of limits add conflict ranges."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.bucket import Bucket
from tenure.engines.foundationdb.keys import RING
from tenure.engines.foundationdb.limits import Rules
from tenure.engines.foundationdb.parking import Idle
from tenure.engines.foundationdb.tuple_layer import after_ints, last_str
from tenure.engines.foundationdb.tx import Tx
from tenure.model import ops

WINDOW = 256  # tenants, or lanes of a tenant, that are read together
MOST_HELD_BACK = 1000  # lanes that one transaction skips
_FIRST_LOOK = 8  # jobs of a lane that are read at once
_NUMBERS = 4  # in a READY key, before the id


class Ready(NamedTuple):
    """A job in line. Sorts in the order of claiming."""

    order: bytes  # the end of its key: the priority, the place in enqueue order, and the id
    id: str
    tenant: str
    group: str


class Room:
    """The room that the limits of a queue leave."""

    def __init__(self, tx: Tx, rules: Rules) -> None:
        self._tx = tx
        self._rules = rules
        self._left: dict[TenantGroup, int] = {}
        self.taken: dict[TenantGroup, int] = {}

    def left(self, scope: TenantGroup, bound: int | None) -> int | None:
        """How many more leases a scope may have; None means unlimited."""
        if bound is None:
            return None
        if scope not in self._left:
            self._left[scope] = bound - self._tx.in_use(self._rules.queue, scope)
        return self._left[scope]

    def tenant(self, tenant: str) -> int | None:
        if self._rules.tenant_paused(tenant):
            return 0
        return self.left((tenant, None), self._rules.tenant_concurrency(tenant))

    def group(self, tenant: str, group: str) -> int | None:
        if self._rules.group_paused(tenant, group):
            return 0
        return self.left((tenant, group), self._rules.group_concurrency(tenant, group))

    def take(self, tenant: str, group: str) -> None:
        for scope in self._rules.bounded(tenant, group):
            self.taken[scope] = self.taken.get(scope, 0) + 1
            if scope in self._left:
                self._left[scope] -= 1

    def write(self) -> None:
        """Write the counts of what was taken."""
        tx, queue = self._tx, self._rules.queue
        for scope, count in self.taken.items():
            key = tx.keys.pack(k.TAKEN, queue, *scope)
            tx.tr.add_read_conflict_key(key)
            tx.add(key, count)


class Lane:
    """The jobs of one group, in order."""

    def __init__(self, tx: Tx, queue: str, tenant: str, group: str, look: int) -> None:
        self._tx = tx
        self._tenant, self._group = tenant, group
        self._begin, self._end = tx.keys.span(k.READY, queue, tenant, group)
        self._prefix = len(self._begin) - 1
        self._look = look
        self._asked: Any = self._ask()
        self._found: list[Ready] = []
        self._more = True
        self.is_empty: bool = False

    def _ask(self) -> Any:
        # Fetch many jobs in one reply, instead of some at a time.
        mode = self._tx.store.handle.StreamingMode
        return self._tx.tr.snapshot.get_range(
            self._begin,
            self._end,
            limit=self._look,
            streaming_mode=mode.want_all if self._look > _FIRST_LOOK else mode.iterator,
        )

    def next(self) -> Ready | None:
        """Remove and return the next job in line."""
        if not self._found and self._more:
            rows = list(self._asked if self._asked is not None else self._ask())
            self.is_empty = self._asked is not None and not rows
            self._asked = None
            self._more = len(rows) == self._look
            for row in rows:
                order = bytes(row.key)[self._prefix :]
                job_id = last_str(order, after_ints(order, 0, _NUMBERS))
                self._found.append(Ready(order, job_id, self._tenant, self._group))
            if rows:
                self._begin = bytes(rows[-1].key) + b"\x00"
            self._found.reverse()
            self._look = WINDOW
        return self._found.pop() if self._found else None


class TenantJobs:
    """The jobs of a tenant in order, across all groups that have room."""

    def __init__(self, picker: Picker, tenant: str) -> None:
        self._picker = picker
        self.tenant = tenant
        self._windows: Iterator[list[str]] | None = None
        self._opened: list[tuple[str, Lane]] | None = None  # their first jobs are requested
        self._heads: list[tuple[Ready, Lane]] = []
        self._served: Lane | None = None  # whose next job has not been read yet
        self._lanes = 0

    def next(self) -> Ready | None:
        """Remove and return the first job that no limit holds back."""
        picker = self._picker
        if not picker.has_room(self.tenant, None):
            return None
        self._move_up()
        while not picker.should_park_lanes:
            while self._heads:
                ready, lane = heapq.heappop(self._heads)
                if picker.has_room(self.tenant, ready.group):
                    self._served = lane
                    return ready
            if not self._open_lanes():
                return None
        return None

    def _move_up(self) -> None:
        """Read the job after the last one taken, only now that it is needed."""
        lane, self._served = self._served, None
        following = None if lane is None else lane.next()
        if lane is not None and following is not None:
            heapq.heappush(self._heads, (following, lane))

    def ask_groups(self) -> None:
        """Request the tenant's groups, without waiting."""
        if self._windows is None:
            picker = self._picker
            within = (k.LANE, picker.queue, self.tenant)
            self._windows = ring(picker.tx, ask_ring(picker.tx, *within), *within)

    def ask_jobs(self) -> bool:
        """Request the first jobs of more groups. Returns whether there were any."""
        if self._opened is not None:
            return True
        self.ask_groups()
        assert self._windows is not None
        groups = next(self._windows, None)
        picker = self._picker
        if groups is None:
            if not self._lanes and picker.op.tenant is None:
                picker.idle.append(Idle(picker.queue, self.tenant, None, False))
            return False
        self._lanes += len(groups)
        wanted = [
            group
            for group in groups
            if group not in picker.not_groups and picker.has_room(self.tenant, group)
        ]
        look = picker.look if len(wanted) < _FIRST_LOOK else min(picker.look, _FIRST_LOOK)
        self._opened = [(g, Lane(picker.tx, picker.queue, self.tenant, g, look)) for g in wanted]
        return True

    def _open_lanes(self) -> bool:
        """Open more groups. Returns whether there were any."""
        if not self.ask_jobs():
            return False
        lanes, self._opened = self._opened, None
        for group, lane in lanes or ():
            first = lane.next()
            if first is not None:
                heapq.heappush(self._heads, (first, lane))
            elif lane.is_empty:
                self._picker.idle.append(Idle(self._picker.queue, self.tenant, group, False))
        return True


class Picker:
    """Picks jobs of one queue for one claim."""

    def __init__(self, tx: Tx, queue: str, op: ops.Claim, spread: int) -> None:
        self.tx = tx
        self.queue = queue
        self.op = op
        self.not_groups: frozenset[str] = frozenset(op.not_groups)
        self.rules: Rules = tx.rules(queue)
        self.room: Room = Room(tx, self.rules)
        self.idle: list[Idle] = []
        self.look: int = 1
        self._spread = spread
        self._held_back = 0

    @property
    def should_park_lanes(self) -> bool:
        """Whether so many lanes were held back that they should be put aside before looking
        further."""
        return self._held_back >= MOST_HELD_BACK

    def has_room(self, tenant: str, group: str | None) -> bool:
        """Whether a lane, or a tenant, may have one more lease."""
        if not self.rules.limits:
            return True
        left = self.room.tenant(tenant) if group is None else self.room.group(tenant, group)
        if left is None or left > 0:
            return True
        self._held_back += 1
        self.idle.append(Idle(self.queue, tenant, group, True))
        return False

    def pick(self, most: int) -> list[Ready]:
        """Pick up to `most` jobs. They count against the limits from now on."""
        whole = self.rules.whole
        if whole.paused or most <= 0:
            return []
        left = self.room.left(EVERYTHING, whole.concurrency)
        most = most if left is None else min(most, left)
        bucket = Bucket(self.tx, self.queue, whole)
        most = min(most, bucket.available)
        if most <= 0:
            return []
        self.look = max(1, min(most * self._spread, 1000))
        picked = self._pick(most)
        self.room.write()
        bucket.use(len(picked))
        return picked

    def _pick(self, most: int) -> list[Ready]:
        """If claims were lost recently, pick some of the first jobs instead of the very first."""
        if self._spread == 1 or self.rules.any_concurrency:
            return list(self._in_turns(most))
        found = list(self._in_turns(min(most * self._spread, 4096)))
        if len(found) <= most:
            return found
        return sorted(self.tx.store.chance.sample(found, most))

    def _in_turns(self, most: int) -> Iterator[Ready]:
        count = 0
        windows = iter([[self.op.tenant]]) if self.op.tenant is not None else self._tenants()
        for tenants in windows:
            lines = {tenant: TenantJobs(self, tenant) for tenant in tenants}
            turns: list[TenantJobs] = []
            while lines and count < most and not self.should_park_lanes:
                if not turns:
                    turns = self._draw(lines, most - count)
                line = turns.pop()
                if line.tenant not in lines:
                    continue
                ready = line.next()
                if ready is None:
                    del lines[line.tenant]
                else:
                    count += 1
                    self.room.take(ready.tenant, ready.group)
                    yield ready
            if count >= most or self.should_park_lanes:
                return

    def _draw(self, lines: dict[str, TenantJobs], turns: int) -> list[TenantJobs]:
        """Draw the next turns by chance and weight. The reads for all of them are started at once,
        unless some may be held back: then they would be wasted."""
        weights = [self.rules.weight(tenant) for tenant in lines]
        drawn = self.tx.store.chance.choices(list(lines.values()), weights, k=turns)
        if not self.rules.hold_back and turns > 1:
            different = list(dict.fromkeys(drawn))
            for line in different:
                line.ask_groups()
            for line in different:
                line.ask_jobs()
        return drawn

    def _tenants(self) -> Iterator[list[str]]:
        within = (k.TURN, self.queue)
        return ring(self.tx, ask_ring(self.tx, *within), *within)


def prefetch(tx: Tx, queue: str, op: ops.Claim) -> None:
    """Start the first reads of a Picker. Tenants are left out if the queue may be held back as a
    whole: then they are not needed."""
    tx.ask_rules(queue)
    known = tx.store.rules.get(queue)
    if known is not None and known[1].whole.is_default:
        within = (k.TURN, queue) if op.tenant is None else (k.LANE, queue, op.tenant)
        tx.asked_rings[within] = ask_ring(tx, *within)


def ask_ring(tx: Tx, *elements: Any) -> Any:
    """Request the first names on a ring, unless that was done before."""
    asked = tx.asked_rings.pop(elements, None)
    if asked is None:
        asked = tx.tr.snapshot.get_range(*tx.keys.span(*elements), limit=WINDOW + 1)
    return asked


def ring(tx: Tx, asked: Any, *elements: Any) -> Iterator[list[str]]:
    """The names on a ring, one window at a time. If there is more than one window, starts at a
    random position."""
    begin, end = tx.keys.span(*elements)
    found = [tx.keys.unpack(bytes(row.key))[-1] for row in asked]
    if len(found) <= WINDOW:
        if found:
            yield found
        return
    start = tx.keys.pack(*elements, tx.store.chance.randrange(RING))
    spans = [(start, end), (begin, start)]
    while spans:
        rows: list[Any] = []
        # A window that reaches the end of the ring continues at its beginning. Otherwise the first
        # names would hardly ever be in a window.
        while spans and len(rows) < WINDOW:
            first, last = spans.pop(0)
            more = list(tx.tr.snapshot.get_range(first, last, limit=WINDOW - len(rows)))
            rows += more
            if len(rows) == WINDOW:
                spans.insert(0, (bytes(more[-1].key) + b"\x00", last))
        if rows:
            yield [tx.keys.unpack(bytes(row.key))[-1] for row in rows]
