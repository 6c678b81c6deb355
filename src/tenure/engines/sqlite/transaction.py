"""The core's transaction on SQLite: loaded jobs, the books, and writes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from tenure.core.transaction import Edit, Existing, Owner, UniqueKey
from tenure.engines.sql.rows import (
    DELAYED,
    LEASED,
    READY,
    STATES,
    WAITING,
    Row,
    job_of,
    result_text,
)
from tenure.engines.sql.side_tables import SideTables
from tenure.engines.sqlite import inserting
from tenure.engines.sqlite.counters import Books, Head, LaneBook
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.untold import TOLD_PER_STEP, Untold
from tenure.model import states
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Entry, Limit, Schedule
from tenure.model.records import Space
from tenure.settings import Settings

# Tokens follow the clock, so that a restored backup does not reuse tokens given out after it was
# made, and tokens do not tell how many claims there were. The low bits are random, which helps if
# the clock was set back too, and so are the steps between tokens of the same millisecond. With 41
# bits of milliseconds since 2026, tokens are exact in JavaScript until 2095.
_TOKEN_EPOCH_MS = 1_767_225_600_000
_TOKEN_RANDOM_BITS = 12
_TOKEN_STEPS = 16

# By all claims of a transaction together, however many and of however many queues: 10 to 30 ms.
SWEPT_PER_STEP = 1_000

_decode_schedule = msgspec.json.Decoder(Schedule).decode


class Transaction(SideTables):
    """Implements tenure.core.transaction.Transaction. Everything but the books is written at
    once."""

    writer = ""  # a file has one writer

    def __init__(self, books: Books, now: int, settings: Settings) -> None:
        super().__init__(books.db, now)
        self.books = books
        self.db = books.db
        self.now = now
        self.most_swept = settings.sweep
        self.may_sweep = max(settings.sweep, SWEPT_PER_STEP)  # so many more due jobs
        self.settings = settings
        self.kept: dict[type, Any] = {}
        self.may_tell = TOLD_PER_STEP  # so many more children
        self.shared = False  # whether several callers wait, who need the GIL meanwhile
        # The ready job behind those that a claim has picked, if it was read.
        self.upcoming: dict[LaneBook, Head] = {}
        self.news: list[tuple[Row, states.Event]] = []
        self._rows: dict[str, Row | None] = {}
        self._seqs: dict[str, int] = {}  # of parents

    def forget(self) -> None:
        self._rows.clear()
        self._seqs.clear()

    # Jobs ---------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> None:
        missing = [job_id for job_id in ids if job_id not in self._rows]
        if missing:
            found = {row[1]: Row(*row) for row in self.db.all("rows_by_id", listed(missing))}
            self._rows.update((job_id, found.get(job_id)) for job_id in missing)

    def job(self, job_id: str) -> Row | None:
        if job_id not in self._rows:
            self.load([job_id])
        return self._rows[job_id]

    def load_seqs(self, seqs: Iterable[int]) -> list[Row]:
        """The jobs with these numbers, in this order."""
        return self._loaded("rows_by_seq", listed(seqs))

    def _loaded(self, statement: str, *params: object) -> list[Row]:
        """The rows of a statement. Rows loaded before are reused, because they are kept up to
        date."""
        rows = []
        for values in self.db.all(statement, *params):
            row = self._rows.get(values[1])
            if row is None:
                row = self._rows[values[1]] = Row(*values)
            rows.append(row)
        return rows

    def save(self, job: Row, change: states.Change) -> None:
        before = job.code
        job.become(change, self.now)
        lane = self.books.lane_by_id(job.lane)
        self.db.run(
            "move_job", job.seq, lane.tenant.queue.id, job.code,
            self.now if change.final else job.run_at, job.attempts, job.run_at, job.expires_at,
            job.worker, job.errors_text, self.now,
        )  # fmt: skip
        self.books.move(lane, before, job.code)
        if before == LEASED:
            self.books.places.pop(job.id, None)
        if before == READY:
            self._unready(job, lane)
        if job.code == READY:
            self.db.run("insert_ready", job.lane, job.priority, job.seq)
            lane.joined(job.priority, job.seq)
        if before == WAITING and change.final:  # otherwise it waits for nothing any more
            self.db.run("delete_deps_of_child", job.seq)
        if job.unique_key is not None and change.final:
            self.free_key(job.lane, job.unique_key)
        elif job.unique_key is not None and before > LEASED:
            self.db.run("insert_key", lane.tenant.id, job.unique_key, job.seq)

    def edit(self, job: Row, edit: Edit) -> None:
        before, lane = job.code, self.books.lane_by_id(job.lane)
        if before == READY:
            self._unready(job, lane)
        job.take_in(edit, self.now)
        payload = None if edit.payload is None else str(edit.payload, "utf-8")
        self.db.run("edit_job", job.priority, payload, job.seq)
        self.db.run(
            "move_job", job.seq, lane.tenant.queue.id, job.code, job.run_at, job.attempts,
            job.run_at, job.expires_at, job.worker, job.errors_text, self.now,
        )  # fmt: skip
        self.books.move(lane, before, job.code)
        if job.code == READY:
            self.db.run("insert_ready", job.lane, job.priority, job.seq)
            lane.joined(job.priority, job.seq)

    def _unready(self, job: Row, lane: LaneBook) -> None:
        self.db.run("delete_ready", job.lane, job.priority, job.seq)
        lane.left(job.priority, job.seq)

    def free_key(self, lane: int, unique_key: str) -> None:
        self.db.run("delete_key", self.books.lane_by_id(lane).tenant.id, unique_key)

    def remove(self, job: Row) -> None:
        self.db.run("delete_job", job.seq)
        self.db.run("delete_state", job.seq)
        self._rows[job.id] = None
        self.books.places.pop(job.id, None)
        lane = self.books.lane_by_id(job.lane)
        self.books.move(lane, job.code, None)
        if job.code == READY:
            self._unready(job, lane)
        if job.code <= LEASED and job.unique_key is not None:
            self.free_key(job.lane, job.unique_key)
        if job.code == WAITING:
            self.db.run("delete_deps_of_child", job.seq)

    def put_result(self, job: Row, result: msgspec.Raw) -> None:
        self.db.run("put_result", result_text(result), job.seq)

    def existing(
        self, ids: Sequence[str], keys: Sequence[UniqueKey], parents: Sequence[str]
    ) -> Existing:
        found = self.db.all("known_ids", listed({*ids, *parents})) if ids or parents else []
        self._seqs.update((job_id, seq) for job_id, seq, _ in found)
        wanted = frozenset(parents)
        known = {job_id: STATES[code] for job_id, _, code in found if job_id in wanted}
        holders: dict[UniqueKey, str] = {}
        for key in keys:
            row = self.db.one("key_holder", *key)
            if row is not None:
                holders[key] = row[0]
        return Existing({job_id for job_id, _, _ in found}, holders, known)

    def owners(self, ids: Sequence[str]) -> dict[str, Owner]:
        self.load(ids)
        rows = [row for row in map(self.job, ids) if row is not None]
        self.books.load({row.lane for row in rows})
        return {row.id: self.owner_of(row.lane) for row in rows}

    def owner_of(self, lane: int) -> Owner:
        tenant = self.books.lane_by_id(lane).tenant
        return tenant.queue.name, tenant.name

    def queue_of(self, job: Row) -> str:
        return self.owner_of(job.lane)[0]

    def insert(self, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None) -> None:
        seqs = inserting.insert_jobs(self.db, self.books, self.now, specs, waits, self._seqs)
        self._added(seqs, (spec.id for spec in specs) if self._rows else ())

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        seqs = inserting.insert_entries(self.db, self.books, entries, self._seqs)
        self._added(seqs, seqs)
        self._tokens_from(max(entry.job.token for entry in entries))

    def _added(self, seqs: Mapping[str, int], ids: Iterable[str]) -> None:
        """Record inserted jobs, and forget lookups that did not find them."""
        self._seqs.update(seqs)
        for job_id in ids:
            self._rows.pop(job_id, None)

    def key_holder(self, job: Row) -> str | None:
        tenant = self.books.lane_by_id(job.lane).tenant
        row = self.db.one("key_holder", tenant.queue.name, tenant.name, job.unique_key)
        return None if row is None else str(row[0])

    # Dependencies -------------------------------------------------------------------------------

    def children(self, news: Sequence[tuple[Row, states.Event]]) -> list[tuple[Row, str]]:
        seqs = listed(parent.seq for parent, _ in news)
        known = {seq for (seq,) in self.db.all("parents_among", seqs)}
        pairs: list[tuple[Row, str]] = []
        for parent, event in news:
            if parent.seq in known:
                untold = Untold(parent.seq, parent.id, event, 0, self.books.take_seqs(0))
                found = self._told(untold) if self._is_first(untold) else []
                if untold.is_left:
                    self.db.run("leave_untold", *untold.row)
                pairs += [(row, parent.id) for row in found]
        return pairs

    def _is_first(self, untold: Untold) -> bool:
        """Whether all was told that happened to the parent before. If not, this has to wait: its
        children learn things in order."""
        untold.is_left = self.db.one("has_untold", untold.parent) is not None
        return not untold.is_left

    def _told(self, untold: Untold) -> list[Row]:
        """The next children to tell, as many as this transaction may."""
        most, self._seqs[untold.id] = self.may_tell, untold.parent
        rows = self._loaded("children", untold.parent, untold.after, untold.last, most + 1)
        untold.is_left = len(rows) > most
        rows = rows[:most]
        self.may_tell -= len(rows)
        if rows:
            untold.after = rows[-1].seq
        return rows

    def next_untold(self) -> list[tuple[Row, str, states.Event]]:
        told: list[tuple[Row, str, states.Event]] = []
        for number, *row in self.db.all("untold", self.may_tell):
            untold = Untold.of_row(row)
            told += [(child, untold.id, untold.event) for child in self._told(untold)]
            if untold.is_left:
                self.db.run("go_on_untold", untold.after, number)
                break
            self.db.run("drop_untold", number)
        return told

    @property
    def has_untold(self) -> bool:
        return self.db.one("any_untold") is not None

    def strike(self, child: Row, parent_id: str) -> None:
        self.db.run("delete_dep", self._seqs[parent_id], child.seq)

    def waits(self, child: Row) -> bool:
        return self.db.one("still_waits", child.seq) is not None

    def await_jobs(self, job: Row, ids: Sequence[str]) -> None:
        self.db.many("insert_dep", [(self._seqs[one], job.seq) for one in ids])

    # Leases -------------------------------------------------------------------------------------

    def next_tokens(self, n: int) -> list[int]:
        """`n` increasing tokens."""
        noise = secrets.token_bytes(n + 2)
        clock = (self.now - _TOKEN_EPOCH_MS) << _TOKEN_RANDOM_BITS
        at_least = clock + int.from_bytes(noise[:2]) % 2**_TOKEN_RANDOM_BITS
        steps = [1 + byte % _TOKEN_STEPS for byte in noise[2:]]
        ((last,),) = self.db.all("take_tokens", at_least, sum(steps))
        return list(accumulate(steps[1:], initial=last - sum(steps[1:])))

    def _tokens_from(self, token: int) -> None:
        """Give out no more tokens up to this one."""
        row = self.db.one("counter", "token")
        assert row is not None
        if token > row[0]:
            self.db.run("set_counter", token, "token")

    def hold(self, leases: Sequence[tuple[str, int]]) -> Mapping[str, Row]:
        self.load(job_id for job_id, _ in leases)
        return {job_id: row for job_id, row in self._rows.items() if row is not None}

    def extend(self, lease_ms: Mapping[str, int]) -> None:
        held = [(self._held(job_id), ms) for job_id, ms in lease_ms.items()]
        self.db.many("extend_job", [(self.now + ms, self.now, seq) for seq, ms in held])

    def report(self, progress: Mapping[str, tuple[int | None, str | None]]) -> None:
        held = [(self._held(job_id), news) for job_id, news in progress.items()]
        self.db.many("note_progress", [(*news, self.now, seq) for seq, news in held])

    def _held(self, job_id: str) -> int:
        row = self._rows[job_id]
        assert row is not None
        return row.seq

    # Limits -------------------------------------------------------------------------------------

    def lock_queue(self, queue: str, *, create: bool) -> bool:
        if create:
            self.books.queue_or_new(queue)
            self.db.run("use_queue", queue)
        return self.books.queue(queue) is not None

    def put_limit(self, old: Limit, new: Limit) -> None:
        self.books.put_limit(new)

    def fill_bucket(self, queue: str, tokens: int) -> None:
        book = self.books.queue_or_new(queue)
        book.tokens, book.tokens_at = tokens, self.now
        self.books.touch_queue(book)

    # Slots --------------------------------------------------------------------------------------

    def count_slots(self, scope: str, key: str) -> int:
        ended = self.db.run("drop_ended_slots", scope, key, self.now)
        self._count_slots(scope, key, -ended)
        row = self.db.one("slot_count", scope, key)
        return 0 if row is None else int(row[0])

    def has_slot(self, scope: str, key: str, holder: str) -> bool:
        return self.db.one("has_slot", scope, key, holder) is not None

    def put_slot(self, scope: str, key: str, holder: str, expires_at: int) -> None:
        new = not self.has_slot(scope, key, holder)
        self.db.run("put_slot", scope, key, holder, expires_at)
        self._count_slots(scope, key, int(new))

    def drop_slot(self, scope: str, key: str, holder: str) -> bool:
        dropped = self.db.run("drop_slot", scope, key, holder)
        self._count_slots(scope, key, -dropped)
        return bool(dropped)

    def _count_slots(self, scope: str, key: str, by: int) -> None:
        if by:
            self.db.run("count_slots", scope, key, by)
        if by < 0:
            self.db.run("drop_slot_count", scope, key)

    # Schedules and idempotency keys -------------------------------------------------------------

    def schedule(self, name: str) -> Schedule | None:
        row = self.db.one("schedule", name)
        return None if row is None else _decode_schedule(row[0])

    def put_schedule(self, schedule: Schedule) -> None:
        self.db.run("put_schedule", schedule.name, msgspec.json.encode(schedule).decode())

    def drop_schedule(self, name: str) -> bool:
        return bool(self.db.all("drop_schedule", name))

    def answers_of(self, key: str) -> str | None:
        row = self.db.one("once", key)
        return None if row is None else str(row[0])

    def put_answers(self, key: str, answers: bytes) -> None:
        self.db.run("put_once", key, self.now, answers.decode())

    def read_jobs(self, ids: Sequence[str]) -> Mapping[str, Job]:
        rows = [self.db.one("read_job", job_id) for job_id in ids]
        return {job.id: job for job in (job_of(row) for row in rows if row is not None)}

    # Records ------------------------------------------------------------------------------------

    def put_records(self, space: Space, values: Mapping[str, bytes]) -> None:
        rows = [(space, key, value.decode(), None) for key, value in values.items()]
        self.db.many("put_record", rows)

    def note_steps(self, ids: Sequence[str]) -> None:
        self.db.many("note_steps", [(self._held(job_id),) for job_id in ids])

    # Time ---------------------------------------------------------------------------------------

    def overdue(self, queue: str, limit: int) -> list[Row]:
        number = self.books.queue_or_new(queue).id
        return self._loaded("rows_leased", number, self.now, limit)

    def in_state(self, queue: str, code: int, until: int, limit: int) -> list[Row]:
        """The jobs of a queue whose time in this state is at or before `until`. Not for jobs that
        are leased or ready, which have other indexes."""
        number = self.books.queue_or_new(queue).id
        return self._loaded("rows_of_state", number, code, until, limit)

    def promote(self, queue: str, limit: int) -> int:
        due = self.in_state(queue, DELAYED, self.now, limit)
        if due:
            self.db.run("promote_jobs", listed(row.seq for row in due))
            self.db.many("insert_ready", [(row.lane, row.priority, row.seq) for row in due])
        for row in due:
            row.code = READY
            lane = self.books.lane_by_id(row.lane)
            lane.joined(row.priority, row.seq)
            self.books.move(lane, DELAYED, READY)
        return len(due)

    def expired(self, queue: str, limit: int) -> list[Row]:
        number = self.books.queue_or_new(queue).id
        return self._loaded("rows_expired", number, self.now, limit)
