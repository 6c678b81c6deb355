"""The keys of a transaction: reading and writing jobs, with their indexes and counters.

Reads see earlier writes of the same transaction. Reading a job adds a conflict range: if another
transaction moves or claims it before the commit, the commit conflicts. Nothing else that others do
to the queue makes it conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.claimed_jobs import Mine, runs_of
from tenure.engines.foundationdb.indexes import Indexes
from tenure.engines.foundationdb.keys import Seq
from tenure.engines.foundationdb.lease_limits import Rules
from tenure.engines.foundationdb.near import Near
from tenure.engines.foundationdb.record import (
    Body,
    Held,
    Record,
    claimed,
    decode_body,
    decode_claim,
    decode_errors,
    decode_record,
    encode,
    parts_of,
    total_of,
)
from tenure.engines.foundationdb.store import Store
from tenure.engines.foundationdb.tuple_layer import pack_int
from tenure.model.job import Failure, State
from tenure.model.ops import Limit

WAKE_SHARDS = 8
_ZERO = bytes(8)
_RULES_STAMP = 16  # bytes of a RULES value; the rest is a key
_decode_limit = msgspec.json.Decoder(Limit).decode


class Asked(NamedTuple):
    """Jobs that are being read together."""

    ids: Sequence[str]
    jobs: Near
    claims: Near


class AskedMine(NamedTuple):
    """The same for jobs that this process has claimed."""

    jobs: Mapping[str, Mine]
    claims: Near


class Tx:
    """One try of a transaction."""

    def __init__(self, store: Store, tr: Any, now: int) -> None:
        self.store = store
        self.keys: k.Keys = store.keys
        self.tr = tr
        self.now = now
        self.wrote: bool = False
        self.has_claimed: bool = False  # by keys whose tokens are not known before the commit
        self.tells: bool = False  # whether to notify waiting processes
        self._began: float = store.pace.begin()
        self._version: int | None = None
        self.asked_jumps: list[Any] | None = None  # SEEN and JUMP; see `jumps`
        self.jump: tuple[int, int] | None = None
        self._asked: dict[str, Asked | AskedMine] = {}
        self._run_of: dict[str, list[str]] = {}  # neighbours among the jobs that were read
        self._asked_children: dict[str, Near] = {}
        self._asked_spans: dict[tuple[bytes, bytes], Any] = {}
        self._jobs: dict[str, Held | None] = {}
        self._waiting: dict[str, dict[str, None]] = {}
        self._rules: dict[str, Rules] = {}
        self._asked_rules: dict[str, Any] = {}
        self.asked_rings: dict[tuple[Any, ...], Any] = {}
        self._rules_values: dict[str, tuple[bytes, bytes]] = {}
        self._marked: set[bytes] = set()
        self._marked_lanes: set[tuple[str, str, str]] = set()  # whose LANE and TURN are marked
        self._freed: dict[tuple[str, TenantGroup], Any] = {}  # whether they had been put aside
        # By queue, tenant and group: the counters that included jobs before and after a change.
        self._counts: Counter[tuple[str, str, str, str, str]] = Counter()
        self._indexes = Indexes(store.keys)

    # Keys ---------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The read version of this transaction."""
        if self._version is None:
            self._version = int(self.tr.get_read_version().wait())
            if self.store.hybrid:
                self.store.pace.see(self._version, self._began)
        return self._version

    def set(self, key: bytes, value: bytes = b"") -> None:
        self.wrote = True
        if self.keys.is_hint(key):
            self.tr.options.set_next_write_no_write_conflict_range()
        self.tr.set(key, value)

    def clear(self, key: bytes) -> None:
        self.wrote = True
        if key in self._marked:
            self._marked.discard(key)
            self._marked_lanes.clear()
        if self.keys.is_hint(key):
            self.tr.options.set_next_write_no_write_conflict_range()
        self.tr.clear(key)

    def clear_span(self, *elements: Any) -> None:
        self.wrote = True
        span = self.keys.span(*elements)
        self._asked_spans.pop(span, None)  # results from before the write
        self.tr.clear_range(*span)

    def add(self, key: bytes, by: int) -> None:
        """Add to a counter without reading it. A counter that reaches zero is deleted."""
        if by:
            self.wrote = True
            self.tr.add(key, by.to_bytes(8, "little", signed=True))
            if by < 0:
                self.tr.compare_and_clear(key, _ZERO)

    def mark(self, key: bytes) -> None:
        """Write a key that says there may be something, at most once."""
        if key not in self._marked:
            self._marked.add(key)
            self.set(key)

    def _mark_lane(self, queue: str, tenant: str, group: str) -> None:
        """Let claims find the jobs of a lane."""
        lane = (queue, tenant, group)
        if lane not in self._marked_lanes:
            self.mark(self.keys.lane(*lane))
            self.mark(self.keys.turn(queue, tenant))
            self._marked_lanes.add(lane)

    def put_parts(self, data: bytes, *elements: Any) -> None:
        """Write a large value in parts."""
        for n, part in parts_of(data):
            self.set(self.keys.pack(*elements, n), part)

    def parts(self, *elements: Any) -> list[bytes]:
        """Read a large value of a job that was read with a conflict range."""
        return [bytes(row.value) for row in self.tr.snapshot.get_range(*self.keys.span(*elements))]

    def scan(self, begin: bytes, end: bytes, limit: int = 0) -> Iterator[tuple[Any, ...]]:
        """The tuples of the keys in a range, by snapshot read."""
        for row in self.tr.snapshot.get_range(begin, end, limit=limit):
            yield self.keys.unpack(bytes(row.key))

    def prefetch_span(self, *elements: Any) -> None:
        """Start reading a range that will be needed once."""
        span = self.keys.span(*elements)
        if span not in self._asked_spans:
            self._asked_spans[span] = self.tr.get_range(*span)

    def span(self, *elements: Any) -> Any:
        """The rows of a range, with a conflict range."""
        span = self.keys.span(*elements)
        asked = self._asked_spans.pop(span, None)
        return self.tr.get_range(*span) if asked is None else asked

    def flush(self) -> None:
        """Write deferred changes."""
        sums: Counter[tuple[Any, ...]] = Counter()
        for (queue, tenant, group, *counters), jobs in self._counts.items():
            for what, by in zip(counters, (-jobs, jobs), strict=True):
                if what:
                    sums[k.QUEUE_COUNT, queue, what] += by
                    sums[k.TENANT_COUNT, queue, tenant, what] += by
                    sums[k.GROUP_COUNT, queue, tenant, group, what] += by
                    if group:
                        sums[k.GROUP_TOTAL, queue, group, total_of(what)] += by
        self._counts.clear()
        for key, by in sums.items():
            self.add(self.keys.pack(*key), by)

    def finish(self) -> None:
        """Prepare for the commit."""
        self.put_freed_back()
        self.flush()
        if self.tells and self.wrote:
            self.add(self.keys.pack(k.WAKE, self.store.chance.randrange(WAKE_SHARDS)), 1)

    # Jobs ---------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> None:
        """Start reading jobs that will be needed."""
        jobs, asked = self._jobs, self._asked
        new = [one for one in dict.fromkeys(ids) if one not in jobs and one not in asked]
        mine = self.store.claimed.find(new)
        others = [one for one in new if one not in mine] if mine else new
        if mine:
            claims = Near(self, k.CLAIM, list(mine), limit=1)
            asked.update(dict.fromkeys(mine, AskedMine(mine, claims)))
        if others:
            asked.update(dict.fromkeys(others, self._ask(others)))

    def _ask(self, ids: Sequence[str]) -> Asked:
        return Asked(ids, Near(self, k.JOB, ids), Near(self, k.CLAIM, ids, limit=1))

    def ask_children(self, ids: Iterable[str]) -> None:
        """Start reading the children of jobs that may end."""
        new = [one for one in dict.fromkeys(ids) if one not in self._asked_children]
        if new:
            self._asked_children.update(dict.fromkeys(new, Near(self, k.CHILD, new)))

    def job(self, job_id: str) -> Held | None:
        """A job, or None if it does not exist. Those that were loaded together with it are read,
        too."""
        if job_id not in self._jobs:
            asked = self._asked.get(job_id) or self._ask([job_id])
            if isinstance(asked, AskedMine):
                self._read_mine(asked)
            else:
                self._read(asked)
        return self._jobs[job_id]

    def _read_mine(self, asked: AskedMine) -> None:
        """Jobs that this process has claimed, unless they have changed since."""
        same: dict[str, Mine] = {}
        others: list[str] = []
        for job_id, mine in asked.jobs.items():
            self._asked.pop(job_id, None)
            if job_id in self._jobs:  # it was added meanwhile
                continue
            rows = asked.claims.of(job_id)
            if rows and k.stamp_of(rows[0][0]) == mine.stamp:
                self._jobs[job_id] = Held(job_id, mine.record, self._errors, claimed=True)
                same[job_id] = mine
            else:
                self.store.claimed.forget(job_id)
                others.append(job_id)
        self._watch_jobs(runs_of(same))
        if others:
            self._read(self._ask(others))

    def _watch_jobs(self, runs: Sequence[list[str]]) -> None:
        self.watch_runs(k.JOB, runs)
        self._run_of.update((job_id, run) for run in runs if len(run) > 1 for job_id in run)

    def _read(self, asked: Asked) -> None:
        jobs = self._jobs
        self._watch_jobs(asked.jobs.runs())
        for job_id in asked.ids:
            self._asked.pop(job_id, None)
            if job_id not in jobs:  # it may have been added meanwhile
                jobs[job_id] = held = self._decoded(job_id, asked)
                if held is not None and held.record.state is State.PENDING:
                    # A concurrent claim does not write the key of a pending job. In any other
                    # state, the job cannot be claimed unless its key was written.
                    self.tr.add_read_conflict_range(*self.keys.span_of_job(k.CLAIM, job_id))

    def watch_runs(self, kind: int, runs: Iterable[Sequence[str]]) -> None:
        """Conflict with writes to the keys of jobs. One range for a run of neighbours costs as much
        as one for a single job."""
        for run in runs:
            first, last = self.keys.of_job(kind, run[0]), self.keys.of_job(kind, run[-1])
            self.tr.add_read_conflict_range(first, last + b"\xff")

    def jobs(self, ids: Sequence[str]) -> list[Held]:
        """The jobs that exist, all read at once."""
        self.load(ids)
        return [held for job_id in ids if (held := self.job(job_id)) is not None]

    def _decoded(self, job_id: str, asked: Asked) -> Held | None:
        rows = asked.jobs.of(job_id)
        if not rows:
            return None
        record = decode_record(rows[0][1])
        if record.state is State.PENDING:
            for key, value in asked.claims.of(job_id):
                version = int.from_bytes(k.stamp_of(key)[:8], "big")
                leased = claimed(record, decode_claim(value), version)
                return Held(job_id, leased, self._errors, claimed=True)
        return Held(job_id, record, self._errors)

    def held(self, job_id: str, record: Record, *, claimed: bool = False) -> Held:
        """A job whose record has been read."""
        return Held(job_id, record, self._errors, claimed=claimed)

    def _errors(self, job_id: str) -> tuple[Failure, ...]:
        return decode_errors(self.parts(k.ERRORS, job_id))

    def peek(self, ids: Iterable[str]) -> list[Held | None]:
        """The current jobs, by snapshot reads."""
        wanted = list(ids)
        asked = self._ask(list(dict.fromkeys(wanted)))
        found = {job_id: self._decoded(job_id, asked) for job_id in dict.fromkeys(wanted)}
        return [found[job_id] for job_id in wanted]

    def body(self, job_id: str) -> Body:
        return decode_body(self.parts(k.BODY, job_id))

    def next_seq(self) -> Seq:
        """The place of the next job in enqueue order."""
        return self.version, self.store.client, next(self.store.count)

    def add_job(self, job_id: str, record: Record, body: Body, waits_for: Iterable[str]) -> None:
        """Add a job."""
        self._asked.pop(job_id, None)
        self._jobs[job_id] = Held(job_id, record, self._errors)
        self._put_body(job_id, encode(body))
        self.tr.set(self.keys.of_job(k.JOB, job_id), encode(record))
        self._settle(job_id, None, record)
        self.mark(self.keys.prefix(k.QUEUE, record.queue))
        self.add_waits(job_id, waits_for)
        self.wrote = self.tells = True

    def add_waits(self, job_id: str, waits_for: Iterable[str]) -> None:
        """Let a job that waits for no other wait for these."""
        self._waiting[job_id] = parents = dict.fromkeys(waits_for)
        for parent in parents:
            self._asked_children.pop(parent, None)
            self.set(self.keys.pack(k.WAITS, job_id, parent))
            self.set(self.keys.pack(k.CHILD, parent, job_id))

    def _put_body(self, job_id: str, data: bytes) -> None:
        prefix = self.keys.of_job(k.BODY, job_id)
        for n, part in parts_of(data):
            self.tr.options.set_next_write_no_write_conflict_range()
            self.tr.set(prefix + pack_int(n), part)

    def put(self, held: Held, record: Record) -> None:
        """Store a new version of a job."""
        job_id = held.id
        if held.claimed:
            self.tr.clear_range(*self.keys.span_of_job(k.CLAIM, job_id))
            held.claimed = False
            self.store.claimed.forget(job_id)
        before, held.record = held.record, record
        self.tr.set(self.keys.of_job(k.JOB, job_id), encode(record))
        self.wrote = True
        self._settle(job_id, before, record)

    def drop_job(self, held: Held) -> None:
        """Delete a job."""
        for kind in (k.BODY, k.ERRORS, k.RESULT, k.CLAIM):
            self.clear_span(kind, held.id)
        self.clear(self.keys.pack(k.JOB, held.id))
        self._settle(held.id, held.record, None)
        self._jobs[held.id] = None
        self.tells = True

    def put_errors(self, held: Held, errors: tuple[Failure, ...]) -> None:
        held.errors = errors
        self.clear_span(k.ERRORS, held.id)
        self.put_parts(encode(errors), k.ERRORS, held.id)

    def _settle(self, job_id: str, before: Record | None, after: Record | None) -> None:
        """Remove a job from the indexes and counters of its old record, and add it to those of the
        new."""
        self.change_places(job_id, before, after)
        if after is not None and after.ready:
            self._mark_lane(after.queue, after.tenant, after.group)
        self._count(before, after)

    def change_places(self, job_id: str, before: Record | None, after: Record | None) -> None:
        """Update the indexes."""
        one = before or after
        assert one is not None
        assert before is None or after is None or before.seq == after.seq
        gone, new = self._indexes.changes(before, after)
        ends = self._indexes.ends(job_id, one.seq)
        tr = self.tr
        for start, end, is_hint in gone:
            if is_hint:
                tr.options.set_next_write_no_write_conflict_range()
            tr.clear(start + ends[end])
        for start, end, is_hint in new:
            if is_hint:
                tr.options.set_next_write_no_write_conflict_range()
            tr.set(start + ends[end], b"" if end else job_id.encode())
        self.wrote = True

    def _count(self, before: Record | None, after: Record | None) -> None:
        one = before or after
        assert one is not None
        was = "" if before is None else before.counted_as
        now = "" if after is None else after.counted_as
        self._counts[one.queue, one.tenant, one.group, was, now] += 1
        was_leased = before is not None and before.state is State.LEASED
        if was_leased and (after is None or after.state is not State.LEASED):
            self.free(one)

    def take(self, record: Record) -> None:
        """Count a lease that was not claimed here against its limits."""
        for scope in self.rules(record.queue).bounded(record.tenant, record.group):
            self.add(self.keys.pack(k.TAKEN, record.queue, *scope), 1)

    def free(self, record: Record) -> None:
        """Release a lease's share of its limits."""
        rules = self.rules(record.queue)
        for scope in rules.bounded(record.tenant, record.group) if rules.limits else ():
            self.add(self.keys.pack(k.FREED, record.queue, *scope), 1)
            if scope != EVERYTHING and (record.queue, scope) not in self._freed:
                aside = self.tr.get(self.keys.pack(k.PARKED, record.queue, *scope))
                self._freed[record.queue, scope] = aside

    def put_freed_back(self) -> None:
        """Make claims look again at lanes that were put aside and now have room."""
        freed, self._freed = self._freed, {}
        for (queue, scope), aside in freed.items():
            if aside.value is not None:
                self.put_back(queue, scope)

    def put_back(self, queue: str, scope: TenantGroup) -> None:
        """Make claims look again at a lane, or a tenant, that was put aside."""
        tenant, group = scope
        assert tenant is not None
        if group is not None:
            self.mark(self.keys.lane(queue, tenant, group))
        self.mark(self.keys.turn(queue, tenant))
        self.clear(self.keys.pack(k.PARKED, queue, *scope))

    # Dependencies -------------------------------------------------------------------------------

    def parents(self, job_id: str) -> dict[str, None]:
        """The parents a job still waits for, read once and kept up to date."""
        if job_id not in self._waiting:
            span = self.keys.span(k.WAITS, job_id)
            self._waiting[job_id] = dict.fromkeys(parent for _, parent in self.scan(*span))
        return self._waiting[job_id]

    def child_ids(self, parents: Sequence[str]) -> list[tuple[str, list[str]]]:
        """The ids of the jobs that wait for these parents, with conflict ranges."""
        self.ask_children(parents)
        runs: dict[str, Sequence[str]] = {}
        found = []
        for parent in parents:
            run = self._run_of.get(parent) or [parent]
            runs[run[0]] = run
            asked = self._asked_children.pop(parent, None) or Near(self, k.CHILD, [parent])
            rows = asked.of(parent)
            if rows:
                found.append((parent, [self.keys.unpack(key)[1] for key, _ in rows]))
        self.watch_runs(k.CHILD, runs.values())
        return found

    def drop_wait(self, job_id: str, parent: str) -> None:
        """Stop a job from waiting for a parent."""
        self._asked_children.pop(parent, None)
        self.parents(job_id).pop(parent, None)
        self.clear(self.keys.pack(k.WAITS, job_id, parent))
        self.clear(self.keys.pack(k.CHILD, parent, job_id))

    def drop_waits(self, job_id: str) -> None:
        """Stop a job from waiting for any parent."""
        for parent in self.parents(job_id):
            self._asked_children.pop(parent, None)
            self.clear(self.keys.pack(k.CHILD, parent, job_id))
        self.clear_span(k.WAITS, job_id)
        self._waiting[job_id] = {}

    # Limits -------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return [name for (name,) in self.scan(*self.keys.span(k.QUEUE))]

    def knows(self, queue: str) -> bool:
        """Whether there is such a queue. One without jobs may be forgotten meanwhile, but nothing
        depends on it, so this needs no conflict range."""
        return self.tr.snapshot.get(self.keys.pack(k.QUEUE, queue)).value is not None

    def rules(self, queue: str) -> Rules:
        """The limits of a queue. If they change before the commit, it conflicts."""
        if queue not in self._rules:
            stamp, _ = self._rules_value(queue)
            known = self.store.rules.get(queue)
            if known is None or known[0] != stamp:
                known = (stamp, self._read_rules(queue) if stamp else Rules(queue, {}))
                self.store.rules[queue] = known
            self._rules[queue] = known[1]
        return self._rules[queue]

    def ask_rules(self, queue: str) -> None:
        """Start reading the limits of a queue."""
        if queue not in self._asked_rules:
            self._asked_rules[queue] = self.tr.get(self.keys.pack(k.RULES, queue))

    def _rules_value(self, queue: str) -> tuple[bytes, bytes]:
        if queue not in self._rules_values:
            self.ask_rules(queue)
            found = self._asked_rules[queue].value
            value = b"" if found is None else bytes(found)
            self._rules_values[queue] = value[:_RULES_STAMP], value[_RULES_STAMP:]
        return self._rules_values[queue]

    def _put_rules_value(self, queue: str, stamp: bytes, aside_left: bytes) -> None:
        self._rules_values[queue] = stamp, aside_left
        self.set(self.keys.pack(k.RULES, queue), stamp + aside_left)

    def _read_rules(self, queue: str) -> Rules:
        limits: dict[TenantGroup, Limit] = {}
        for row in self.tr.snapshot.get_range(*self.keys.span(k.LIMIT, queue)):
            _, tenant, group = self.keys.unpack(bytes(row.key))
            limits[tenant, group] = _decode_limit(bytes(row.value))
        return Rules(queue, limits)

    def rules_changed(self, queue: str, aside_left: bytes | None) -> None:
        """Make all clients read the limits of a queue again."""
        self._rules.pop(queue, None)
        stamp = self.store.chance.randbytes(_RULES_STAMP)
        self._put_rules_value(queue, stamp, aside_left or b"")

    def aside_left(self, queue: str) -> bytes | None:
        """Where, in PARKED, the lanes begin that were put aside under limits that have since
        changed."""
        return self._rules_value(queue)[1] or None

    def aside_is_left(self, queue: str, aside_left: bytes | None) -> None:
        stamp, _ = self._rules_value(queue)
        self._put_rules_value(queue, stamp, aside_left or b"")

    @staticmethod
    def number_of(asked: Any) -> int:
        """The number in a counter that was requested."""
        found = asked.value
        return 0 if found is None else int.from_bytes(bytes(found), "little", signed=True)

    def in_use(self, queue: str, scope: TenantGroup) -> int:
        """How many leases count against a limit, possibly a few too many. Transactions that add to
        them must conflict on TAKEN: then others who take a lease conflict, and those who give one
        back do not."""
        kinds = (k.TAKEN, k.FREED)
        asked = [self.tr.snapshot.get(self.keys.pack(kind, queue, *scope)) for kind in kinds]
        taken, freed = (self.number_of(one) for one in asked)
        return taken - freed

    def recount_leases(self, queue: str) -> None:
        """Recount all leases under limits. Conflicts with transactions that take or give back
        one."""
        self.clear_span(k.TAKEN, queue)
        self.clear_span(k.FREED, queue)
        rules = self.rules(queue)
        taken: Counter[TenantGroup] = Counter()
        for row in self.tr.get_range(*self.keys.span(k.LEASE, queue)):
            _, tenant, group, _ = self.keys.unpack(bytes(row.key))
            taken.update(rules.bounded(tenant, group))
        for scope, count in taken.items():
            self.set(self.keys.pack(k.TAKEN, queue, *scope), count.to_bytes(8, "little"))
