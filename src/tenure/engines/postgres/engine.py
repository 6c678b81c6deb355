"""The PostgreSQL engine: one transaction per batch, on as many connections as are used at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tenure.clock import Clock, SystemClock
from tenure.core.fencing import Fence
from tenure.core.grants import Named
from tenure.engines.postgres import server
from tenure.engines.postgres.claimed_places import Places
from tenure.engines.postgres.commit_attempt import LOST_RACES, Attempt, run
from tenure.engines.postgres.fence_locks import hold
from tenure.engines.postgres.listen import Listener
from tenure.engines.postgres.locks import jobs_of
from tenure.engines.postgres.notify import Teller
from tenure.engines.postgres.pool import Pool
from tenure.engines.postgres.reads import Snapshot
from tenure.engines.postgres.server import Connection
from tenure.engines.postgres.session import Db, piped
from tenure.engines.postgres.unfolded import Unfolded
from tenure.engines.sql.reads import read
from tenure.errors import Busy, InvalidInput, OutcomeUnknown, TenureError
from tenure.model import ops
from tenure.model.job import new_ids
from tenure.model.ops import Answer, Op
from tenure.model.queries import READ_SECONDS, Found, Query, took_too_long
from tenure.settings import Settings

log = logging.getLogger("tenure.postgresql")

MOST_RACES = 100  # that a batch may lose before it fails
RETRY_SECONDS = 0.05
LOCK_SECONDS = 0.9  # how long a statement waits for a lock: see plans.sql
MOST_LANES = 10_000  # to remember
MOST_WAITS = 3  # of LOCK_SECONDS, before an operation fails with Busy


class PostgresEngine:
    """Jobs in a schema of a database shared by several machines."""

    in_flight = 4  # each on its own connection
    claims_at_once = True  # in a queue with one lane and no limits

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        self.address = server.address_of(url)
        self._sql = self.address.statements.sql
        self._settings = settings
        self._clock = clock
        self._pool = Pool(lambda: server.connect(self.address))
        self._listener = Listener(self.address)
        self._teller = Teller(self._notify)
        self._places = Places()
        self._unfolded = Unfolded()
        self._lanes: set[tuple[str, str, str]] = set()  # some that are known to exist
        try:
            self._store = self._open()
        except BaseException:
            self._pool.close()
            raise

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> PostgresEngine:
        return cls(url, settings, clock)

    def _open(self) -> str:
        """Create or migrate the schema if necessary. Fails at once if the server is not there, but
        waits for one that is starting up."""
        deadline = self._deadline()
        while True:
            try:
                with self._pool.use() as connection:
                    return server.migrate(self.address, connection).store
            except psycopg.Error as error:
                if not server.may_come_up(error):
                    raise server.meaning(error, self.address) from error
                self._wait(deadline, error)

    @property
    def _given(self) -> int | None:
        """The time of the clock in use, or None to use the server's time."""
        return None if type(self._clock) is SystemClock else self._clock.now_ms()

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._settings.busy_timeout

    def apply(self, batch: Sequence[Op], fence: Fence | None = None) -> list[Answer]:
        return self._apply(batch, fence, MOST_WAITS)

    def _apply(self, batch: Sequence[Op], fence: Fence | None, most_waits: int) -> list[Answer]:
        deadline = self._deadline()
        races = waits = 0
        while True:
            mark = new_ids(self._clock.now_ms(), 1)[0]
            attempt = Attempt(mark, self._places)
            try:
                with self._pool.use() as connection:
                    attempt.make(connection, self._sql, batch, fence, self._given, self._settings)
            except LOST_RACES as error:
                races += 1
                if races > MOST_RACES:
                    raise server.meaning(error, self.address) from error
            except pg.LockNotAvailable as error:
                waits += 1
                if len(batch) > 1:
                    return self._apply_apart(batch, fence, server.meaning(error, self.address))
                if waits >= most_waits:
                    busy = server.meaning(error, self.address)
                    if batch and jobs_of(batch[0]):
                        return [busy]  # it concerns one job, not the store
                    raise busy from error
            except psycopg.Error as error:
                if not attempt.has_happened:
                    self._find_out(attempt, batch, error, deadline)
            except TenureError:
                raise
            except Exception as error:
                if not attempt.may_have_happened:
                    raise
                if not attempt.has_happened:
                    raise OutcomeUnknown(f"a batch may have been committed: {error!r}") from error
            if attempt.has_happened:
                if attempt.tells:
                    self._teller.tell()
                self._fold_news(batch)
                return attempt.answers

    def _fold_news(self, batch: Sequence[Op]) -> None:
        """Fold in the news of new jobs from time to time. If that fails, the next claim does it."""
        queues = self._unfolded.add(batch)
        if not queues:
            return
        try:
            with self._pool.use() as connection:
                Db(connection, self._sql).send("fold_news", queues)
        except Exception:  # the batch was committed, so no error may look as if it was not
            log.info("the news of %d queues could not be folded in", len(queues), exc_info=True)

    def _apply_apart(
        self, batch: Sequence[Op], fence: Fence | None, busy: TenureError
    ) -> list[Answer]:
        """Apply what is possible of a batch that ran into a lock held by another transaction. The
        other operations return Busy. No operation waits long because of another one."""
        answers: dict[int, Answer] = {}
        waiting = {n: jobs_of(op) for n, op in enumerate(batch)}
        for _ in range(2):  # a brief lock is gone the second time
            free = list(waiting)
            try:
                held = self._held([one for jobs in waiting.values() for one in jobs])
                free = [n for n, jobs in waiting.items() if held.isdisjoint(jobs)]
                ready = [batch[n] for n in free]
                apply = self._apply_one_by_one if len(free) == len(batch) else self.apply
                given = apply(ready, fence) if ready else []
            except TenureError as error:
                if not answers:
                    raise
                given = [error] * len(free)  # so that operations applied before do not look undone
            answers |= zip(free, given, strict=True)
            waiting = {n: jobs for n, jobs in waiting.items() if n not in answers}
        return [answers.get(n, busy) for n in range(len(batch))]

    def _held(self, named: Sequence[Named]) -> set[Named]:
        """The jobs that another transaction has locked, of those that the operations may see."""
        if not named:
            return set()
        try:
            with self._pool.use() as connection:
                db = Db(connection, self._sql)
                ids = sorted({job_id for _, job_id in named})
                held = [job_id for (job_id,) in db.named("held", {"ids": ids})]
                owners = {job_id: owner for job_id, _, *owner in db.all("owned_by_id", held)}
        except psycopg.Error as error:
            raise server.meaning(error, self.address) from error
        return {
            (grant, job_id)
            for grant, job_id in named
            if job_id in owners and (grant is None or grant.allows(*owners[job_id]))
        }

    def _apply_one_by_one(self, batch: Sequence[Op], fence: Fence | None) -> list[Answer]:
        answers: list[Answer] = []
        busy: list[Busy] = []
        for op in batch:
            try:
                answers += [busy[-1]] if len(busy) >= MOST_WAITS else self._apply([op], fence, 1)
            except TenureError as error:
                if isinstance(error, Busy):
                    busy.append(error)
                elif not answers:
                    raise
                answers.append(error)
        return answers

    def _find_out(
        self, attempt: Attempt, batch: Sequence[Op], error: psycopg.Error, deadline: float
    ) -> None:
        """After an error: raise it, wait for the server to come back, or find out that the batch
        was committed after all."""
        if not _is_lost(error):
            raise server.meaning(error, self.address) from error
        self._pool.clear()
        if attempt.may_have_happened:
            self._ask(attempt, batch, error, deadline)
        if not attempt.has_happened:
            self._wait(deadline, error)

    def _ask(
        self, attempt: Attempt, batch: Sequence[Op], lost: psycopg.Error, deadline: float
    ) -> None:
        """Find out whether a batch was committed whose commit got no reply. This stores a
        distinguishable mark in place of the batch's own, so that a transaction still in progress
        cannot commit any more."""
        while True:
            try:
                with self._pool.use() as connection, connection.transaction():
                    db = Db(connection, self._sql)
                    left = max(1, round((deadline - self._clock.monotonic()) * 1000))
                    db.send("wait_at_most", str(left))
                    db.send("mark_unless_marked", attempt.mark)
                    if db.value("has_happened", attempt.mark):
                        attempt.recover(db, batch)
                    return
            except psycopg.Error as error:
                if not _is_lost(error) or self._clock.monotonic() >= deadline:
                    raise OutcomeUnknown(
                        f"{self.address.shown} was lost during a commit, and cannot be "
                        f"asked whether it happened: {error}"
                    ) from lost
                self._pool.clear()
                self._clock.sleep(RETRY_SECONDS)

    def _wait(self, deadline: float, error: psycopg.Error) -> None:
        if self._clock.monotonic() >= deadline:
            raise server.meaning(error, self.address) from error
        self._clock.sleep(RETRY_SECONDS)

    def _make_lanes(self, batch: Sequence[Op]) -> None:
        """Create the lanes of new jobs in a separate transaction. The caller's transaction would
        lock the queue until it ends and block operators. A new queue is left to the caller."""
        specs = [spec for op in batch if isinstance(op, ops.Enqueue) for spec in op.jobs]
        names = {(spec.queue, spec.tenant, spec.group) for spec in specs} - self._lanes
        if names:
            with self._pool.use() as connection:
                Db(connection, self._sql).send("make_lanes", *map(list, zip(*names, strict=True)))
            self._lanes = names if len(self._lanes) >= MOST_LANES else self._lanes | names

    def apply_within(
        self, connection: Any, batch: Sequence[Op], fence: Fence | None = None
    ) -> list[Answer]:
        self._check_shared(connection)
        try:
            self._make_lanes(batch)
        except psycopg.Error as error:
            raise server.meaning(error, self.address) from error
        races = waits = 0
        elsewhere: Db | None = None
        with ExitStack() as stack:
            while True:
                try:
                    with connection.transaction():
                        db = Db(connection, self._sql)
                        if fence is not None and _has_fixed_snapshot(connection):
                            elsewhere = elsewhere or self._beside(stack)
                        hold(db, fence, elsewhere)
                        answers, tells = run(db, batch, self._given, self._settings, elsewhere)
                        if tells:
                            db.send("notify_within")
                        return answers
                except LOST_RACES as error:
                    races += 1
                    if races > MOST_RACES or not isinstance(error, pg.UniqueViolation):
                        raise server.meaning(error, self.address) from error
                    if elsewhere is None and _has_fixed_snapshot(connection):
                        elsewhere = self._beside(stack)
                except pg.LockNotAvailable as error:
                    waits += 1
                    if waits * LOCK_SECONDS >= self._settings.busy_timeout:
                        raise server.meaning(error, self.address) from error
                except psycopg.Error as error:
                    raise server.meaning(error, self.address) from error

    def _beside(self, stack: ExitStack) -> Db:
        """A connection that sees what is committed while the caller's snapshot does not."""
        return Db(stack.enter_context(self._pool.use()), self._sql)

    def _check_shared(self, connection: Any) -> None:
        """Check that the connection leads to this store, and that a transaction is open or begins
        with the first statement."""
        if not isinstance(connection, psycopg.Connection):
            raise InvalidInput("connection", "must be a psycopg.Connection to the queue's database")
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise InvalidInput("connection", "is in a failed transaction: roll it back first")
        if connection.autocommit and status != TransactionStatus.INTRANS:
            raise InvalidInput(
                "connection", "has no open transaction: use `with connection.transaction():`"
            )
        try:
            _, store = server.version_of(self.address, Db(connection, self._sql))
        except psycopg.Error as error:
            raise server.meaning(error, self.address) from error
        if store != self._store:
            raise InvalidInput("connection", f"does not lead to {self.address.shown}")

    def read(self, query: Query) -> Found:
        deadline = self._deadline()
        while True:
            try:
                with self._pool.use() as connection:
                    return self._read(connection, query)
            except pg.QueryCanceled as error:
                raise took_too_long(READ_SECONDS) from error
            except psycopg.Error as error:
                if not _is_lost(error):
                    raise server.meaning(error, self.address) from error
                self._pool.clear()
                self._wait(deadline, error)

    def _read(self, connection: Connection, query: Query) -> Found:
        db = Db(connection, self._sql)
        with piped(connection):
            db.send("begin_reading")
            db.send("read_settings", f"{READ_SECONDS * 1000:.0f}")
            found = read(Snapshot(db, self._given, self._clock.now_ms()), query)
            db.send("commit")
        return found

    def _notify(self) -> None:
        with self._pool.use() as connection:
            Db(connection, self._sql).send("notify", self._listener.name)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._listener.add(wake)

    def close(self) -> None:
        self._listener.close()
        self._teller.close()
        self._pool.close()


def _has_fixed_snapshot(connection: psycopg.Connection[Any]) -> bool:
    """Whether the transaction cannot see commits made since it began."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("SHOW transaction_isolation").fetchone()
    return row is not None and row[0] in ("repeatable read", "serializable")


def _is_lost(error: psycopg.Error) -> bool:
    """Whether the connection or the server is gone, as opposed to a statement being rejected."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(("08", "57P")) or state == "25006"
