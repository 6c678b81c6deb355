"""One attempt to commit a batch, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from tenure.core import features
from tenure.core.fencing import Fence
from tenure.engines.postgres import claim, fast_paths, plain_acks, slot_changes, upkeep
from tenure.engines.postgres.claimed_places import Places
from tenure.engines.postgres.fence_locks import hold
from tenure.engines.postgres.locks import lock
from tenure.engines.postgres.server import Connection
from tenure.engines.postgres.session import Db, piped
from tenure.engines.postgres.transaction import Transaction
from tenure.features.operate import Operations, operate
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.settings import Settings

# Operations that the core does not have, or that are one statement here.
_OWN: Operations = {
    ops.Claim: claim.claim,
    ops.Ack: plain_acks.ack,
    ops.TakeSlot: slot_changes.change_slot,
    ops.DropSlot: slot_changes.change_slot,
    ops.ReconcileSlots: slot_changes.reconcile_slots,
    ops.Maintain: upkeep.maintain,
    ops.Reconcile: upkeep.reconcile,
}

# Another transaction was first, or there was a deadlock: the next attempt sees the new state.
LOST_RACES = (pg.UniqueViolation, pg.DeadlockDetected, pg.SerializationFailure)
_NOTHING = ops.Leased([])


def run(
    db: Db, batch: Sequence[Op], given: int | None, settings: Settings, elsewhere: Db | None = None
) -> tuple[list[Answer], bool]:
    """Run the operations in order. Returns the results, and whether to notify other processes."""
    tx = Transaction(db, given, settings, elsewhere)
    # Keys are locked first, in one order, so that a transaction that holds one never waits for
    # another that wants it.
    keys = sorted({op.key for op in batch if isinstance(op, ops.Once)})
    if keys:
        tx.once = dict(db.all("take_keys", given, keys))
    # Operations whose results are already stored are not run again, and need no locks.
    lock(tx, [op for op in batch if not isinstance(op, ops.Once) or tx.once[op.key] is None])
    answers = operate(tx, batch, _OWN)
    features.end(tx)
    tx.flush()
    return answers, tx.woken or _tells(batch)


def _tells(batch: Sequence[Op]) -> bool:
    return any(not isinstance(op, ops.QUIET) for op in ops.flat(batch))


class Attempt:
    """A transaction that stores a mark, which later tells whether it was committed."""

    def __init__(self, mark: str, places: Places) -> None:
        self.mark = mark
        self._places = places
        self.answers: list[Answer] = []
        self.alone = False  # it was a single statement, whose result is that of the commit
        self.may_have_happened = False  # the server was told to commit
        self.has_happened = False
        self.tells = False  # whether to notify other processes

    def make(
        self,
        connection: Connection,
        sql: dict[str, bytes],
        batch: Sequence[Op],
        fence: Fence | None,
        given: int | None,
        settings: Settings,
    ) -> None:
        """Run the batch and commit."""
        db = Db(connection, sql)
        try:
            if fence is None and self._make_alone(db, batch, given):
                self.tells = _tells(batch)
            else:
                self.tells = self._make_together(db, connection, batch, fence, given, settings)
        except BaseException:
            status = connection.pgconn.transaction_status
            if status in (TransactionStatus.INERROR, TransactionStatus.INTRANS):
                with suppress(psycopg.Error):
                    db.send("rollback")
            raise

    def recover(self, db: Db, batch: Sequence[Op]) -> None:
        """The batch was committed after all; read its results again, as they may have been lost."""
        if self.alone:
            self.answers = fast_paths.recover(db, self.mark, batch)
        self.has_happened = self.tells = True

    def _make_alone(self, db: Db, batch: Sequence[Op], given: int | None) -> bool:
        way = fast_paths.fast_path_of(batch)
        if way is None:
            return False
        self.alone = self.may_have_happened = True
        answers = way(db, self.mark, batch, given, self._places)
        self.alone = self.may_have_happened = self.has_happened = answers is not None
        self.answers = answers or []
        return self.has_happened

    def _make_together(
        self,
        db: Db,
        connection: Connection,
        batch: Sequence[Op],
        fence: Fence | None,
        given: int | None,
        settings: Settings,
    ) -> bool:
        with piped(connection):
            db.send("begin")
            hold(db, fence)
            self.answers, tells = run(db, batch, given, settings)
            if any(answer != _NOTHING for answer in self.answers):
                db.send("mark", self.mark)
            self.may_have_happened = True  # an error no longer means a rollback
            db.send("commit")
        self.has_happened = True
        return tells or (fence is not None and fence.become is not None)
