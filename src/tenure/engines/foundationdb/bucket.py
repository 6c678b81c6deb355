"""The tokens of a rate limit, shared by all workers. Only queues with a rate have a bucket, and
their claims run one after the other.

Elapsed time is measured by the cluster's versions, a million a second, without those that jumps
have skipped. They only increase and are the same for all clients, unlike any server's clock.
"""

from __future__ import annotations

import msgspec

from tenure.core.limits import refilled
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.jumps import ask, last_jump
from tenure.engines.foundationdb.tx import Tx
from tenure.engines.foundationdb.versions import VERSIONS_PER_MS
from tenure.model.ops import Limit

_decode = msgspec.msgpack.Decoder(tuple[int, int]).decode
_encode = msgspec.msgpack.Encoder().encode


def fill(tx: Tx, queue: str, tokens: int) -> None:
    """Set the bucket to this many parts of a token."""
    _put(tx, queue, tokens, _now(tx))


def _put(tx: Tx, queue: str, tokens: int, at: int) -> None:
    tx.set(tx.keys.pack(k.BUCKET, queue), _encode((tokens, at)))


def _now(tx: Tx) -> int:
    return tx.version - last_jump(tx).skipped if tx.store.hybrid else tx.now


class Bucket:
    """A queue's bucket, as a claim finds it. Reading it adds a conflict range, so that only one of
    two claims that found the same tokens commits."""

    def __init__(self, tx: Tx, queue: str, limit: Limit) -> None:
        self._tx, self._queue = tx, queue
        self.tokens: int = 0  # `per_ms` of them for each job
        self._at = self._part = 0
        if limit.rate is None or limit.per_ms is None:
            return
        ask(tx)
        found = tx.tr.get(tx.keys.pack(k.BUCKET, queue)).value
        stored = (0, 0) if found is None else _decode(bytes(found))
        passed_ms, self._at = self._passed_since(stored[1])
        self._part = limit.per_ms
        self.tokens = refilled(stored[0], passed_ms, limit)
        if self._at < stored[1]:
            _put(tx, queue, self.tokens, self._at)

    def _passed_since(self, at: int) -> tuple[int, int]:
        """The elapsed whole milliseconds, and the moment up to which they count."""
        now = _now(self._tx)
        if at > now:  # a clock was set back, or a backup of a cluster with higher versions restored
            return 0, now if self._tx.store.hybrid else at
        if not self._tx.store.hybrid:
            return now - at, now
        passed_ms = (now - at) // VERSIONS_PER_MS
        return passed_ms, at + passed_ms * VERSIONS_PER_MS

    @property
    def counted_at(self) -> int:
        """The time of the tokens, in milliseconds: later than now if the clock was set back."""
        now = self._tx.now
        return now if self._tx.store.hybrid else max(self._at, now)

    def use(self, count: int) -> None:
        """Take tokens that were found available."""
        if self._part and count:
            self.tokens -= count * self._part
            _put(self._tx, self._queue, self.tokens, self._at)
