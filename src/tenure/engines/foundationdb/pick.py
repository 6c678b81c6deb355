"""Fetches what core.claim picks from. Tenants have their turns at random, by weight, so that claims
of several servers do not all want the same jobs. Uses snapshot reads; only the counts of limits add
conflict ranges."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from tenure.core.claim import InOrder, pick, room_of
from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.bucket import Bucket
from tenure.engines.foundationdb.keys import RING
from tenure.engines.foundationdb.lease_limits import Rules
from tenure.engines.foundationdb.parking import Idle
from tenure.engines.foundationdb.tuple_layer import after_ints, last_str
from tenure.engines.foundationdb.tx import Tx
from tenure.model import ops

WINDOW = 256  # tenants, or lanes of a tenant, that are read together
MOST_HELD_BACK = 1000  # lanes that one transaction skips
_FIRST_LOOK = 8  # jobs of a lane that are read at once
_NUMBERS = 4  # in a READY key, before the id
_TURN = 2**40  # from one turn of a tenant to its next, on average, if its weight is 1
_WINDOW_TURNS = 2**60  # more than those of all turns in a window


class Ready(NamedTuple):
    """A job in line. Sorts in the order of claiming."""

    order: bytes  # the end of its key: the priority, the place in enqueue order, and the id
    id: str
    tenant: str
    group: str


class Leases:
    """The leases that count against the limits of a queue."""

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

    def __init__(self, picker: Picker, tenant: str, group: str, look: int) -> None:
        self.group = group
        self._picker = picker
        self._tenant = tenant
        self._begin, self._end = picker.tx.keys.span(k.READY, picker.queue, tenant, group)
        self._prefix = len(self._begin) - 1
        self._look = look
        self._asked: Any = self._ask()
        self._head: Ready | None = None  # the next job, if it was read
        self._found: list[Ready] = []
        self._more = True
        self._count = 0  # jobs taken

    def _ask(self) -> Any:
        # Fetch many jobs in one reply, instead of some at a time.
        mode = self._picker.tx.store.handle.StreamingMode
        return self._picker.tx.tr.snapshot.get_range(
            self._begin,
            self._end,
            limit=self._look,
            streaming_mode=mode.want_all if self._look > _FIRST_LOOK else mode.iterator,
        )

    def place(self) -> Ready | None:
        """The next job, or None if there is none that may start."""
        if self._head is None and self._has_room():
            self._head = self._next()
        return self._head

    def _has_room(self) -> bool:
        """A lane was opened because it had room."""
        return not self._count or self._picker.has_room(self._tenant, self.group)

    def take(self, most: int) -> int:
        """Pick the first jobs. Returns how many there were."""
        before = self._count
        while self._count - before < most and (ready := self.place()) is not None:
            self._picker.picked.append(ready)
            self._picker.limits.take(ready.tenant, ready.group)
            self._head = None
            self._count += 1
        return self._count - before

    def _next(self) -> Ready | None:
        if not self._found and self._more:
            rows = list(self._asked if self._asked is not None else self._ask())
            self._asked = None
            self._more = len(rows) == self._look
            for row in rows:
                order = bytes(row.key)[self._prefix :]
                job_id = last_str(order, after_ints(order, 0, _NUMBERS))
                self._found.append(Ready(order, job_id, self._tenant, self.group))
            if rows:
                self._begin = bytes(rows[-1].key) + b"\x00"
            self._found.reverse()
            self._look = WINDOW
        return self._found.pop() if self._found else None


class TenantJobs:
    """A tenant, and its jobs across all groups that have room. Its turns come by chance, as often
    as its weight says: those of all tenants together are like draws by weight."""

    def __init__(self, picker: Picker, tenant: str, first_turn: int) -> None:
        self._picker = picker
        self.name = tenant
        self._weight = picker.rules.weight(tenant)
        self.turn: int = first_turn + self.stride
        self.jobs: InOrder[Lane] = InOrder(self._lanes(), Lane.place, Lane.take)
        self._windows: Iterator[list[str]] | None = None
        self._opened: list[Lane] | None = None  # their first jobs are requested
        self._any = False

    @property
    def stride(self) -> int:
        """Another one each time."""
        return 1 + int(self._picker.tx.store.chance.expovariate(self._weight) * _TURN)

    def ask_groups(self) -> None:
        """Request the tenant's groups, without waiting."""
        if self._windows is None:
            picker = self._picker
            within = (k.LANE, picker.queue, self.name)
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
            if not self._any and picker.op.tenant is None:
                picker.idle.append(Idle(picker.queue, self.name, None, False))
            return False
        self._any = True
        wanted = [
            group
            for group in groups
            if group not in picker.not_groups and picker.has_room(self.name, group)
        ]
        look = picker.look if len(wanted) < _FIRST_LOOK else min(picker.look, _FIRST_LOOK)
        self._opened = [Lane(picker, self.name, group, look) for group in wanted]
        return True

    def _lanes(self) -> Iterator[Lane]:
        """Those of each window in the order of their first jobs."""
        picker = self._picker
        while not picker.should_park_lanes and self.ask_jobs():
            heads, self._opened = [(lane.place(), lane) for lane in self._opened or ()], None
            for head, lane in heads:
                if head is None:
                    picker.idle.append(Idle(picker.queue, self.name, lane.group, False))
            yield from (lane for _, lane in sorted((h, one) for h, one in heads if h is not None))


