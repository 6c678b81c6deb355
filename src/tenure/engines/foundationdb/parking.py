"""Lanes without claimable jobs, put aside so that claims need not look at them.

LANE and TURN keys say where there may be ready jobs. A claim that finds an empty lane removes it
from that index. A lane that is held back by a pause or a full limit is moved to PARKED. It is put
back when that changes: by the transaction that gives back a lease (`Tx.free`) or changes a limit.
Each side conflicts with what the other writes, so that if two meet, one of them fails and looks
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.tx import Tx

AT_ONCE = 1000  # lanes that one transaction puts back


class Idle(NamedTuple):
    """A lane, or a tenant (without a group), in which a claim found nothing."""

    queue: str
    tenant: str
    group: str | None
    held_back: bool  # it has jobs, but none may be claimed now; otherwise it has none


# path: lanes parked
def put_aside(tx: Tx, idle: Sequence[Idle]) -> None:
    """Remove lanes and tenants from the index if they are still idle. Adding a job to one of them
    writes its key and conflicts with this."""
    used = {one: _ask_used(tx, one) for one in idle if one.held_back}
    for one in idle:
        if one.group is not None:
            _put_lane_aside(tx, one, used.get(one))
    held_back = {(one.queue, one.tenant): one for one in used if one.group is None}
    for queue, tenant in dict.fromkeys((one.queue, one.tenant) for one in idle):
        key = tx.keys.turn(queue, tenant)
        whole = held_back.get((queue, tenant))
        if whole is not None and _is_held_back(tx, whole, used[whole]):
            tx.tr.add_read_conflict_key(key)
            tx.clear(key)
            tx.set(tx.keys.pack(k.PARKED, queue, tenant, None))
        elif not _any(tx, k.LANE, queue, tenant):
            tx.tr.add_read_conflict_key(key)
            tx.clear(key)


def _put_lane_aside(tx: Tx, one: Idle, used: tuple[Any, Any] | None) -> None:
    assert one.group is not None
    key = tx.keys.lane(one.queue, one.tenant, one.group)
    if used is not None:
        if not _is_held_back(tx, one, used):
            return
        tx.set(tx.keys.pack(k.PARKED, one.queue, one.tenant, one.group))
    elif _any(tx, k.READY, one.queue, one.tenant, one.group):
        return
    tx.tr.add_read_conflict_key(key)
    tx.clear(key)


def _ask_used(tx: Tx, one: Idle) -> tuple[Any, Any]:
    """The leases taken of its limit, and those given back, with a conflict range."""
    scope = (one.queue, one.tenant, one.group)
    return tx.tr.get(tx.keys.pack(k.TAKEN, *scope)), tx.tr.get(tx.keys.pack(k.FREED, *scope))


def _is_held_back(tx: Tx, one: Idle, used: tuple[Any, Any]) -> bool:
    rules = tx.rules(one.queue)
    if one.group is None:
        paused, bound = rules.tenant_paused(one.tenant), rules.tenant_concurrency(one.tenant)
    else:
        paused = rules.group_paused(one.tenant, one.group)
        bound = rules.group_concurrency(one.tenant, one.group)
    taken, freed = (tx.number_of(future) for future in used)
    return paused or (bound is not None and taken - freed >= bound)


def _any(tx: Tx, *elements: Any) -> bool:
    return any(True for _ in tx.scan(*tx.keys.span(*elements), limit=1))


def put_back(tx: Tx, queue: str, tenant: str | None) -> None:
    """After limits changed: make claims look again at what was put aside, of one tenant or of all.
    If that is much, a part is left to the next claim."""
    pending = tx.aside_left(queue)
    of = () if tenant in (None, "*") else (tenant,)
    left = _put_back(tx, *tx.keys.span(k.PARKED, queue, *of))
    if pending is not None and of:
        left = pending if left is None else min(left, pending)
    tx.rules_changed(queue, left)


def put_more_back(tx: Tx, queue: str) -> None:
    """Continue with what was left."""
    start = tx.aside_left(queue)
    if start is not None:
        _, end = tx.keys.span(k.PARKED, queue)
        tx.aside_is_left(queue, _put_back(tx, start, end))


def _put_back(tx: Tx, begin: bytes, end: bytes) -> bytes | None:
    """Put back what is between two keys, or the first part of it. Returns where the rest begins, if
    any. Conflicts with transactions that put something aside there."""
    rows = list(tx.tr.get_range(begin, end, limit=AT_ONCE))
    for row in rows:
        queue, *scope = tx.keys.unpack(bytes(row.key))
        tx.put_back(queue, tuple(scope))
    return bytes(rows[-1].key) + b"\x00" if len(rows) == AT_ONCE else None
