"""The tokens of a rate limit, which all workers share. Only a queue with a rate has any; its claims
wait for each other."""

from __future__ import annotations

import msgspec

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.tx import Tx
from tenure.ops import Limit

_decode = msgspec.msgpack.Decoder(tuple[int, int]).decode
_encode = msgspec.msgpack.Encoder().encode


def fill(tx: Tx, queue: str, tokens: int) -> None:
    """Have so many parts of a token from now on."""
    tx.set(tx.keys.pack(k.BUCKET, queue), _encode((tokens, tx.now)))


def available(tx: Tx, queue: str, limit: Limit) -> int:
    """How many claims the rate allows now."""
    if limit.rate is None or limit.per_ms is None:
        return 2**31
    found = tx.tr.get(tx.keys.pack(k.BUCKET, queue)).value
    tokens, at = (0, 0) if found is None else _decode(bytes(found))
    most = limit.rate * limit.per_ms
    now_has = min(tokens + max(0, tx.now - at) * limit.rate, most)
    if now_has != tokens or (at != tx.now and now_has != most):
        fill(tx, queue, now_has)
    return now_has // limit.per_ms


def use(tx: Tx, queue: str, limit: Limit, count: int) -> None:
    """Take tokens that were found available in this transaction."""
    if limit.rate is None or limit.per_ms is None or not count:
        return
    found = tx.tr.get(tx.keys.pack(k.BUCKET, queue)).value
    tokens = limit.rate * limit.per_ms if found is None else _decode(bytes(found))[0]
    fill(tx, queue, tokens - count * limit.per_ms)
