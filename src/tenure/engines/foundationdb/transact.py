"""Runs work in a transaction until it is committed exactly once.

Each commit writes a DID key. If the outcome of a commit is unknown, this key is looked up before
another try. That read adds a conflict range, so that the commit cannot arrive after a later try.

A call of the engine has one deadline, however many transactions it makes. Tries stop some time
before it, so that the outcome of the last commit can be found out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tenure.clock import Clock
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.store import Store
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import Busy, OutcomeUnknown, StoreError, StoreRejected

R = TypeVar("R")

TOO_OLD = 1007
TIMED_OUT = 1031
TOO_LARGE = 2101
_REJECTED = (2102, 2103)  # a key or value is too large: an error of the operation
_MOST_TIMEOUT_S = 10.0
_LEAST_TIMEOUT_S = 1.0  # of a call's last transaction, also if nothing is left of its patience
_TO_FIND_OUT = 0.25  # of the patience is kept for the outcome of a commit
MOST_TRIES = 1_000
_LAST_TRIES = 5  # to find out the outcome of earlier tries
_STAMP_BYTES = 10
_LIFE_S = 4.5  # of a transaction; the cluster keeps old versions for 5 s
_MOST_SLOW_TRIES = 2


class TooLarge(StoreError):
    """The work does not fit into one transaction."""

    def __init__(self) -> None:
        super().__init__("this is too large for one FoundationDB transaction (10 MB)")


class TooSlow(StoreError):
    """The work takes longer than a transaction may."""

    def __init__(self) -> None:
        super().__init__("this takes longer than the 5 s that FoundationDB gives a transaction")


def begin(db: Any, patience_s: float = _MOST_TIMEOUT_S) -> Any:
    """Begin a transaction that waits a limited time for a cluster that is down."""
    tr = db.create_transaction()
    timeout_s = max(_LEAST_TIMEOUT_S, min(patience_s, _MOST_TIMEOUT_S))
    tr.options.set_timeout(round(timeout_s * 1000))
    return tr


class Patience:
    """When a call stops trying, and when it ends."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.seconds = seconds
        self.ends: float = clock.monotonic() + seconds
        self.tries_until: float = self.ends - seconds * _TO_FIND_OUT


class Transactor:
    """Runs the transactions of one engine."""

    def __init__(self, store: Store, clock: Clock, patience_s: float) -> None:
        self.store = store
        self._clock = clock
        self._patience_s = patience_s
        self._calls = threading.local()
        # Keys of commits whose outcome is known, so that they can be deleted: an ordered set, in
        # which every single step is thread-safe.
        self._did: dict[bytes, None] = {}

    def monotonic(self) -> float:
        return self._clock.monotonic()

    @contextmanager
    def call(self, patience: Patience | None = None) -> Iterator[None]:
        """Within this context, the transactions of this thread share one deadline."""
        self._calls.patience = patience or Patience(self._clock, self._patience_s)
        try:
            yield
        finally:
            self._calls.patience = None

    @property
    def _patience(self) -> Patience:
        found: Patience | None = getattr(self._calls, "patience", None)
        return found or Patience(self._clock, self._patience_s)

    def begin(self) -> Any:
        """Begin a transaction that is not retried."""
        return begin(self.store.db, self._patience.tries_until - self._clock.monotonic())

    def run(self, work: Callable[[Transaction], R]) -> tuple[R, bytes]:
        """The result of `work` in the try that was committed, and its versionstamp."""
        return _Run(self.store, self._clock, self._patience, self._did, work).run()

    def run_some(self, work: Callable[[Transaction, int], R], most: int) -> tuple[R, bytes]:
        """Like `run`, for work on at most `most` items; on fewer, if they do not fit into a
        transaction."""
        while True:
            try:
                return self.run(lambda tx, most=most: work(tx, most))  # type: ignore[misc]
            except TooLarge:
                if most <= 1:
                    raise
                most //= 2

    def read(self, work: Callable[[Transaction], R]) -> R:
        """The result of `work` on one snapshot."""
        return _Run(self.store, self._clock, self._patience, {}, work).read()


