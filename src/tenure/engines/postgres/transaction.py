"""The core's transaction on PostgreSQL: locked jobs, transitions, and changes to the books.

Jobs are locked, read and changed in memory, and written together by `flush`. The changes of counts
are written at the end, once per lane.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tenure.core.transaction import Edit, Existing, Owner, UniqueKey
from tenure.engines.postgres import insert
from tenure.engines.postgres.session import Db
from tenure.engines.sql.rows import LEASED, READY, STATES, job_of, result_text
from tenure.engines.sql.rows import Row as PlainRow
from tenure.engines.sql.side_tables import SideTables, store_limit
from tenure.model import states
from tenure.model.job import Job, JobSpec, State
from tenure.model.ops import Entry, Limit, Schedule
from tenure.model.records import Space
from tenure.settings import Settings

LOCK_WAIT = "900ms"  # as in the functions: see plans.sql

_decode_schedule = msgspec.json.Decoder(Schedule).decode


class Row(PlainRow, gc=False):
    """A row of `load`."""

    queue: int
    queue_name: str
    tenant: int
    is_parent: bool
    waits_for: list[int]
    gone: bool = False


class Held(NamedTuple):
    """A row of `hold` (core.Lease)."""

    seq: int
    state: State
    token: int
    busy: bool


class LaneNews:
    """The changes of a transaction to one lane."""

    __slots__ = ("counts", "head", "queue", "served")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.counts = [0] * len(STATES)
        self.head: tuple[int, int] | None = None  # the first of the jobs that became ready
        self.served = 0

    def joined(self, priority: int, seq: int) -> None:
        """A job became ready."""
        head = (priority, seq)
        self.head = head if self.head is None else min(head, self.head)


class Transaction(SideTables):
    """Implements tenure.core.transaction.Transaction. `given` is the time of a clock other than the
    server's, if any. `elsewhere` sees recent commits if this transaction's snapshot is fixed."""

    def __init__(
        self, db: Db, given: int | None, settings: Settings, elsewhere: Db | None = None
    ) -> None:
        super().__init__(db, given)
        self.db = db
        self.given = given
        self.most_swept = settings.sweep
        self.settings = settings
        self.kept: dict[type, Any] = {}
        self.woken = False  # whether jobs became ready, or ended, because they were due
        self.once: dict[str, str | None] = {}  # keys of the batch, with stored results
        self.queues: dict[str, int] = {}  # the ids of queues looked up so far
        self.news: list[tuple[Row, states.Event]] = []
        self._elsewhere = elsewhere
        self._now = given
        self._rows: dict[int, Row] = {}
        self._ids: dict[str, Row | None] = {}
        self._seqs: dict[str, int] = {}  # of parents
        self._held: dict[str, Held] = {}
        self._is_new_schedule = False  # the last one that was looked up
        self._dirty: dict[int, Row] = {}
        self._written: dict[int, tuple[int, int]] = {}  # the new `at` and updated_at by seq
        self._results: dict[int, str | None] = {}
        self._gone: list[int] = []
        self._told: list[tuple[int, int]] = []  # (parent, child) pairs that no longer wait
        self._freed: list[tuple[int, str]] = []  # (lane, unique key)
        self._lanes: dict[int, LaneNews] = {}

    @property
    def now(self) -> int:
        """The server's time, unless another was given. Statements that are sent anyway return it;
        it is queried only if none did."""
        if self._now is None:
            self._now = int(self.db.value("clock"))
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = now

    def _read_clock(self) -> None:
        """Set the time to the server's, unless another was given. Earlier statements have completed
        by then, so this costs no extra round trip."""
        self._now = self.given
        _ = self.now

    @property
    def writer(self) -> str:
        """A new name, because a record that another transaction uses would be waited for."""
        return secrets.token_hex(6)

    def forget(self) -> None:
        self.reread()
        self._seqs.clear()
        self._now = self.given

    def reread(self) -> None:
        """Write all changes, and read jobs again from here on."""
        self.flush()
        self._rows.clear()
        self._ids.clear()

    # Jobs ---------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> None:
        missing = [i for i in dict.fromkeys(ids) if i not in self._ids]
        if missing:
            sent = self.db.send("load", missing, [])
            self._read_clock()  # loading may have waited for locks
            found = {row.id: row for row in self._keep(sent.fetchall())}
            self._ids.update((job_id, found.get(job_id)) for job_id in missing)

    def job(self, job_id: str) -> Row | None:
        if job_id not in self._ids:
            self.load([job_id])
        return self._ids[job_id]

    def load_seqs(self, seqs: Sequence[int]) -> list[Row]:
        """The jobs with these numbers that exist, in this order."""
        missing = [seq for seq in seqs if seq not in self._rows]
        if missing:
            self._keep(self.db.all("load", [], missing))
        return [self._rows[seq] for seq in seqs if seq in self._rows]

    def ids_of(self, seqs: Sequence[int]) -> dict[int, str]:
        """The ids of the jobs with these numbers, without locking them. Also reads the time."""
        sent = self.db.send("ids_of", list(seqs))
        self._read_clock()
        return dict(sent.fetchall())

    def _keep(self, found: Iterable[tuple[object, ...]]) -> list[Row]:
        """The rows of a statement. Rows loaded before are reused, because they are kept up to
        date."""
        kept = []
        for values in found:
            row = Row(*values)  # type: ignore[arg-type]
            row = self._rows.setdefault(row.seq, row)
            self._ids[row.id] = None if row.gone else row
            kept.append(row)
        return kept

    def save(self, job: Row, change: states.Change) -> None:
        before = job.code
        job.become(change, self.now)
        self.count(job.queue, job.lane, before, job.code)
        if job.code == READY:
            self.lane(job.queue, job.lane).joined(job.priority, job.seq)
        self.woken = self.woken or job.code != LEASED
        self._wait_no_more(job)
        self._dirty[job.seq] = job
        self._written[job.seq] = (self.now if change.final else job.run_at, self.now)
        if job.unique_key is not None and change.final:
            self._freed.append((job.lane, job.unique_key))
        elif job.unique_key is not None and before > LEASED:
            self._free_keys()
            self.db.send("insert_key", job.tenant, job.unique_key, job.seq)

    def edit(self, job: Row, edit: Edit) -> None:
        before = job.code
        job.take_in(edit, self.now)
        self.count(job.queue, job.lane, before, job.code)
        if job.code == READY:
            self.lane(job.queue, job.lane).joined(job.priority, job.seq)
            self.woken = True
        self._dirty[job.seq] = job
        self._written[job.seq] = (job.run_at, self.now)
        payload = None if edit.payload is None else str(edit.payload, "utf-8")
        self.db.send("edit_job", job.priority, payload, job.seq)
        self.db.send("edit_state", job.priority, job.seq)

    def _wait_no_more(self, job: Row) -> None:
        """Strike the parents of a job, which only a waiting one has."""
        self._told += [(parent, job.seq) for parent in job.waits_for]
        job.waits_for = []

    def remove(self, job: Row) -> None:
        self.count(job.queue, job.lane, job.code, None)
        self._gone.append(job.seq)
        self._dirty.pop(job.seq, None)
        self._results.pop(job.seq, None)
        job.gone = True
        self._ids[job.id] = None
        if job.code <= LEASED and job.unique_key is not None:
            self._freed.append((job.lane, job.unique_key))
        self._wait_no_more(job)

    def put_result(self, job: Row, result: msgspec.Raw) -> None:
        self._results[job.seq] = result_text(result)

    def existing(
        self, ids: Sequence[str], keys: Sequence[UniqueKey], parents: Sequence[str]
    ) -> Existing:
        self.flush()
        wanted = list(map(list, zip(*keys, strict=True)))
        held = self.db.send("held_ids", list(ids)) if ids else None
        holding = self.db.send("key_holders", *wanted) if keys else None
        after = self.db.send("parents", list(parents)) if parents else None
        taken = {job_id for (job_id,) in held.fetchall()} if held else set()
        holders = {(q, t, k): job_id for q, t, k, job_id in holding.fetchall()} if holding else {}
        known: dict[str, State] = {}
        for job_id, seq, code in after.fetchall() if after else ():
            self._seqs[job_id] = seq
            known[job_id] = STATES[code]
        if self._elsewhere is not None:
            taken |= {job_id for (job_id,) in self._elsewhere.all("held_ids", list(ids))}
            seen = self._elsewhere.all("key_holders", *wanted) if keys else []
            holders = {(q, t, k): job_id for q, t, k, job_id in seen} | holders
        return Existing(taken, holders, known)

    def owners(self, ids: Sequence[str]) -> dict[str, Owner]:
        rows = self.db.all("owned_by_id", list(ids)) if ids else []
        return {job_id: (queue, tenant) for job_id, _, queue, tenant in rows}

    def queue_of(self, job: Row) -> str:
        return job.queue_name

    def insert(self, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None) -> None:
        self.flush()
        self._now, seqs = insert.insert_jobs(self.db, self.given, specs, waits)
        if waits is not None or self._ids:
            ids = [spec.id for spec in specs]
            self._added(ids, seqs)
            self._depend(zip(ids, waits or (), strict=False))

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        self.flush()
        places = insert.insert_entries(self.db, entries)
        for entry, (seq, lane, queue, code) in zip(entries, places, strict=True):
            self.count(queue, lane, None, code)
            if code == READY:
                self.lane(queue, lane).joined(entry.job.priority, seq)
        self._added([entry.job.id for entry in entries], [place[0] for place in places])
        self._depend((entry.job.id, entry.waits_for) for entry in entries)

    def _added(self, ids: Sequence[str], seqs: Sequence[int]) -> None:
        """Record inserted jobs, and forget lookups that did not find them."""
        self._seqs.update(zip(ids, seqs, strict=True))
        for job_id in self._ids.keys() & ids:
            del self._ids[job_id]

    def _depend(self, waits: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Store dependencies, and mark loaded parents as such."""
        pairs = [(parent, child) for child, parents in waits for parent in parents]
        if pairs:
            parents = [self._seqs[parent] for parent, _ in pairs]
            self.db.send("insert_deps", parents, [self._seqs[child] for _, child in pairs])
        for parent, _ in pairs:
            row = self._ids.get(parent)
            if row is not None:
                row.is_parent = True

    def key_holder(self, job: Row) -> str | None:
        self._free_keys()
        row = self.db.one("key_holder", job.tenant, job.unique_key)
        return None if row is None else str(row[0])

    # Dependencies -------------------------------------------------------------------------------

    def children(self, news: Sequence[tuple[Row, states.Event]]) -> list[tuple[Row, str]]:
        return self.children_of({parent.seq: parent.id for parent, _ in news if parent.is_parent})

    def children_of(self, parents: Mapping[int, str]) -> list[tuple[Row, str]]:
        """`children`, for parents given by number and id."""
        if not parents:
            return []
        self._seqs.update((job_id, seq) for seq, job_id in parents.items())
        known = [row for row in self._rows.values() if row.waits_for and not row.gone]
        found = self._keep(self.db.all("load_children", list(parents)))
        children = {row.seq: row for row in (*known, *found)}
        place = {parent: n for n, parent in enumerate(parents)}
        pairs = [
            (place[parent], child.seq, child, parents[parent])
            for child in children.values()
            for parent in child.waits_for
            if parent in place
        ]
        pairs.sort(key=lambda pair: pair[:2])
        return [(child, parent_id) for _, _, child, parent_id in pairs]

    def strike(self, child: Row, parent_id: str) -> None:
        parent = self._seqs[parent_id]
        child.waits_for.remove(parent)
        self._told.append((parent, child.seq))

    def waits(self, child: Row) -> bool:
        return bool(child.waits_for)

    def await_jobs(self, job: Row, ids: Sequence[str]) -> None:
        self._seqs[job.id] = job.seq
        self._depend([(job.id, ids)])
        job.waits_for = [self._seqs[one] for one in ids]

    # Leases -------------------------------------------------------------------------------------

    def hold(self, leases: Sequence[tuple[str, int]]) -> Mapping[str, Held]:
        ids, tokens = map(list, zip(*dict.fromkeys(leases), strict=True))
        self._held = {}
        for job_id, seq, code, token, mine, now in self.db.all(
            "hold", self.given, ids, tokens, LEASED
        ):
            self._held[job_id] = Held(seq, STATES[code], token, busy=not mine)
            self._now = now
        return self._held

    def extend(self, lease_ms: Mapping[str, int]) -> None:
        until = {self._held[job_id].seq: self.now + ms for job_id, ms in lease_ms.items()}
        self.db.send("extend", self.now, list(until), list(until.values()))

    def report(self, progress: Mapping[str, tuple[int | None, str | None]]) -> None:
        percents, notes = zip(*progress.values(), strict=True)
        seqs = [self._held[job_id].seq for job_id in progress]
        self.db.send("note_progress", self.now, seqs, list(percents), list(notes))

    # Limits -------------------------------------------------------------------------------------

    def lock_queue(self, queue: str, *, create: bool) -> bool:
        """Block claims and new lanes, and bring the books up to date. Does not wait long for a
        producer with an uncommitted new lane, because claims wait behind this lock."""
        self.forget()
        self.db.send("wait_at_most", LOCK_WAIT)
        while True:
            if create:
                self.db.send("add_queue", queue)
            row = self.db.one("lock_queue", queue)
            if row is not None or not create:
                break  # otherwise it was forgotten in between
        if row is not None:
            self.queues[queue] = row[0]
            self.db.send("fold", row[0])
            if create:
                self.db.send("use_queue", row[0])
        return row is not None

    def put_limit(self, old: Limit, new: Limit) -> None:
        """The server decides which tenants and lanes are affected, because it also creates
        lanes."""
        queue = self.queues[new.queue]
        store_limit(self.db, new, queue)
        if new.tenant is not None:
            self.db.send("rebound", queue, new.tenant)

    def fill_bucket(self, queue: str, tokens: int) -> None:
        self.db.send("save_queue", tokens, self.now, self.queues[queue])

    # Schedules and idempotency keys -------------------------------------------------------------

    def schedule(self, name: str) -> Schedule | None:
        sent = self.db.send("schedule", name)
        self._read_clock()  # reading the schedule may have waited for a lock
        row = sent.fetchone()
        self._is_new_schedule = row is None
        return None if row is None else _decode_schedule(row[0])

    def put_schedule(self, schedule: Schedule) -> None:
        """Fails and is tried again if another transaction has added it since it was looked up."""
        statement = "add_schedule" if self._is_new_schedule else "put_schedule"
        self.db.send(statement, schedule.name, msgspec.json.encode(schedule).decode())

    def drop_schedule(self, name: str) -> bool:
        return self.db.one("drop_schedule", name) is not None

    def answers_of(self, key: str) -> str | None:
        return self.once[key]  # looked up at the start of the batch

    def put_answers(self, key: str, answers: bytes) -> None:
        text = self.once[key] = answers.decode()
        self.db.send("put_answers", text, key)

    def read_jobs(self, ids: Sequence[str]) -> Mapping[str, Job]:
        self.flush()
        asked = [self.db.send("read_job", job_id) for job_id in ids]
        rows = [sent.fetchone() for sent in asked]
        return {job.id: job for job in (job_of(row) for row in rows if row is not None)}

    # Records ------------------------------------------------------------------------------------

    def put_records(self, space: Space, values: Mapping[str, bytes]) -> None:
        texts = [value.decode() for value in values.values()]
        self.db.send("put_records", space, list(values), texts)

    def note_steps(self, ids: Sequence[str]) -> None:
        self.db.send("note_steps", list(ids))

    # Time ---------------------------------------------------------------------------------------

    def overdue(self, queue: str, limit: int) -> list[Row]:
        return self.in_state(queue, LEASED, self.now, limit)

    def in_state(self, queue: str, code: int, until: int, limit: int) -> list[Row]:
        """The jobs of a queue whose time in this state is at or before `until`."""
        self.reread()
        return self.load_seqs(self.db.value("overdue", self.queues[queue], code, until, limit))

    def promote(self, queue: str, limit: int) -> int:
        self.reread()
        due = int(self.db.value("promote", self.queues[queue], self.now, limit))
        self.woken = self.woken or due > 0
        return due

    def expired(self, queue: str, limit: int) -> list[Row]:
        self.reread()
        return self.load_seqs(self.db.value("expired", self.queues[queue], self.now, limit))

    # The books ----------------------------------------------------------------------------------

    def lane(self, queue: int, lane: int) -> LaneNews:
        news = self._lanes.get(lane)
        if news is None:
            news = self._lanes[lane] = LaneNews(queue)
        return news

    def count(self, queue: int, lane: int, source: int | None, target: int | None) -> None:
        """Count a job of the lane as moved between states. None means not in the store."""
        counts = self.lane(queue, lane).counts
        if source is not None:
            counts[source] -= 1
        if target is not None:
            counts[target] += 1

    # Writing ------------------------------------------------------------------------------------

    def _free_keys(self) -> None:
        """Release the unique keys of jobs that ended, before others take them."""
        if self._freed:
            lanes, keys = zip(*self._freed, strict=True)
            self.db.send("free_keys", list(lanes), list(keys))
            self._freed = []

    def flush(self) -> None:
        """Write all changes."""
        self._free_keys()
        if self._dirty:
            rows = list(self._dirty.values())
            written = [self._written[row.seq] for row in rows]
            self.db.send(
                "save", [row.seq for row in rows], [row.code for row in rows],
                [at for at, _ in written], [row.attempts for row in rows],
                [row.run_at for row in rows], [row.expires_at for row in rows],
                [row.worker for row in rows], [row.errors_text for row in rows],
                [updated_at for _, updated_at in written],
            )  # fmt: skip
            self._dirty = {}
        if self._results:
            self.db.send("finish", list(self._results), list(self._results.values()))
            self._results = {}
        if self._told:
            parents, children = zip(*self._told, strict=True)
            self.db.send("delete_deps", list(parents), list(children))
            self._told = []
        if self._gone:
            self.db.send_named("delete_jobs", {"seqs": self._gone})
            self._gone = []
        self._tell()

    def _tell(self) -> None:
        lanes = {
            lane: news
            for lane, news in self._lanes.items()
            if any(news.counts) or news.head or news.served
        }
        self._lanes = {}
        if lanes:
            told = list(lanes.values())
            heads = [news.head or (None, None) for news in told]
            self.db.send(
                "tell", [news.queue for news in told], list(lanes),
                *([news.counts[code] for news in told] for code in range(len(STATES))),
                [priority for priority, _ in heads], [seq for _, seq in heads],
                [news.served for news in told],
            )  # fmt: skip
