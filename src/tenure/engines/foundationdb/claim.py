"""Claim: write down who wants which jobs, commit, and look who came first.

A claim reads by snapshot and writes a CLAIM key with a versionstamp for each job that it wants. It
depends on the jobs' own keys, which no claim writes: so claims of the same jobs never conflict,
and one that was decided on a job which has moved since is not committed at all. After the commit,
the lowest CLAIM key of each job tells whose it is; to have lost costs nothing, for a lost claim has
changed nothing that the winner's has not. Under a limit, claims also depend on what is taken of it
and add to that, so that they come one after the other, and none is ever lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from tenure import ops, states
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.aside import Idle, put_aside, put_more_back
from tenure.engines.foundationdb.pick import Picker, Ready
from tenure.engines.foundationdb.places import places
from tenure.engines.foundationdb.record import (
    ClaimNote,
    Facts,
    Record,
    claimed,
    decode_body,
    decode_errors,
    decode_record,
    encode,
    job_of,
)
from tenure.engines.foundationdb.sweep import anything_due, sweep
from tenure.engines.foundationdb.transact import Transactor, begin
from tenure.engines.foundationdb.tx import Held, Tx
from tenure.errors import StoreError, TenureError
from tenure.job import Job, State
from tenure.ops import Answer

_ROUNDS = 16
_MOST_JOBS = 500  # of one transaction
_MOST_SPREAD = 64
_CALM_AFTER = 4  # claims that lost nothing, until others are thought to be gone


class Wanted(NamedTuple):
    """A job that a claim wants, as it will be if it gets it but for the token."""

    job: Job


class Seen(NamedTuple):
    """What claims came across besides jobs."""

    idle: list[Idle]
    unfinished: list[str]  # queues in which they have not looked at everything

    def add(self, picker: Picker) -> None:
        self.idle.extend(picker.idle)
        if picker.tired or picker.tx.aside_left(picker.queue) is not None:
            self.unfinished.append(picker.queue)


class More(Enum):
    """What there is to be had after a round of claims."""

    NONE = "none"
    PERHAPS = "perhaps"  # another was faster with some of it, or not everything was looked at
    SURELY = "surely"  # there was no room for more in the transaction


class Claims:
    """Claims of one engine."""

    def __init__(self, transactor: Transactor) -> None:
        self._transactor = transactor
        self._spread = 1  # how far from the head of a lane to look, so as not to meet others
        self._calm = 0

    def claim(self, batch: Sequence[ops.Claim]) -> list[Answer]:
        """All in one commit, and again for those that lost."""
        queues = list(dict.fromkeys(queue for op in batch for queue in op.queues))
        if self._transactor.read(lambda tx: any(anything_due(tx, queue) for queue in queues)):
            most = self._transactor.store.sweep
            self._transactor.run_some(lambda tx, most: _sweep(tx, queues, most), most)
        given: list[list[Job]] = [[] for _ in batch]
        left = [op.limit for op in batch]
        rounds = 0
        try:
            while rounds < _ROUNDS and (more := self._round(batch, left, given)) is not More.NONE:
                rounds += more is More.PERHAPS
        except Exception:
            if not any(given):
                raise
        return [ops.Leased(jobs) for jobs in given]

    def _round(self, batch: Sequence[ops.Claim], left: list[int], given: list[list[Job]]) -> More:
        """Claim of what is left to be claimed as much as fits into a transaction."""

        def work(tx: Tx, most: int) -> tuple[list[list[Wanted]], list[int], Seen, bool]:
            seen = Seen([], [])
            counts = [0] * len(batch)
            wanted = []
            cut = False
            for n, op in enumerate(batch):
                some = min(left[n], most - sum(counts))
                found, counts[n] = _want(tx, op, some, self._spread, seen)
                wanted.append(found)
                cut = cut or counts[n] == some < left[n]
            return wanted, counts, seen, cut

        (wanted, counts, seen, cut), stamp = self._transactor.run_some(work, _MOST_JOBS)
        try:
            won = self._who_won([one.job.id for each in wanted for one in each], stamp)
        except TenureError as error:
            raise StoreError(
                f"jobs were claimed, and which cannot be read; their leases will run out: {error}"
            ) from error
        lost = False
        for n, each in enumerate(wanted):
            token = int.from_bytes(stamp[:8], "big")
            mine = [
                replace(one.job, token=max(token, one.job.token))
                for one in each
                if one.job.id in won
            ]
            given[n] += mine
            left[n] -= counts[n] - (len(each) - len(mine))
            lost = lost or len(mine) < len(each)
        self._adapt(lost, any(wanted))
        self._put_aside(seen.idle)
        for queue in seen.unfinished:
            self._transactor.run(partial(put_more_back, queue=queue))
        if cut and any(counts) and not lost:
            return More.SURELY
        return More.PERHAPS if lost or seen.unfinished else More.NONE

    def _who_won(self, ids: list[str], stamp: bytes) -> set[str]:
        """Those of the jobs whose first claim has this versionstamp."""
        if not ids:
            return set()

        def work(tx: Tx) -> set[str]:
            asked = [
                (one, tx.tr.snapshot.get_range(*tx.keys.span(k.CLAIM, one), limit=1)) for one in ids
            ]
            won = set()
            for job_id, rows in asked:
                for row in rows:
                    if tx.keys.unpack(bytes(row.key))[1].tr_version == stamp:
                        won.add(job_id)
            return won

        return self._transactor.read(work)

    def _adapt(self, lost: bool, wanted: bool) -> None:
        if lost:
            self._spread, self._calm = min(self._spread * 2, _MOST_SPREAD), 0
        elif wanted and self._spread > 1:
            self._calm += 1
            if self._calm >= _CALM_AFTER:
                self._spread, self._calm = self._spread // 2, 0

    def _put_aside(self, idle: list[Idle]) -> None:
        """Take lanes that nothing can be had from out of the index; if it fails, the next claim
        will try. A few that are held back are sooner passed over by every claim."""
        store = self._transactor.store
        if sum(one.held_back for one in idle) < store.aside_from:
            idle = [one for one in idle if not one.held_back]
        if not idle:
            return
        tr = begin(store.db)
        try:
            put_aside(Tx(store, tr, 0), idle)
            tr.commit().wait()
        except store.handle.FDBError:
            pass


def _sweep(tx: Tx, queues: Iterable[str], most: int) -> None:
    for queue in queues:
        sweep(tx, queue, most, most, most)


def _want(tx: Tx, op: ops.Claim, limit: int, spread: int, seen: Seen) -> tuple[list[Wanted], int]:
    """Write claims on the jobs to be had; these, and how many were picked with those that had
    expired unseen."""
    wanted: list[Wanted] = []
    picked = 0
    for queue in dict.fromkeys(op.queues):
        if picked >= limit:
            break
        picker = Picker(tx, queue, op, spread)
        found = picker.pick(limit - picked)
        seen.add(picker)
        picked += len(found)
        wanted += _write_claims(tx, op, found)
    return wanted, picked


def _write_claims(tx: Tx, op: ops.Claim, found: list[Ready]) -> list[Wanted]:
    keys, snapshot = tx.keys, tx.tr.snapshot
    asked = [
        (
            ready.id,
            snapshot.get(keys.pack(k.JOB, ready.id)),
            snapshot.get_range(*keys.span(k.BODY, ready.id)),
        )
        for ready in found
    ]
    note = ClaimNote(op.worker, tx.now, op.lease_ms)
    encoded = encode(note)
    wanted = []
    for job_id, data, body in asked:
        record = decode_record(bytes(data.value))
        errors = decode_errors(tx.parts(k.ERRORS, job_id)) if record.failures else ()
        change = states.decide(Facts(job_id, record, errors), states.Claimed(), tx.now)
        assert change is not None
        if change.state is not State.LEASED:
            held = tx.job(job_id)
            assert held is not None
            _turn_down(tx, held)
            continue
        leased = claimed(record, change, note, 0)
        tx.tr.add_read_conflict_key(keys.pack(k.JOB, job_id))
        tx.wrote = True
        tx.tr.set_versionstamped_key(keys.new_claim(job_id), encoded)
        _change_places(tx, job_id, record, leased)
        parts = [bytes(row.value) for row in body]
        wanted.append(Wanted(job_of(job_id, leased, decode_body(parts), errors, None)))
    return wanted


def _turn_down(tx: Tx, held: Held) -> None:
    """A job that was picked turns out to have expired: what was taken for it is free again."""
    tx.move(held, states.Claimed())
    tx.free(held.record)


def _change_places(tx: Tx, job_id: str, before: Record, after: Record) -> None:
    """What every claim of the job does alike, but for the end of its lease."""
    was, is_now = places(tx.keys, job_id, before), places(tx.keys, job_id, after)
    for key in was.keys() - is_now.keys():
        tx.clear(key)
    for key in is_now.keys() - was.keys():
        tx.set(key, is_now[key])


def claim_serially(tx: Tx, op: ops.Claim) -> Answer:
    """A claim whose answer must be known before the commit, because it is stored with it: it
    depends on nobody else claiming the same jobs."""
    _sweep(tx, dict.fromkeys(op.queues), tx.store.sweep)
    tx.put_freed_back()
    leased: list[Job] = []
    picked = 0
    for queue in dict.fromkeys(op.queues):
        if picked >= op.limit:
            break
        picker = Picker(tx, queue, op, 1)
        found = picker.pick(op.limit - picked)
        picked += len(found)
        if picker.tired:
            put_aside(tx, picker.idle)
        put_more_back(tx, queue)
        tx.prefetch([ready.id for ready in found])
        for ready in found:
            job = _lease(tx, ready.id, op)
            if job is not None:
                leased.append(job)
    return ops.Leased(leased)


def _lease(tx: Tx, job_id: str, op: ops.Claim) -> Job | None:
    held = tx.job(job_id)
    assert held is not None
    errors = tx.errors(held)
    before = held.record
    change = states.decide(Facts(job_id, before, errors), states.Claimed(), tx.now)
    assert change is not None
    if change.state is not State.LEASED:
        _turn_down(tx, held)
        return None
    note = ClaimNote(op.worker, tx.now, op.lease_ms)
    # Later than all that was read, and no later than the commit: a token that only grows.
    tx.put(held, claimed(before, change, note, tx.version + 1))
    return job_of(job_id, held.record, tx.body(job_id), errors, None)
