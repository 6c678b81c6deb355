"""One attempt to have a batch committed, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from tenure import ops
from tenure.engines.postgres import claim, enqueue, leases, operator, upkeep
from tenure.engines.postgres.db import Db, Sent, piped
from tenure.engines.postgres.server import Connection
from tenure.engines.postgres.transaction import Transaction
from tenure.ops import Answer, Op

# Operations of one kind that stand next to each other are run together.
_OPERATIONS: dict[type[Op], Callable[[Transaction, Any], list[Answer]]] = {
    ops.Enqueue: enqueue.enqueue,
    ops.Claim: claim.claim,
    ops.Ack: leases.ack,
    ops.Fail: leases.fail,
    ops.Extend: leases.extend,
    ops.Release: leases.release,
    ops.Progress: leases.progress,
    ops.Cancel: operator.cancel,
    ops.Replay: operator.replay,
    ops.Delete: operator.delete,
    ops.SetLimit: operator.set_limit,
    ops.ClearLimit: operator.clear_limit,
    ops.Pause: operator.pause,
    ops.Resume: operator.resume,
    ops.TakeSlot: upkeep.take_slot,
    ops.DropSlot: upkeep.drop_slot,
    ops.PutSchedule: upkeep.put_schedule,
    ops.DropSchedule: upkeep.drop_schedule,
    ops.Fire: upkeep.fire,
    ops.Maintain: upkeep.maintain,
    ops.Reconcile: upkeep.reconcile,
    ops.ReconcileSlots: upkeep.reconcile_slots,
}

# Another transaction was first, or two stood in each other's way: the next attempt sees it.
LOST_RACES = (pg.UniqueViolation, pg.DeadlockDetected, pg.SerializationFailure)
_MOST_NAMED = 7_000  # bytes of a notification


def run(db: Db, batch: Sequence[Op], given: int | None, sweep: int) -> tuple[list[Answer], str]:
    """Run the operations in order; the answers, and whom to wake ("" for nobody)."""
    tx = Transaction(db, given, sweep)
    answers: list[Answer] = []
    for kind, mine in groupby(batch, key=type):
        answers.extend(_OPERATIONS[kind](tx, list(mine)))
    tx.flush()
    if not tx.woken:
        return answers, ""
    names = msgspec.json.encode(sorted(tx.woken)).decode()
    return answers, names if len(names.encode()) <= _MOST_NAMED else "[]"


class Attempt:
    """A transaction with a mark in it, by which one can find out later whether it happened."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.answers: list[Answer] = []
        self.heard = False  # later, that it was committed
        self._commit: Sent | None = None

    @property
    def may_have_happened(self) -> bool:
        """Whether the server was told to commit."""
        return self._commit is not None

    @property
    def has_happened(self) -> bool:
        answered = self._commit is not None and self._commit.statusmessage == "COMMIT"
        return self.heard or answered

    def make(
        self,
        connection: Connection,
        sql: dict[str, bytes],
        batch: Sequence[Op],
        given: int | None,
        sweep: int,
    ) -> None:
        """Run the batch and commit. Whom it wakes is told in a transaction of its own, since a
        commit with a notification keeps every other such commit waiting."""
        db = Db(connection, sql)
        try:
            with piped(connection):
                db.send("begin")
                self.answers, names = run(db, batch, given, sweep)
                db.send("mark", self.mark)
                self._commit = db.send("commit")
                if names:
                    db.send("notify", names)
        except BaseException:
            status = connection.pgconn.transaction_status
            if status in (TransactionStatus.INERROR, TransactionStatus.INTRANS):
                with suppress(psycopg.Error):
                    db.send("rollback")
            raise
