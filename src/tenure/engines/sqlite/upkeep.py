"""Maintenance and recounting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenure.core import upkeep
from tenure.core.moves import resume
from tenure.core.upkeep import Look
from tenure.engines.sql.rows import CODES, DELAYED
from tenure.engines.sql.upkeep import InOneTransaction
from tenure.engines.sqlite.db import json
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import QueueNotFound
from tenure.model import ops, queries
from tenure.model.ops import Answer

_COUNTS = msgspec.structs.fields(queries.Counts)


class Upkeep(InOneTransaction[Transaction]):
    """The steps of maintenance."""

    def look(self, op: ops.Maintain) -> Look:
        self._tx.books.flush()
        now, most = self._tx.now, ops.QUEUES_PER_STEP
        until = {CODES[state][0]: now - ms for state, ms in op.keeps if ms is not None}
        params: dict[str, object] = {"after": op.after, "most": most + 1, "now": now}
        params["until"] = json({DELAYED: now, **until})
        found = self._tx.db.named("look_at_queues", params)
        last = found[most - 1][0] if len(found) > most else None
        return Look([name for name, due in found[:most] if due], op.after, last)

    def end_slots(self, limit: int) -> int:
        ended = self._tx.db.all("ended_slots", self._tx.now, limit)
        return sum(self._tx.drop_slot(*slot) for slot in ended)

    def tidy(self, look: Look, limit: int) -> None:
        self._tx.books.forget()
        self._forget_queues(look)
        page = {"after": look.after, "last": look.last, "most": limit}
        self._tx.db.named("drop_empty_lanes", page)
        self._tx.db.named("drop_empty_tenants", page)
        self._tx.db.run("drop_once", self._tx.now - ops.ONCE_MS, limit)
        self._tx.db.run("drop_records", self._tx.now, limit)

    def _forget_queues(self, look: Look) -> None:
        """Note which queues are empty now, and delete those that have been empty for long."""
        db, now = self._tx.db, self._tx.now
        page = {"after": look.after, "last": look.last}
        db.named("note_emptied", {**page, "now": now})
        old = db.named("emptied_before", {**page, "until": now - ops.FORGET_MS})
        for (queue,) in old:
            for statement in ("drop_lanes_of", "drop_tenants_of", "drop_queue"):
                db.run(statement, queue)


# path: maintenance of a store
def maintain(tx: Transaction, batch: Sequence[ops.Maintain]) -> list[Answer]:
    return [_maintain(tx, op) for op in batch]


def _maintain(tx: Transaction, op: ops.Maintain) -> ops.Maintained:
    """Tell all children about their parents first, in as many steps as it takes."""
    resume(tx)
    if tx.has_untold:
        return ops.Maintained(after=op.after)
    return upkeep.maintain(Upkeep(tx), op)


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        counted = tx.count_slots(op.scope, op.key)
        row = tx.db.one("recount_slots", op.scope, op.key)
        assert row is not None
        by = row[0] - counted
        tx.db.run("count_slots", op.scope, op.key, by)
        tx.db.run("drop_slot_count", op.scope, op.key)
        answers.append(ops.Corrected({"slots": by} if by else {}))
    return answers


def reconcile(tx: Transaction, batch: Sequence[ops.Reconcile]) -> list[Answer]:
    return [_reconcile(tx, op) for op in batch]


def _reconcile(tx: Transaction, op: ops.Reconcile) -> Answer:
    """Recount lanes from their jobs, tenants from their lanes, and the queue from its tenants."""
    queue = tx.books.queue(op.queue)
    if queue is None:
        return QueueNotFound(op.queue)
    tx.books.flush()
    scope = (queue.id, op.tenant, op.group)
    before = _counted(tx, queue.id, op)
    found = {(lane, code): n for lane, code, n in tx.db.all("recount_lanes", *scope)}
    for (lane_id,) in tx.db.all("lanes_to_recount", *scope):
        counts = [found.get((lane_id, code), 0) for code in range(len(_COUNTS))]
        tx.books.recounted(tx.books.lane_by_id(lane_id), counts)
    tx.books.forget()
    tx.db.run("recount_tenants", queue.id, op.tenant)
    who = "*" if op.tenant is None else op.tenant
    for statement in ("open_lanes", "recount_open_lanes", "open_tenants"):
        tx.db.run(statement, queue.id, who)
    tx.db.run("recount_queue", queue.id)
    after = _counted(tx, queue.id, op)
    off = {field.name: b - a for field, a, b in zip(_COUNTS, before, after, strict=True)}
    return ops.Corrected({name: by for name, by in off.items() if by})


def _counted(tx: Transaction, queue: int, op: ops.Reconcile) -> tuple[int, ...]:
    """The current counters of what the operation names."""
    if op.group is not None:
        row = tx.db.one("counted_in_group", queue, op.tenant, op.group)
    elif op.tenant is not None:
        row = tx.db.one("counted_in_tenant", queue, op.tenant)
    else:
        row = tx.db.one("counted_in_queue", queue)
    return row or (0,) * len(_COUNTS)
