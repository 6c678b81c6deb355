"""The engine: splits batches into transactions, and has the table of operations."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tenure.clock import Clock, SystemClock
from tenure.core.features import Operation
from tenure.engines.foundationdb import (
    ack,
    binding,
    claim,
    clocks,
    keyed_calls,
    reads,
    upkeep,
)
from tenure.engines.foundationdb.formats import check_format
from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.near import NEAR_FROM
from tenure.engines.foundationdb.store import ASIDE_FROM, Store
from tenure.engines.foundationdb.transact import (
    MOST_TRIES,
    TIMED_OUT,
    Patience,
    TooLarge,
    TooSlow,
    Transactor,
    begin,
)
from tenure.engines.foundationdb.transaction import Transaction
from tenure.engines.foundationdb.tuple_layer import Subspace
from tenure.engines.foundationdb.wake import Wake
from tenure.errors import (
    Busy,
    InvalidInput,
    StoreError,
    StoreRejected,
    TenureError,
)
from tenure.features.operate import operate
from tenure.model import ops, queries
from tenure.model.ops import Answer, Op, bytes_of_entry
from tenure.model.queries import Found, Query
from tenure.settings import Settings

_MOST_JOBS = 500  # of one transaction, unless a single operation is larger
_MOST_BYTES = 2_000_000
_APART = (ops.Claim, ops.Maintain)  # have transactions of their own
_ALONE = (ops.Claim, ops.Reconcile)  # within others, cause these to have one of their own
_ENDING = (ops.Ack, ops.Fail)
_FEW_QUEUES = 3  # whose limits are worth reading before it is known which are needed


class FoundationDbEngine:
    """Jobs in a directory of a cluster shared by many processes. `apply` may be called from several
    threads at once."""

    in_flight = 8  # batches worth running at once

    def __init__(
        self,
        handle: Any,
        db: Any,
        settings: Settings,
        clock: Clock,
        *,
        directory: tuple[str, ...] = binding.DEFAULT_DIRECTORY,
        hybrid: bool | None = None,
        chance: random.Random | None = None,
        aside_from: int = ASIDE_FROM,
        near_from: int = NEAR_FROM,
    ) -> None:
        """`handle` is the module `fdb` or its simulation, and `db` an open database. hybrid: also
        judge leases by the cluster's versions, and tolerate wrong clocks; False if a test controls
        the clock. aside_from: how many lanes must be held back before a claim puts them aside.
        near_from: from how many jobs on to try to read them by one range read."""
        chance = chance or random.Random()
        patience = Patience(clock, settings.busy_timeout)
        root = _directory(handle, db, directory, clock, patience)
        self._store = Store(
            handle,
            db,
            Keys(root),
            settings=settings,
            clock=clock,
            hybrid=isinstance(clock, SystemClock) if hybrid is None else hybrid,
            chance=chance,
            aside_from=aside_from,
            near_from=near_from,
        )
        self._transactor = Transactor(self._store, clock, settings.busy_timeout)
        self._claims = claim.Claims(self._transactor)
        self._wake = Wake(self._store)
        self._pid = os.getpid()
        self._looked = False  # whether the schedules were read before
        with self._transactor.call(patience):
            check_format(self._transactor)

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> FoundationDbEngine:
        cluster_file, directory = binding.parse(url)
        fdb = binding.load()
        db = binding.open_database(fdb, cluster_file)
        return cls(fdb, db, settings, clock, directory=directory)

    @classmethod
    def exists(cls, url: str, patience_s: float, clock: Clock) -> bool:
        """Whether the cluster has the directory of this URL."""
        cluster_file, directory = binding.parse(url)
        fdb = binding.load()
        db = binding.open_database(fdb, cluster_file)
        patience = Patience(clock, patience_s)
        return bool(
            _retried(fdb, db, lambda tr: fdb.directory.exists(tr, directory), clock, patience)
        )

    def _check_not_forked(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(binding.AFTER_FORK)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        self._check_not_forked()
        answers: list[Answer] = []
        try:
            with self._transactor.call():
                self._apply(batch, answers)
        except Exception as error:
            if not answers:
                raise
            answers += [_told(error)] * (len(batch) - len(answers))
        return answers

    def _apply(self, batch: Sequence[Op], answers: list[Answer]) -> None:
        for kind, run in groupby(batch, key=_kind):
            if kind is ops.Claim:
                for claims in _claims_at_once(run):
                    self._claim(claims, answers)
            elif kind is ops.Maintain:
                for op in run:
                    assert isinstance(op, ops.Maintain)
                    answers.append(self._maintain(op))
            else:
                for part in _parts(list(run)):
                    self._serially(part, answers)

    def _claim(self, batch: list[ops.Claim | ops.Once], answers: list[Answer]) -> None:
        """Claims, and keyed calls that end with claims. Everything such a call does before its
        claims is done first, in a transaction of its own, so that claims never cause it to be
        retried."""
        first = batch[0]
        if isinstance(first, ops.Once) and keyed_calls.begins(first):
            begun: list[Answer] = []
            self._serially([keyed_calls.Begin(first)], begun)
            if isinstance(begun[0], TenureError):
                answers.append(begun[0])
                batch = batch[1:]
        if batch:
            answers += self._claims.claim(batch)

    def _serially(self, batch: Sequence[Op], answers: list[Answer]) -> None:
        """Run operations in one transaction; in several, if they are too large for one, or if one
        of them fails after others were done. Appends to `answers`."""
        try:
            more, _ = self._transactor.run(lambda tx: _operate(tx, batch))
        except (TooLarge, TooSlow) as error:
            if len(batch) == 1:
                answers.append(_too_much(batch[0], error))
                return
        except Exception as error:
            if isinstance(error, TenureError) and not isinstance(error, StoreRejected):
                raise
            if not answers:
                raise  # the caller finds out which operation failed
            if len(batch) == 1:
                answers.append(_told(error))
                return
        else:
            answers += more
            return
        half = len(batch) // 2
        self._serially(batch[:half], answers)
        self._serially(batch[half:], answers)

    def _maintain(self, op: ops.Maintain) -> Answer:
        return upkeep.maintain(lambda work: self._transactor.run(work)[0], op)

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        raise InvalidInput("connection", "a FoundationDB queue has no connections to share")

    def read(self, query: Query) -> Found:
        self._check_not_forked()
        if isinstance(query, queries.GetTimetable) and self._looked:
            return self._transactor.run(lambda tx: _look_again(tx, query))[0]
        self._looked = self._looked or isinstance(query, queries.GetTimetable)
        return self._transactor.read(lambda tx: reads.read(tx, query))

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._check_not_forked()
        return self._wake.listen(wake)

    def close(self) -> None:
        if os.getpid() == self._pid:  # a fork does not have its parent's threads
            self._wake.close()


def _too_much(op: Op, error: TooLarge | TooSlow) -> TenureError:
    """The error for an operation that does not fit into a transaction by itself."""
    if isinstance(op, ops.Reconcile) and isinstance(error, TooSlow):
        return InvalidInput(
            "queue",
            f"{op.queue!r} has more jobs than can be counted in the 5 s that FoundationDB gives a "
            "transaction: purge finished jobs, and try again",
        )
    if isinstance(error, TooSlow):
        return error
    return InvalidInput(
        "jobs", "are too many for one FoundationDB transaction (10 MB): make several calls"
    )


def _told(error: Exception) -> TenureError:
    """An error as the result of an operation."""
    if isinstance(error, TenureError):
        return error
    found = StoreError(f"internal error in the engine: {error!r}")
    found.__cause__ = error
    return found


def _directory(
    handle: Any, db: Any, path: tuple[str, ...], clock: Clock, patience: Patience
) -> Subspace:
    """Open or create the directory. Creating it twice is a no-op."""

    def find(tr: Any) -> Any:
        found = handle.directory.create_or_open(tr, path, b"tenure")
        tr.commit().wait()
        return found

    try:
        found = _retried(handle, db, find, clock, patience)
    except ValueError as error:  # it belongs to another program, or to a newer directory layer
        where = "/".join(path)
        raise StoreError(f"the directory {where!r} cannot be used: {error}") from None
    return Subspace(raw_prefix=found.key())


def _retried(
    handle: Any, db: Any, work: Callable[[Any], Any], clock: Clock, patience: Patience
) -> Any:
    """The result of work that may be done more than once, before there is a Store."""
    tr = begin(db, patience.seconds)
    for _ in range(MOST_TRIES):
        try:
            return work(tr)
        except handle.FDBError as error:
            left_s = patience.ends - clock.monotonic()
            if left_s <= 0:
                break
            tr = _again(handle, db, tr, error, left_s)
    raise Busy(
        f"FoundationDB could not be reached within {patience.seconds:g} s; is the cluster up?"
    )


def _again(handle: Any, db: Any, tr: Any, error: Any, left_s: float) -> Any:
    """Prepare the transaction for another try."""
    try:
        tr.on_error(error).wait()
    except handle.FDBError as final:
        if final.code == TIMED_OUT:
            return begin(db, left_s)
        raise StoreError(f"FoundationDB: {final.description} ({final.code})") from None
    return tr


def _kind(op: Op) -> type[Op]:
    """The kind of batch: claims run together, and so does everything else except maintenance."""
    if isinstance(op, ops.Once):
        return ops.Claim if keyed_calls.claims_come_last(op) else Op
    return type(op) if isinstance(op, _APART) else Op


def _claims_at_once(run: Iterable[Op]) -> Iterator[list[ops.Claim | ops.Once]]:
    """Split claims into batches that must run in order: what a call does before its claims comes
    after the claims of earlier calls, and a repeated key finds the results of its first use."""
    part: list[ops.Claim | ops.Once] = []
    keys: set[str] = set()
    for op in run:
        assert isinstance(op, ops.Claim | ops.Once)
        if isinstance(op, ops.Once):
            if part and (op.key in keys or keyed_calls.begins(op)):
                yield part
                part, keys = [], set()
            keys.add(op.key)
        part.append(op)
    yield part


def _parts(batch: Sequence[Op]) -> Iterator[list[Op]]:
    """Split operations into transactions. An operation with a claim, or a recount, gets its own, so
    that it never causes others to be retried."""
    part: list[Op] = []
    jobs = size = 0
    alone = False
    for op in batch:
        more_jobs, more_bytes = _weight(op)
        full = jobs + more_jobs > _MOST_JOBS or size + more_bytes > _MOST_BYTES
        stays_alone = _stays_alone(op)
        if part and (full or alone or stays_alone):
            yield part
            part, jobs, size = [], 0, 0
        part.append(op)
        jobs, size, alone = jobs + more_jobs, size + more_bytes, stays_alone
    if part:
        yield part


def _stays_alone(op: Op) -> bool:
    if isinstance(op, ops.Once):
        return any(map(_stays_alone, op.ops))
    return isinstance(op, _ALONE)


def _weight(op: Op) -> tuple[int, int]:
    """How many jobs an operation concerns, and how many bytes it adds."""
    if isinstance(op, ops.Once):
        weights = [_weight(one) for one in op.ops]
        return sum(n for n, _ in weights), sum(size for _, size in weights)
    if isinstance(op, ops.Import):
        return len(op.entries), sum(map(bytes_of_entry, op.entries))
    jobs = len(op.ids) if isinstance(op, ops.JobsOp) else int(not isinstance(op, ops.Enqueue))
    return jobs + len(op.adds), ops.bytes_in(op)


def _look_again(tx: Transaction, query: queries.GetTimetable) -> Found:
    """Note this client's clock if it reads the schedules repeatedly: then it fires them, and its
    clock counts. A command that reads them once does not vote."""
    clocks.note(tx)
    return reads.read(tx, query)


def _operate(tx: Transaction, batch: Sequence[Op]) -> list[Answer]:
    _prefetch(tx, batch)
    return operate(tx, batch, _OWN)


def _prefetch(tx: Transaction, batch: Sequence[Op]) -> None:
    """Start the reads that operations will need, so that they do not wait in turn."""
    ending: list[str] = []
    needed: list[str] = []
    for op in batch:
        if isinstance(op, ops.LeaseOp):
            needed.append(op.id)
            if isinstance(op, _ENDING):
                ending.append(op.id)
        elif isinstance(op, ops.JobsOp):
            needed += op.ids
        elif isinstance(op, ops.Once | keyed_calls.Begin):
            call = op if isinstance(op, ops.Once) else op.once
            keyed_calls.ask(tx, call)
            _prefetch(tx, keyed_calls.before_claims(call))
    tx.ask_children(ending)
    tx.load(needed)
    if ending and len(tx.store.rules) <= _FEW_QUEUES:
        for queue in list(tx.store.rules):
            tx.ask_rules(queue)  # most likely, these jobs are of one of them


def _begin(tx: Transaction, batch: Sequence[keyed_calls.Begin]) -> list[Answer]:
    return [keyed_calls.begin(tx, op, partial(_operate, tx)) for op in batch]


def _claim_serially(tx: Transaction, batch: Sequence[ops.Claim]) -> list[Answer]:
    return [claim.claim_serially(tx, op) for op in batch]


def _maintain_within(tx: Transaction, batch: Sequence[ops.Maintain]) -> list[Answer]:
    """Run all maintenance inside a transaction that does more."""
    return [upkeep.maintain(lambda work: work(tx), op) for op in batch]


# Operations that the core does not have, or that are faster here.
_OWN: dict[type[Op], Operation] = {
    ops.Ack: ack.ack,
    ops.Claim: _claim_serially,
    ops.Maintain: _maintain_within,
    ops.Reconcile: upkeep.reconcile,
    ops.ReconcileSlots: upkeep.reconcile_slots,
    keyed_calls.Begin: _begin,
}
