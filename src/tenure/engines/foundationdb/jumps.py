"""Telling jumps of the cluster's versions from time.

Versions advance by a million a second, and leases, rates and schedules are measured by them. A
recovery of the cluster (any of its log processes, proxies or its master is replaced) moves versions
ahead by 95 to 99 s at once, or by 194 to 200 s if two follow each other. No time passes by that.
The rule:

1. Every process compares versions with its own two clocks at each transaction (`pace`). If versions
   have moved more than 10 s (and an eighth) further than both, that is a jump.
2. A process that has found a jump notes it in the store (JUMP) with its next transaction, unless
   another has noted one since the last version that the process saw before. So a jump is noted
   once, however late others find it.
3. Whoever judges leases notes every 10 s the version and its wall clock (SEEN): up to there, all
   jumps are noted. A process that has not watched since then itself (it has just started, or did
   nothing for five minutes) compares versions with the wall clocks of these two moments. If they
   differ by more than 30 s, there may have been a jump, and it notes one. Two clocks may be wrong
   by 30 s each, and a jump is still found.
4. A lease from before the last jump counts from the jump on: it gets its full time again.
5. Rates and schedules count versions without those that jumps have skipped.
6. A lease also ends 60 s after its end by the clocks of machines (`store`), whatever versions do.

This promises:
- A dead worker's job is taken over after its lease and 6 to 8 s, counted from the last jump, and at
  the latest 60 s after its lease by a machine whose clock is right.
- A worker that renews in time loses no job by a jump, also if jumps follow each other. Only a
  process that starts after the jump, before any other has noted it, does not recognise it if its
  clock is ahead of the one noted by as much as the jump.
- Two workers never finish the same job: that depends on tokens, not on time.
- A wrong clock cannot keep a lease alive. A process that runs compares differences of its own
  clocks, so that it does not matter what they show; and what it finds is noted once. A process that
  starts with a clock that is behind can note a false jump only if nobody has noted SEEN for 30 s,
  which also makes the lease end by rule 6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.tx import Tx
from tenure.engines.foundationdb.versions import VERSIONS_PER_MS, Watched

_NOTE_VERSIONS = 10_000 * VERSIONS_PER_MS
_CLOCKS_MS = 30_000  # by which versions and the clocks of two processes must differ


class Jump(NamedTuple):
    """The last jump."""

    version: int  # the first one after it, at which it was found
    skipped: int  # versions for which no time passed, by all jumps so far


class Seen(NamedTuple):
    """Up to which version all jumps are noted, and the time then."""

    version: int
    wall_ms: int


_NONE = Jump(0, 0)


def ask(tx: Tx) -> None:
    """Start reading what is noted."""
    if tx.store.hybrid and tx.asked_jumps is None:
        tx.asked_jumps = [tx.tr.snapshot.get(tx.keys.pack(kind)) for kind in (k.SEEN, k.JUMP)]


def last_jump(tx: Tx) -> Jump:
    """The last jump, as noted in the store or found by this process, which then notes it. A
    transaction that only reads notes nothing."""
    if not tx.store.hybrid:
        return _NONE
    if tx.jump is None:
        tx.jump = _find(tx)
    return Jump(*tx.jump)


def note_found(tx: Tx) -> None:
    """Note a jump that this process has found, with whatever else is committed."""
    watched = tx.store.pace.watched
    if watched is not None and watched.jumped is not tx.store.noted:
        last_jump(tx)


def _find(tx: Tx) -> Jump:
    ask(tx)
    version, watched = tx.version, tx.store.pace.watched
    seen, noted = (_decode(one.value) for one in tx.asked_jumps or ())
    assert watched is not None
    if max(seen[0], noted[0]) > version:  # a backup of a cluster with higher versions was restored
        tx.clear(tx.keys.pack(k.SEEN))
        tx.clear(tx.keys.pack(k.JUMP))
        seen = noted = (0, 0)
    jump = _judge(watched, Seen(*seen), Jump(*noted))
    if jump != noted:
        _put(tx, k.JUMP, jump)
    else:
        tx.store.noted = watched.jumped
    if jump != noted or version - seen[0] > _NOTE_VERSIONS:
        _put(tx, k.SEEN, Seen(version, max(0, tx.store.clock.now_ms())))
    return jump


def _judge(watched: Watched, seen: Seen, noted: Jump) -> Jump:
    since, jumped = watched
    if jumped is not None and noted.version <= jumped.after:
        return Jump(since.version, noted.skipped + jumped.skipped)
    if not seen.version:  # nobody has watched before
        return Jump(since.version, noted.skipped)
    moved_ms = (since.version - seen.version) // VERSIONS_PER_MS
    passed_ms = max(0, since.wall_ms - seen.wall_ms)
    slack_ms = _CLOCKS_MS + min(moved_ms, passed_ms) // 16  # versions may be slower than clocks
    if moved_ms > _CLOCKS_MS and abs(moved_ms - passed_ms) > slack_ms:
        skipped = max(0, moved_ms - passed_ms) * VERSIONS_PER_MS
        return Jump(since.version, noted.skipped + skipped)
    return noted


def _put(tx: Tx, kind: int, note: tuple[int, int]) -> None:
    """Note two numbers, unless the first of those that are noted is greater."""
    tx.wrote = True
    tx.tr.byte_max(tx.keys.pack(kind), b"".join(number.to_bytes(8, "big") for number in note))


def _decode(value: Any) -> tuple[int, int]:
    data = b"" if value is None else bytes(value)
    return int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big")