class Picker:
    """Picks jobs of one queue for one claim. Implements core.claim.Source."""

    def __init__(self, tx: Tx, queue: str, op: ops.Claim, spread: int) -> None:
        self.tx = tx
        self.queue = queue
        self.op = op
        self.not_groups: frozenset[str] = frozenset(op.not_groups)
        self.rules: Rules = tx.rules(queue)
        self.limits: Leases = Leases(tx, self.rules)
        self.picked: list[Ready] = []
        self.idle: list[Idle] = []
        self.look: int = 1
        self.served: int = 0
        self._spread = spread
        self._most = 0
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
        left = self.limits.tenant(tenant) if group is None else self.limits.group(tenant, group)
        if left is None or left > 0:
            return True
        self._held_back += 1
        self.idle.append(Idle(self.queue, tenant, group, True))
        return False

    # path: jobs picked
    def pick(self, most: int) -> list[Ready]:
        """Pick up to `most` jobs. They count against the limits from now on. If claims were lost
        recently, picks some of the first jobs instead of the very first."""
        self._most = most
        pick([self], self.op.tenant, most * self._spread)
        return self.picked

    def room(self) -> int:
        whole = self.rules.whole
        if whole.paused:
            return 0
        self._bucket = Bucket(self.tx, self.queue, whole)
        leased = 0 if whole.concurrency is None else self.tx.in_use(self.queue, EVERYTHING)
        self._most = min(self._most, room_of(whole, leased, self._bucket.tokens))
        self.look = max(1, min(self._most * self._spread, 1000))
        return self._most if self.rules.any_concurrency else min(self._most * self._spread, 4096)

    def tenants(self, room: int) -> Iterator[TenantJobs]:
        """In the order of their first turns, one window after the other."""
        within = (k.TURN, self.queue)
        for n, names in enumerate(ring(self.tx, ask_ring(self.tx, *within), *within)):
            lines = [TenantJobs(self, name, n * _WINDOW_TURNS) for name in names]
            lines.sort(key=attrgetter("turn"))
            asked = 0
            for at, line in enumerate(lines):
                if self.should_park_lanes:
                    return
                if at == asked:
                    asked += self._ask(lines[at:], room - len(self.picked))
                yield line

    def _ask(self, lines: list[TenantJobs], turns: int) -> int:
        """Start the reads for as many tenants as are likely to be served in so many turns. If some
        may be held back, their reads might be wasted, and are not started. Returns how many
        tenants were looked at."""
        if self.rules.hold_back or turns <= 1:
            return len(lines)
        different = len(lines) * (1 - (1 - 1 / len(lines)) ** turns)
        asked = lines[: max(1, round(different))]
        for line in asked:
            line.ask_groups()
        for line in asked:
            line.ask_jobs()
        return len(asked)

    def tenant(self, name: str, room: int) -> TenantJobs | None:
        return TenantJobs(self, name, 0)

    def take(self, tenant: TenantJobs, most: int) -> int:
        if self.should_park_lanes or not self.has_room(tenant.name, None):
            return 0
        left = self.limits.tenant(tenant.name)
        return tenant.jobs.take(most if left is None else min(most, left))

    def spend(self, count: int) -> None:
        if count > self._most:
            self.picked = sorted(self.tx.store.chance.sample(self.picked, self._most))
        self.limits.write()
        self._bucket.use(len(self.picked))


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
