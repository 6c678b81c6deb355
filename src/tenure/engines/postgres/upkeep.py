"""Maintenance and recounting."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from tenure.core import upkeep
from tenure.core.upkeep import Look
from tenure.engines.postgres.transaction import Transaction
from tenure.engines.sql.rows import CODES, DELAYED
from tenure.engines.sql.upkeep import InOneTransaction
from tenure.errors import QueueNotFound
from tenure.model import ops, queries
from tenure.model.job import first_id
from tenure.model.ops import Answer

MARKED_MS = 3600_000  # for which a batch is known to be committed; also in forget_marks
BOOKS_PER_STEP = 100  # of queues, which claims wait for meanwhile
_COUNTS = msgspec.structs.fields(queries.Counts)


class Upkeep(InOneTransaction[Transaction]):
    """The steps of maintenance. Those that may wait for other transactions come first, and the
    books come last, in the order in which all transactions lock them."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._untidy: list[str] = []  # queues whose books have something to fold in or to drop

    def look(self, op: ops.Maintain) -> Look:
        self._tx.reread()
        most = ops.QUEUES_PER_STEP
        states = [DELAYED, *(CODES[state][0] for state, _ in op.keeps)]
        keeps = [0, *(keep_ms for _, keep_ms in op.keeps)]
        page = (op.after, most + 1, states, keeps)
        rows = self._tx.db.all("look_at_queues", self._tx.given, *page)
        due = []
        for number, name, overdue, untidy, now in rows[:most]:
            self._tx.now, self._tx.queues[name] = now, number
            if overdue:
                due.append(name)
            if overdue or untidy:
                self._untidy.append(name)
        return Look(due, op.after, rows[most - 1][1] if len(rows) > most else None)

    def end_slots(self, limit: int) -> int:
        return int(self._tx.db.value("end_slots", self._tx.now, limit))

    def tidy(self, look: Look, limit: int) -> None:
        self._tx.reread()
        # Chosen at random, so that busy queues do not keep the others out.
        names = random.sample(self._untidy, min(len(self._untidy), BOOKS_PER_STEP))
        if names:
            numbers = [self._tx.queues[name] for name in names]
            self._tx.db.send("open_books", names, self._tx.given, True, False)
            for number in numbers:
                self._tx.db.send("drop_empty", number, limit)
            now = self._tx.now
            self._tx.db.send("forget_queues", numbers, now, now - ops.FORGET_MS)
        self._tx.db.send("forget_marks", first_id(self._tx.now - MARKED_MS), limit)
        self._tx.db.send("drop_records", self._tx.now, limit)
        self._forget_once(limit)

    def _forget_once(self, limit: int) -> None:
        """Delete old keys. If one appears later in the batch, it counts as unused."""
        old = self._tx.db.all("forget_once", self._tx.now - ops.ONCE_MS, limit)
        again = sorted(self._tx.once.keys() & {key for (key,) in old})
        if again:
            self._tx.once |= dict(self._tx.db.all("take_keys", self._tx.given, again))


def maintain(tx: Transaction, batch: Sequence[ops.Maintain]) -> list[Answer]:
    return [upkeep.maintain(Upkeep(tx), op) for op in batch]


def reconcile(tx: Transaction, batch: Sequence[ops.Reconcile]) -> list[Answer]:
    return [_reconcile(tx, op) for op in batch]


def _reconcile(tx: Transaction, op: ops.Reconcile) -> Answer:
    """Recount lanes from their jobs. Tenants and the queue change by the same amounts."""
    row = tx.db.one("queue_id", op.queue)
    if row is None:
        return QueueNotFound(op.queue)
    off = tx.db.one("recount", row[0], op.tenant, op.group)
    assert off is not None
    counts = {field.name: by for field, by in zip(_COUNTS, off, strict=True)}
    return ops.Corrected({name: by for name, by in counts.items() if by})
