"""The header Idempotency-Key: a request that is repeated with it is applied once.

The operations of a request run under keys that are made of the token and the header (`ops.Once`),
in the transaction that applies them. If that alone does not repeat the response, because the
handler also reads something or takes several steps, the response is stored, too.
"""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import uuid4

import msgspec

from tenure.errors import Conflict, TenureError
from tenure.model import ops
from tenure.model.fields import check_name
from tenure.model.ops import ONCE_MS, good
from tenure.model.queries import Query
from tenure.model.record_queries import ListRecords
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords
from tenure.queue import Calls, Layer, Store, Wanted, Within
from tenure.server.auth import hash_of
from tenure.server.route import Call, Reply, Route

HEADER = b"idempotency-key"
NAME = "Idempotency-Key"
ABOUT = (
    "Makes it safe to repeat the request: for 15 minutes, one with the same key and token is "
    "answered like the first and changes nothing. A different request with the same key is a "
    "conflict."
)


class _Stored(msgspec.Struct):
    """A response. did: the fingerprint of its request."""

    did: str
    status: int
    body: str


_decode = msgspec.json.Decoder(_Stored).decode
_SLOTS = "tenure.keyed"  # the scope of the slots of requests that are being carried out
_SLOT_MS = 60_000  # a slot outlives its request, for others that have not found its response


class KeyedStore(Layer):
    """A store for a request with a key. What it changes before it reads anything is done once.
    What it changes after that depends on what it read, and may differ in a repetition."""

    def __init__(self, inner: Store, unlimited: Store, key: str, did: str) -> None:
        super().__init__(inner)
        self._unlimited = unlimited
        self._key, self._did = key, did
        self._steps = 0
        self._has_read = self._has_acted = False
        self._slot: ops.TakeSlot | None = None

    @property
    def repeats_itself(self) -> bool:
        """Whether a repetition returns the same without a stored response, or nothing was to be
        changed."""
        return not self._has_acted or (self._steps == 1 and not self._has_read)

    async def begin(self) -> None:
        """Raise Conflict if another request with this key changes something now that is not in one
        transaction with its key."""
        self._has_acted = True
        if self._slot is None:
            take = ops.TakeSlot(_SLOTS, self._key, uuid4().hex, _SLOT_MS, limit=1)
            if not good((await self._unlimited.ado([take]))[0], ops.Slots).held:
                raise Conflict(f"a request with this {NAME} is being carried out; try again later")
            self._slot = take

    async def give_up(self) -> None:
        """Let a repetition try again at once."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            await self._unlimited.ado([ops.DropSlot(slot.scope, slot.key, slot.holder)])

    async def ado(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Query):
            self._has_read = True
            return await self._inner.ado(wanted)
        self._has_acted = True
        kinds = set() if isinstance(wanted, Within) else set(map(type, wanted))
        if self._has_read or not kinds or ops.Once in kinds:
            if kinds != {ops.Once}:
                await self.begin()
            return await self._inner.ado(wanted)
        key = f"{self._key}:{self._steps}"
        self._steps += 1
        (once,) = await self._inner.ado([ops.Once(key, tuple(wanted), self._did)])  # type: ignore[arg-type]
        if isinstance(once, Conflict):
            raise _reused()
        return good(once, ops.Answers).answers


async def begin(call: Call) -> None:
    """Raise Conflict if a request with the same key is being carried out. Handlers call it before
    they change something without `call.queue`."""
    if isinstance(call.store, KeyedStore):
        await call.store.begin()


async def answer_once(call: Call, route: Route, path: str, query: bytes, arguments: list[Any],
                      body: bytes) -> Reply:  # fmt: skip
    """Answer a request that has the header; raises Conflict if its key was used for another."""
    given = check_name(NAME, call.headers.get(HEADER))
    # A response must not show what this token, with other rights, could not see.
    token = call.token
    rights = msgspec.json.encode(
        [sorted(call.service.redaction.names), token.scopes, token.queues, token.tenants]
    )
    said = (route.method.encode(), path.encode(), query, body, rights)
    did = await call.aside(0, lambda: _fingerprint(said))
    # Keys are per token: nobody can read the results of another client by guessing its key.
    key = hash_of(f"{call.token.hash}:{NAME}:{given}")
    store = call.service.fair_store(call.token)
    known = await _known(store, key)
    if known is not None:
        if known.did != did:
            raise _reused()
        return Reply(known.body.encode(), known.status)
    keyed = KeyedStore(call.store, store, key, did)
    call.queue = Calls(keyed)
    try:
        reply = route.write(await route.handler(*arguments))
    except Exception:
        await keyed.give_up()
        raise
    if not keyed.repeats_itself:
        await _remember(store, key, _Stored(did, reply.status, reply.body.decode()))
    return reply


def _fingerprint(parts: tuple[bytes, ...]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def _reused() -> TenureError:
    return Conflict(
        f"this {NAME} was used for another request, or by a token with other rights; nothing was "
        "changed"
    )


async def _known(store: Store, key: str) -> _Stored | None:
    found = good(await store.ado(ListRecords("reply", key, key, 1)), list)
    return _decode(found[0].value) if found else None


async def _remember(store: Store, key: str, stored: _Stored) -> None:
    """Store a response, unless it is too large: then a repetition reads what is there now."""
    value = msgspec.json.encode(stored)
    if len(value) <= MAX_RECORD_BYTES:
        (answer,) = await store.ado([PutRecords((NewRecord("reply", key, value, ONCE_MS),))])
        good(answer, ops.Ok)
