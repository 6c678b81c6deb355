"""One transaction: the books, the counters, the moves, and what a job's end means to others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from tenure import states
from tenure.engines.sqlite.books import Books, LaneBook
from tenure.engines.sqlite.db import Db, listed
from tenure.engines.sqlite.rows import (
    CODES,
    DONE,
    LEASED,
    READY,
    WAITING,
    Row,
    code_of,
    errors_text,
)
from tenure.job import State

# Where the table leads a leased job that is acknowledged: the same for every job.
_ACKED = CODES[states.plain(State.LEASED, states.Acked).target][0]
_PARENTS_DONE, _PARENT_FAILED = states.ParentsDone(), states.ParentFailed()

# Tokens follow the clock, so that a restored backup does not give out again those that were given
# out after it was made. The low bits are random, which helps where the clock went back as well.
# 41 bits of milliseconds since 2026 and these are exact in JavaScript until 2095.
_TOKEN_EPOCH_MS = 1_767_225_600_000
_TOKEN_RANDOM_BITS = 12

Held = tuple[int, str, int, int, int, str | None]  # seq, id, lane, state, token, unique key


class Transaction:
    """What the operations of one batch share."""

    def __init__(self, db: Db, now: int, sweep: int) -> None:
        self.db = db
        self.now = now
        self.sweep = sweep
        self.shared = False  # by several callers, who want Python's lock meanwhile
        self.books = Books(db)
        self._news: list[tuple[int, states.Event]] = []

    def next_tokens(self, n: int) -> int:
        """Take `n` tokens, which only grow; returns the one before them."""
        clock = (self.now - _TOKEN_EPOCH_MS) << _TOKEN_RANDOM_BITS
        at_least = clock + random.getrandbits(_TOKEN_RANDOM_BITS)
        ((last,),) = self.db.all("take_tokens", at_least, n)
        return int(last) - n

    def tokens_from(self, token: int) -> None:
        """Give no more tokens up to this one."""
        row = self.db.one("counter", "token")
        assert row is not None
        if token > row[0]:
            self.db.run("set_counter", token, "token")

    def last_seq(self) -> int:
        """The place of the job that was enqueued last."""
        row = self.db.one("last_seq")
        assert row is not None
        return int(row[0])

    def rows(self, ids: Iterable[str]) -> dict[str, Row]:
        """The rows of these jobs by id."""
        return {row[1]: Row(*row) for row in self.db.all("rows_by_id", listed(ids))}

    def move(self, row: Row, event: states.Event) -> states.Change | None:
        """Make the move that the table has for this event, if it has one."""
        change = states.decide(row, event, self.now)
        if change is not None:
            self.make(row, change)
        return change

    def make(self, row: Row, change: states.Change) -> None:
        """Carry out a change that was decided on this row."""
        code = code_of(change, self.now)
        at = self.now if change.final else change.run_at
        errors = errors_text(change.errors)
        lane = self.books.lane_by_id(row.lane)
        self.db.run(
            "move_job", row.seq, lane.tenant.queue.id, code, at, change.attempts, change.run_at,
            change.expires_at, change.worker, errors, self.now,
        )  # fmt: skip
        self.books.move(lane, row.code, code)
        if row.code == READY:
            self._unready(row, lane)
        if code == READY:
            self.db.run("insert_ready", row.lane, row.priority, row.seq)
            lane.joined(row.priority, row.seq)
        if row.code == WAITING:
            self.db.run("delete_deps_of_child", row.seq)
        row.code, row.attempts, row.run_at = code, change.attempts, change.run_at
        row.expires_at, row.worker, row.errors_text = change.expires_at, change.worker, errors
        if change.final:
            self.ended(row)

    def _unready(self, row: Row, lane: LaneBook) -> None:
        self.db.run("delete_ready", row.lane, row.priority, row.seq)
        lane.left(row.priority, row.seq)

    def ended(self, row: Row) -> None:
        """A job reached a final state: its key is free, and its children are told."""
        if row.unique_key is not None:
            self._free_key(row.lane, row.unique_key)
        done = row.state is State.DONE
        self._news.append((row.seq, _PARENTS_DONE if done else _PARENT_FAILED))

    def _free_key(self, lane: int, unique_key: str) -> None:
        self.db.run("delete_key", self.books.lane_by_id(lane).tenant.id, unique_key)

    def settle(self) -> None:
        """Tell children what became of their parents, and theirs in turn."""
        while self._news:
            news, self._news = self._news, []
            parents = self.db.all("parents_among", listed(seq for seq, _ in news))
            for seq, event in news:
                if (seq,) in parents:
                    self._tell_children(seq, event)

    def _tell_children(self, parent: int, event: states.Event) -> None:
        children = [child for (child,) in self.db.all("children", parent)]
        for row in self.db.all("rows_by_seq", listed(children)):
            self.tell_child(Row(*row), parent, event)

    def tell_child(self, child: Row, parent: int, event: states.Event) -> None:
        change = states.decide(child, event, self.now)
        if change is None or change.state is State.WAITING:
            return
        self.db.run("delete_dep", parent, child.seq)
        if change.state is not State.PENDING or not self.db.one("still_waits", child.seq):
            self.make(child, change)

    def finish(self, held: list[Held], results: list[str | None]) -> None:
        """Acknowledge leased jobs in bulk."""
        plain = [row[0] for row, result in zip(held, results, strict=True) if result is None]
        if plain:
            self.db.run("finish_jobs", _ACKED, self.now, self.now, listed(plain))
        if len(plain) < len(held):
            self.db.many(
                "finish_job",
                [
                    (_ACKED, self.now, self.now, result, row[0])
                    for row, result in zip(held, results, strict=True)
                    if result is not None
                ],
            )
        lanes = Counter([row[2] for row in held])
        self.books.load(lanes)
        for lane_id, n in lanes.items():
            self.books.move(self.books.lane_by_id(lane_id), LEASED, _ACKED, n)
        for _seq, _id, lane_id, _code, _token, unique_key in held:
            if unique_key is not None:
                self._free_key(lane_id, unique_key)
        if self.db.one("any_deps"):
            self._news.extend((row[0], _PARENTS_DONE) for row in held)
        self.settle()

    def remove(self, rows: list[Row]) -> None:
        """Delete rows, whatever their state; of a parent that was not done, its children hear."""
        seqs = listed(row.seq for row in rows)
        self.db.run("delete_jobs", seqs)
        self.db.run("delete_states", seqs)
        for row in rows:
            lane = self.books.lane_by_id(row.lane)
            self.books.move(lane, row.code, None)
            if row.code == READY:
                self._unready(row, lane)
            if row.code <= LEASED and row.unique_key is not None:
                self._free_key(row.lane, row.unique_key)
            if row.code == WAITING:
                self.db.run("delete_deps_of_child", row.seq)
            if row.code != DONE:
                self._news.append((row.seq, states.ParentDeleted(row.id)))
