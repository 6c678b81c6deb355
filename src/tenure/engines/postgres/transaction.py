"""One transaction: the jobs it has locked, the moves it makes, and what it tells the books.

Jobs are read, locked and decided on in memory, and written together by `flush`. What changed in
which lane is told at the end, once for each lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure import states
from tenure.engines.postgres.db import Db
from tenure.engines.postgres.rows import (
    DONE,
    LEASED,
    READY,
    STATES,
    WAITING,
    Row,
    code_of,
    errors_text,
)
from tenure.job import State

_PARENTS_DONE, _PARENT_FAILED = states.ParentsDone(), states.ParentFailed()


class LaneNews:
    """What a transaction changed in a lane."""

    __slots__ = ("counts", "head", "queue", "served")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.counts = [0] * len(STATES)
        self.head: tuple[int, int] | None = None  # the first of the jobs that became ready
        self.served = 0


class Transaction:
    """What the operations of one batch share. `given` is the time of a clock that is not the
    server's, if there is one."""

    def __init__(self, db: Db, given: int | None, sweep: int) -> None:
        self.db = db
        self.given = given
        self.sweep = sweep
        self.now = given or 0  # the server's time is read with what it is needed for
        self.woken = False  # whether time made jobs ready, or ended them
        self.once: dict[str, str | None] = {}  # the keys of the batch, with answers if used before
        self._rows: dict[int, Row] = {}
        self._ids: dict[str, Row] = {}
        self._dirty: dict[int, Row] = {}
        self._written: dict[int, tuple[int, int]] = {}  # what `at` and updated_at of these become
        self._results: dict[int, str | None] = {}
        self._gone: list[int] = []
        self._told: list[tuple[int, int]] = []  # (parent, child) that no longer waits
        self._freed: list[tuple[int, str]] = []  # (lane, unique key)
        self._lanes: dict[int, LaneNews] = {}
        self._news: list[tuple[Row, states.Event]] = []

    # Reading ------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> dict[str, Row]:
        """Lock the jobs of these ids, and read what is decided on; those that there are."""
        missing = [i for i in dict.fromkeys(ids) if i not in self._ids]
        if missing:
            sent = self.db.send("load", missing, [])
            self.read_clock()
            self._keep(sent.fetchall())
        return self._ids

    def loaded(self, job_id: str) -> Row | None:
        """A job that was loaded, if there is one."""
        return self._ids.get(job_id)

    def load_places(self, seqs: Sequence[int]) -> list[Row]:
        """The same for jobs by their places, in the order given."""
        missing = [seq for seq in seqs if seq not in self._rows]
        if missing:
            self._keep(self.db.all("load", [], missing))
        return [self._rows[seq] for seq in seqs if seq in self._rows]

    def _keep(self, rows: Iterable[tuple[object, ...]]) -> list[Row]:
        found = []
        for values in rows:
            row = Row(*values)  # type: ignore[arg-type]
            kept = self._rows.setdefault(row.seq, row)
            self._ids.setdefault(row.id, kept)
            found.append(kept)
        return found

    def read_clock(self) -> None:
        """Set the time to the server's, unless another was given."""
        if self.given is None:
            self.now = int(self.db.value("clock"))

    def forget(self) -> None:
        """Write what changed, and read everything anew from here on."""
        self.flush()
        self._rows.clear()
        self._ids.clear()

    # Moving -------------------------------------------------------------------------------------

    def move(self, row: Row, event: states.Event) -> states.Change | None:
        """Make the move that the table has for this event, if it has one."""
        change = states.decide(row, event, self.now)
        if change is not None:
            self.make(row, change)
        return change

    def make(self, row: Row, change: states.Change) -> None:
        """Carry out a change that was decided on this row."""
        code = code_of(change, self.now)
        self.count(row.queue, row.lane, row.code, code)
        if code == READY:
            self.joined(row)
        self.woken = self.woken or code != LEASED
        if row.code == WAITING:
            self._told += [(parent, row.seq) for parent in row.waits_for]
            row.waits_for = []
        row.code, row.attempts, row.run_at = code, change.attempts, change.run_at
        row.expires_at, row.worker = change.expires_at, change.worker
        row.errors_text = errors_text(change.errors)
        self._dirty[row.seq] = row
        self._written[row.seq] = (self.now if change.final else change.run_at, self.now)
        if change.final:
            if row.unique_key is not None:
                self._freed.append((row.lane, row.unique_key))
            self.ended(row)

    def finished(self, row: Row, result: str | None) -> None:
        """Note what an acknowledged job was acknowledged with."""
        self._results[row.seq] = result

    def ended(self, row: Row) -> None:
        """Those who wait for the job are to be told what became of it."""
        if row.is_parent:
            event = _PARENTS_DONE if row.code == DONE else _PARENT_FAILED
            self._news.append((row, event))

    def have_children(self, ids: Iterable[str]) -> None:
        """Jobs were added that wait for these; those that are loaded did not know."""
        for job_id in ids:
            row = self._ids.get(job_id)
            if row is not None:
                row.is_parent = True

    def acked(self, parents: Sequence[int]) -> None:
        """Jobs that others wait for were acknowledged, past the rows that were loaded."""
        for child, parent in self._children(parents):
            self.tell_child(child, parent, _PARENTS_DONE)
        self.settle()

    def settle(self) -> None:
        """Tell children what became of their parents, and theirs in turn."""
        while self._news:
            news, self._news = self._news, []
            events = {parent.seq: event for parent, event in news}
            for child, parent in self._children(list(events)):
                self.tell_child(child, parent, events[parent])

    def _children(self, parents: Sequence[int]) -> list[tuple[Row, int]]:
        """Those who wait for these, each with the parent, in the order of the parents."""
        known = [row for row in self._rows.values() if row.waits_for and not row.gone]
        found = self._keep(self.db.all("load_children", list(parents)))
        children = {row.seq: row for row in (*known, *found)}
        place = {parent: n for n, parent in enumerate(parents)}
        pairs = [
            (child, parent)
            for child in children.values()
            for parent in child.waits_for
            if parent in place
        ]
        pairs.sort(key=lambda pair: (place[pair[1]], pair[0].seq))
        return pairs

    def tell_child(self, child: Row, parent: int, event: states.Event) -> None:
        change = None if child.gone else states.decide(child, event, self.now)
        if change is None or change.state is State.WAITING or parent not in child.waits_for:
            return
        child.waits_for.remove(parent)
        self._told.append((parent, child.seq))
        if change.state is not State.PENDING or not child.waits_for:
            self.make(child, change)

    def remove(self, row: Row) -> None:
        """Delete a job, whatever its state; if it was not done, those who wait for it hear."""
        self.count(row.queue, row.lane, row.code, None)
        self._gone.append(row.seq)
        self._dirty.pop(row.seq, None)
        self._results.pop(row.seq, None)
        row.gone = True
        self._ids.pop(row.id, None)
        if row.code <= LEASED and row.unique_key is not None:
            self._freed.append((row.lane, row.unique_key))
        if row.code == WAITING:
            self._told += [(parent, row.seq) for parent in row.waits_for]
            row.waits_for = []
        if row.code != DONE and row.is_parent:
            self._news.append((row, states.ParentDeleted(row.id)))

    # Telling the books --------------------------------------------------------------------------

    def lane(self, queue: int, lane: int) -> LaneNews:
        news = self._lanes.get(lane)
        if news is None:
            news = self._lanes[lane] = LaneNews(queue)
        return news

    def count(
        self, queue: int, lane: int, source: int | None, target: int | None, n: int = 1
    ) -> None:
        """`n` jobs of the lane go from one state to another; None is nowhere."""
        counts = self.lane(queue, lane).counts
        if source is not None:
            counts[source] -= n
        if target is not None:
            counts[target] += n

    def joined(self, row: Row) -> None:
        """A job became ready."""
        news = self.lane(row.queue, row.lane)
        head = (row.priority, row.seq)
        news.head = head if news.head is None else min(head, news.head)

    # Writing ------------------------------------------------------------------------------------

    def free_keys(self) -> None:
        """Let go of the keys of jobs that ended, before another takes one."""
        if self._freed:
            lanes, keys = zip(*self._freed, strict=True)
            self.db.send("free_keys", list(lanes), list(keys))
            self._freed = []

    def flush(self) -> None:
        """Write what was decided."""
        self.free_keys()
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