class _Run(Generic[R]):
    """All tries of one transaction."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        patience: Patience,
        did: dict[bytes, None],
        work: Callable[[Transaction], R],
    ) -> None:
        self._store = store
        self._clock = clock
        self._until = patience.tries_until
        self._patience = patience
        self._old = did
        self._key = store.keys.pack(k.DID, store.chance.randbytes(16))
        self._work = work
        self._sent: list[R] = []  # the results of tries whose commit was sent
        self._unsure = False
        self._giving_up = False
        self._mistake: Exception | None = None  # why it failed, unless it ran out of time
        self._tries = 0
        self._slow_tries = 0
        self._began = 0.0

    def run(self) -> tuple[R, bytes]:
        tr = self._begin()
        while True:
            try:
                if isinstance(done := self._step(tr), tuple):
                    return done
                tr = done
            except Exception as mistake:
                if self._giving_up or not (self._unsure and self._sent):
                    raise
                tr = self._give_up(mistake)

    def _step(self, tr: Any) -> tuple[R, bytes] | Any:
        """The committed result, or the transaction for the next try."""
        self._began = self._clock.monotonic()
        try:
            found = self._committed(tr) if self._unsure else None
            if found is None and self._giving_up:
                self._make_sure(tr)
            return found or self._try(tr)
        except self._store.handle.FDBError as error:
            return self._again(tr, error)

    def _give_up(self, mistake: Exception | None = None) -> Any:
        """Stop trying, but find out about tries that may have been committed."""
        self._giving_up, self._mistake, self._tries = True, mistake, 0
        self._until = max(self._patience.ends, self._clock.monotonic() + _LEAST_TIMEOUT_S)
        return self._begin()

    def read(self) -> R:
        tr = self._begin()
        while True:
            self._began = self._clock.monotonic()
            try:
                return self._work(Transaction(self._store, tr, self._clock.now_ms()))
            except self._store.handle.FDBError as error:
                tr = self._again(tr, error)

    def _begin(self) -> Any:
        return begin(self._store.db, self._until - self._clock.monotonic())

    def _committed(self, tr: Any) -> tuple[R, bytes] | None:
        """The result of an earlier try that was committed after all, if any."""
        found = tr.get(self._key).value
        if found is None:
            return None
        value = bytes(found)
        self._old[self._key] = None
        if len(value) == _STAMP_BYTES:
            raise self._given_up()
        which = int.from_bytes(value[_STAMP_BYTES:], "big")
        return self._sent[which], value[:_STAMP_BYTES]

    def _make_sure(self, tr: Any) -> None:
        """Make sure that no earlier try can be committed any more."""
        tr.add_read_conflict_key(self._key)
        tr.set(self._key, bytes(_STAMP_BYTES))
        tr.commit().wait()
        raise self._given_up()

    def _given_up(self) -> Exception:
        return self._mistake or Busy(
            f"FoundationDB could not commit within {self._patience.seconds:g} s; nothing was "
            "changed"
        )

    def _try(self, tr: Any) -> tuple[R, bytes]:
        tx = Transaction(self._store, tr, self._clock.now_ms())
        answer = self._work(tx)
        tx.finish()
        if not (tx.wrote or self._unsure):  # if unsure, the commit blocks an earlier try
            return answer, b""
        tr.add_read_conflict_key(self._key)
        which = len(self._sent).to_bytes(4, "big")
        tr.set_versionstamped_value(self._key, bytes(_STAMP_BYTES) + which + bytes(4))
        old = list(self._old)
        for key in old:
            tr.clear(key)
        stamp = tr.get_versionstamp()
        self._sent.append(answer)
        tr.commit().wait()
        for key in old:
            self._old.pop(key, None)
        self._old[self._key] = None
        return answer, bytes(stamp.value)

    # path: another try
    def _again(self, tr: Any, error: Any) -> Any:
        """Wait and prepare another try, or give up."""
        self._tries += 1
        if error.code == TOO_LARGE:
            raise TooLarge
        if error.code == TOO_OLD and self._clock.monotonic() - self._began >= _LIFE_S:
            self._slow_tries += 1
            if self._slow_tries >= _MOST_SLOW_TRIES:
                raise TooSlow
        timed_out = error.code == TIMED_OUT
        says = self._store.handle.predicates
        self._unsure = self._unsure or timed_out or says.is_maybe_committed(error)
        if timed_out or says.is_retryable(error):
            self._check_patience(error)
        if timed_out:
            return self._begin()
        try:
            tr.on_error(error).wait()
        except self._store.handle.FDBError as final:
            if final.code == TIMED_OUT:
                return self._begin()
            kind = StoreRejected if final.code in _REJECTED else StoreError
            raise kind(f"FoundationDB: {final.description} ({final.code})") from None
        return tr

    def _check_patience(self, error: Any) -> None:
        late = self._clock.monotonic() >= self._until
        over = late or self._tries >= MOST_TRIES
        if self._giving_up and (late or self._tries >= _LAST_TRIES):
            raise OutcomeUnknown(
                f"FoundationDB could not confirm a commit ({error.code}): its outcome is unknown"
            )
        if over and not self._giving_up:
            if not (self._unsure and self._sent):
                raise Busy(
                    f"FoundationDB did not commit within {self._patience.seconds:g} s "
                    f"({error.code}); nothing was changed"
                )
            self._give_up()
