"""Claim: write down who wants which jobs, commit, and check who was first.

A claim uses snapshot reads and writes a CLAIM key with a versionstamp for each job it wants. It
conflicts with writes to the jobs' own keys, which no claim makes. So claims of the same jobs never
conflict, and a claim of a job that has moved meanwhile does not commit. After the commit, the
lowest CLAIM key of each job decides who has it. A lost claim needs no undo, because it wrote
nothing that the winner did not write. Under a limit, claims also conflict on the count of leases
and add to it, so that they run one after the other, and none is lost.

Concurrent claims are fused: jobs are picked for all of them at once and then distributed. Keyed
claims (ops.Once) take part; `once` describes how their results are stored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from tenure.core.claim import alike
from tenure.core.moves import move, settle
from tenure.core.upkeep import Swept, sweep
from tenure.engines.foundationdb import keyed_calls
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.calls import Call, Keyed, apart, calls_of
from tenure.engines.foundationdb.claimed_jobs import Mine
from tenure.engines.foundationdb.due import Due
from tenure.engines.foundationdb.near import Near
from tenure.engines.foundationdb.parking import Idle, put_aside, put_more_back
from tenure.engines.foundationdb.pick import Picker, Ready, prefetch
from tenure.engines.foundationdb.record import (
    Body,
    ClaimNote,
    Held,
    Record,
    claimed,
    decode_body,
    decode_record,
    encode,
    job_of,
)
from tenure.engines.foundationdb.transact import Transactor
from tenure.engines.foundationdb.transaction import Transaction
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import StoreError, TenureError
from tenure.model import ops, states, wire
from tenure.model.job import Failure, Job
from tenure.model.ops import Answer

log = logging.getLogger("tenure.foundationdb")

CLAIMED = states.Claimed()
_ROUNDS = 16
_MOST_JOBS = 500  # per transaction
_MOST_SPREAD = 64
_CALM_AFTER = 4  # claims without a loss before other claimers are assumed to be gone


class Want(NamedTuple):
    """A job that a claim was written for."""

    id: str
    leased: Record  # if this claim wins, and except for the version of its commit
    body: Body
    errors: tuple[Failure, ...]
    place: int  # among its neighbours

    def record(self, version: int) -> Record:
        """Its record under a claim that was committed at this version."""
        token = max(version, self.leased.token)
        return replace(self.leased, token=token, lease_version=version)

    def job(self, record: Record) -> Job:
        return job_of(self.id, record, self.body, self.errors, None)


Look = Mapping[str, bool]  # by queue: whether to look at its leases, besides what is due
Dealt = tuple[Call, list[Want], int]  # a call, its jobs, and how many count against its limit


class Seen:
    """What claims learned, besides the jobs."""

    def __init__(self) -> None:
        self.idle: list[Idle] = []
        self.unfinished: list[str] = []  # queues that were not fully scanned
        self.cut = False  # the transaction had no room for more

    def add(self, picker: Picker) -> None:
        self.idle.extend(picker.idle)
        if picker.should_park_lanes or picker.tx.aside_left(picker.queue) is not None:
            self.unfinished.append(picker.queue)

    @property
    def everything(self) -> bool:
        """Whether everything was scanned, so that nothing else can be claimed."""
        return not self.cut and not self.unfinished


class Plan:
    """What a transaction of claims does."""

    def __init__(self) -> None:
        self.seen: Seen = Seen()
        self.dealt: list[Dealt] = []
        # By queue: how long no lease can expire. None: something is due, so nothing was claimed.
        self.quiet_ms: dict[str, int] | None = {}
        self.answers: dict[Keyed, Answer] = {}
        self.unfinished: list[Keyed] = []  # begun by another process, which may be gone

    def jobs_of(self, keyed: Keyed) -> list[tuple[Call, list[Want]]]:
        return [(call, jobs) for call, jobs, _ in self.dealt if call.keyed is keyed and jobs]

    @property
    def keyed(self) -> list[Keyed]:
        """Keyed calls that want jobs."""
        wanting = (call.keyed for call, jobs, _ in self.dealt if jobs)
        return list(dict.fromkeys(one for one in wanting if one is not None))


class More(Enum):
    """Whether there is more to claim after a round."""

    NONE = "none"
    PERHAPS = "perhaps"  # some were lost to others, or not everything was scanned
    SURELY = "surely"  # the transaction had no room for more
    DUE = "due"  # nothing was claimed, because something is due


class Claims:
    """Runs the claims of one engine."""

    def __init__(self, transactor: Transactor) -> None:
        self._transactor = transactor
        self._spread = 1  # how far from the head of a lane to look, to avoid other claimers
        self._calm = 0
        self._look_at_leases: dict[str, float] = {}  # by queue: when to look at its leases again

    # path: a claim
    def claim(self, batch: Sequence[ops.Claim | ops.Once]) -> list[Answer]:
        """Run all claims in one commit, and repeat for those that lost."""
        calls, keyed = calls_of(batch)
        failed: Exception | None = None
        try:
            named = Counter(queue for one in calls for queue in dict.fromkeys(one.op.queues))
            more = self._round(calls, self._look(named))
            if more is not More.DUE:
                self._go_on(calls, more)
            else:
                left = self._sweep(named)
                # Expired jobs that are still in line must not use up the room of the next claim.
                for together in apart(calls) if left else [calls]:
                    self._go_on(together, More.SURELY)
            self._finish(one for one in keyed if one.answer is None)
        except Exception as error:
            if not any(call.jobs for call in calls) and not any(one.stamps for one in keyed):
                raise
            log.warning("a claim ended early, after some jobs had been leased: %s", error)
            failed = error
        plain = (call for call in calls if call.keyed is None)
        under_key = iter(keyed)
        return [
            _answer_to_keyed(next(under_key), failed)
            if isinstance(op, ops.Once)
            else _answer_to(next(plain), failed)
            for op in batch
        ]

    def _go_on(self, calls: Sequence[Call], more: More) -> None:
        """Run more rounds, as long as there may be more to claim."""
        rounds = 0
        while more is not More.NONE and rounds < _ROUNDS:
            more = self._round(calls)
            rounds += more is More.PERHAPS

    def _look(self, queues: Iterable[str]) -> Look:
        """What to look at before claiming from these queues: everything that may be due."""
        hybrid, now = self._transactor.store.hybrid, self._transactor.monotonic()
        return {
            queue: not hybrid or now >= self._look_at_leases.get(queue, now) for queue in queues
        }

    def _sweep(self, queues: Mapping[str, int]) -> bool:
        """Run due maintenance of the queues, as much as this many claims would. Returns whether
        more jobs may have expired."""

        def work(tx: Transaction, most: int) -> bool:
            left = False
            for queue, claims in sorted(queues.items()):
                many = min(most * claims, max(most, _MOST_JOBS))
                left = sweep(tx, queue, Swept(many, many, many)).expired == many or left
            return left

        return self._transactor.run_some(work, self._transactor.store.sweep)[0]

    def _round(self, calls: Sequence[Call], look: Look | None = None) -> More:
        """Claim as many of the missing jobs as fit into one transaction, unless it finds that
        something is due."""
        left = [call for call in calls if call.keyed is None or call.keyed.answer is None]
        began = self._transactor.monotonic()
        work = partial(self._plan, calls=left, look=look or {})
        plan, stamp = self._transactor.run_some(work, _MOST_JOBS)
        if plan.quiet_ms is None:
            return More.DUE
        for queue, ms in plan.quiet_ms.items():
            self._look_at_leases[queue] = began + ms / 1000
        for keyed in plan.keyed:
            keyed.stamps.add(stamp)
        won, answers = self._settle(plan, stamp)
        for keyed, answer in (plan.answers | answers).items():
            keyed.answer = answer
        self._finish(plan.unfinished)
        lost = False
        for call, jobs, counted in plan.dealt:
            mine = _won(jobs, won, stamp)
            self._transactor.store.claimed.note(
                (want.id, Mine(stamp, record, want.place)) for want, record in mine
            )
            call.jobs += [want.job(record) for want, record in mine]
            call.left -= counted - (len(jobs) - len(mine))
            lost = lost or len(mine) < len(jobs)
        self._adapt(lost, any(jobs for _, jobs, _ in plan.dealt))
        self._put_aside(plan.seen.idle)
        for queue in plan.seen.unfinished:
            self._transactor.run(partial(put_more_back, queue=queue))
        if plan.seen.cut and any(counted for _, _, counted in plan.dealt) and not lost:
            return More.SURELY
        return More.PERHAPS if lost or plan.seen.unfinished else More.NONE

    def _plan(self, tx: Transaction, most: int, *, calls: Sequence[Call], look: Look) -> Plan:
        plan = Plan()
        plan.quiet_ms = _look_for_due(tx, calls, look)
        if plan.quiet_ms is None:
            return plan
        found = _read_keyed(tx, calls, plan)
        taking = [call for call in calls if call.keyed is None or call.keyed in found]
        for some in alike(taking, attrgetter("op")):
            used = sum(counted for _, _, counted in plan.dealt)
            plan.dealt += _want(tx, some, most - used, self._spread, plan.seen)
        for keyed, stored in found.items():
            wanted = plan.jobs_of(keyed)
            if wanted:
                ids = [(call.number, [job.id for job in jobs]) for call, jobs in wanted]
                keyed_calls.want(tx, keyed.op, stored, ids)
            elif plan.seen.everything and not keyed.jobs:
                plan.answers[keyed] = keyed_calls.finish(tx, keyed.op, stored, {})
        return plan

    def _settle(self, plan: Plan, stamp: bytes) -> tuple[set[str], dict[Keyed, Answer]]:
        """The jobs that were won, and the results of the keyed calls that need no other try. Stores
        these results."""
        ids = [job.id for _, jobs, _ in plan.dealt for job in jobs]
        if not ids:
            return set(), {}

        def work(tx: Transaction) -> tuple[set[str], dict[Keyed, Answer]]:
            for keyed in plan.keyed:
                keyed_calls.ask(tx, keyed.op)
            won = keyed_calls.won_by(tx, ids, stamp)
            answers: dict[Keyed, Answer] = {}
            for keyed in plan.keyed if plan.seen.everything else ():
                given = {call.number: list(call.jobs) for call in keyed.calls}
                for call, jobs in plan.jobs_of(keyed):
                    mine = _won(jobs, won, stamp)
                    given[call.number] += [want.job(record) for want, record in mine]
                all_won = all(job.id in won for _, jobs in plan.jobs_of(keyed) for job in jobs)
                if all_won:
                    stored = keyed_calls.stored(tx, keyed.op)
                    answers[keyed] = keyed_calls.finish(tx, keyed.op, stored, given)
            return won, answers

        try:
            return self._transactor.run(work)[0] if plan.keyed else self._transactor.read(work)
        except TenureError as error:
            raise StoreError(
                f"jobs were claimed, but cannot be read; their leases will expire: {error}"
            ) from error

    def _finish(self, keyed: Iterable[Keyed]) -> None:
        """Store the results of keyed calls that were begun, by this process or another."""
        for one in keyed:
            one.answer, _ = self._transactor.run(partial(keyed_calls.go_on, op=one.op))

    def _adapt(self, lost: bool, wanted: bool) -> None:
        if lost:
            self._spread, self._calm = min(self._spread * 2, _MOST_SPREAD), 0
        elif wanted and self._spread > 1:
            self._calm += 1
            if self._calm >= _CALM_AFTER:
                self._spread, self._calm = self._spread // 2, 0

    def _put_aside(self, idle: list[Idle]) -> None:
        """Drop lanes from the index if nothing can be claimed from them. If that fails, the next
        claim tries again. A few lanes that are held back are left: skipping them is cheaper."""
        store = self._transactor.store
        if sum(one.held_back for one in idle) < store.aside_from:
            idle = [one for one in idle if not one.held_back]
        if not idle:
            return
        tr = self._transactor.begin()
        try:
            put_aside(Tx(store, tr, 0), idle)
            tr.commit().wait()
        except store.handle.FDBError:
            pass


def _answer_to(call: Call, failed: Exception | None) -> Answer:
    if failed is None or call.jobs:
        return ops.Leased(call.jobs)
    if isinstance(failed, TenureError):
        return failed
    return StoreError(f"internal error in the engine: {failed!r}")


def _answer_to_keyed(keyed: Keyed, failed: Exception | None) -> Answer:
    if keyed.answer is not None:
        return keyed.answer
    return StoreError(f"jobs may have been claimed; retry with the same key: {failed!r}")


def _won(wanted: Iterable[Want], won: set[str], stamp: bytes) -> list[tuple[Want, Record]]:
    version = int.from_bytes(stamp[:8], "big")
    return [(one, one.record(version)) for one in wanted if one.id in won]


def _look_for_due(tx: Transaction, calls: Sequence[Call], look: Look) -> dict[str, int] | None:
    """By queue whose leases were looked at, how long none of them can expire; None if something is
    due. The first reads of the claims are requested at the same time."""
    asked = {queue: Due(tx, queue, leases=leases) for queue, leases in look.items()}
    for call in calls[:1] if look else ():
        prefetch(tx, call.op.queues[0], call.op)
    if any(one.found() for one in asked.values()):
        return None
    return {queue: asked[queue].quiet_ms for queue, leases in look.items() if leases}


def _read_keyed(
    tx: Transaction, calls: Iterable[Call], plan: Plan
) -> dict[Keyed, keyed_calls.Stored]:
    """Read what is stored of keyed calls that may claim now."""
    keyed = dict.fromkeys(call.keyed for call in calls if call.keyed is not None)
    for one in keyed:
        keyed_calls.ask(tx, one.op)
    found = {}
    for one in keyed:
        stored = keyed_calls.stored(tx, one.op)
        if stored.answer is not None:
            plan.answers[one] = stored.answer
        elif keyed_calls.is_of_others(one.op, stored):
            plan.answers[one] = wire.key_reused(one.op.key)
        elif {wanted.stamp for wanted in stored.wanted} != one.stamps:
            plan.unfinished.append(one)
        else:
            found[one] = stored
    return found


def _want(
    tx: Transaction, calls: Sequence[Call], most: int, spread: int, seen: Seen
) -> list[Dealt]:
    """Write claims on ready jobs, in order, for calls that want the same kind of jobs."""
    op, total = calls[0].op, sum(call.left for call in calls)
    limit = min(total, most)
    picked: list[Ready] = []
    for queue in dict.fromkeys(op.queues):
        if len(picked) >= limit:
            break
        picker = Picker(tx, queue, op, spread)
        picked += picker.pick(limit - len(picked))
        seen.add(picker)
    seen.cut = seen.cut or len(picked) == limit < total
    shares = []
    for call in calls:
        shares.append((call, picked[: call.left]))
        picked = picked[call.left :]
    return _write_claims(tx, shares)


def _write_claims(tx: Transaction, shares: Sequence[tuple[Call, Sequence[Ready]]]) -> list[Dealt]:
    ids = [ready.id for _, found in shares for ready in found]
    records, bodies = Near(tx, k.JOB, ids), Near(tx, k.BODY, ids)
    runs = records.runs()
    tx.watch_runs(k.JOB, runs)
    places = tx.store.claimed.places(runs)
    dealt = []
    for call, found in shares:
        jobs = []
        for ready in found:
            ((_, data),) = records.of(ready.id)
            parts = [value for _, value in bodies.of(ready.id)]
            seen = tx.held(ready.id, decode_record(data))
            leased = _write_claim(tx, call.op, seen)
            if leased is not None:
                body, place = decode_body(parts), places[ready.id]
                jobs.append(Want(ready.id, leased, body, seen.errors, place))
        dealt.append((call, jobs, len(found)))
    return dealt


def _write_claim(tx: Transaction, op: ops.Claim, seen: Held) -> Record | None:
    """The record as it will be if this claim wins, except for the version; None if the job has
    expired."""
    job_id, record = seen.id, seen.record
    if not states.is_plain(seen, CLAIMED, tx.now):
        held = tx.job(job_id)
        assert held is not None
        _release_expired(tx, held)
        return None
    note = ClaimNote(op.worker, tx.now, op.lease_ms)
    leased = claimed(record, note, 0)
    tx.wrote = tx.has_claimed = True
    tx.tr.set_versionstamped_key(tx.keys.new_claim(job_id), encode(note))
    # Every claim of the job does the same, except for the lease's end.
    tx.change_places(job_id, record, leased)
    return leased


def _release_expired(tx: Transaction, held: Held) -> None:
    """A picked job turned out to have expired: release what was taken for it."""
    move(tx, held, CLAIMED)
    settle(tx)
    tx.free(held.record)


# path: a claim with a key
def claim_serially(tx: Transaction, op: ops.Claim) -> Answer:
    """A claim whose result must be known before the commit, because it is stored in the same
    transaction. It conflicts with other claims of the same jobs."""
    most = Swept(tx.store.sweep, tx.store.sweep, tx.store.sweep)
    for queue in sorted(set(op.queues)):
        sweep(tx, queue, most)
    tx.put_freed_back()
    leased: list[Job] = []
    picked = 0
    for queue in dict.fromkeys(op.queues):
        if picked >= op.limit:
            break
        picker = Picker(tx, queue, op, 1)
        found = picker.pick(op.limit - picked)
        picked += len(found)
        if picker.should_park_lanes:
            put_aside(tx, picker.idle)
        put_more_back(tx, queue)
        tx.load([ready.id for ready in found])
        for ready in found:
            job = _lease(tx, ready.id, op)
            if job is not None:
                leased.append(job)
    return ops.Leased(leased)


def _lease(tx: Transaction, job_id: str, op: ops.Claim) -> Job | None:
    held = tx.job(job_id)
    assert held is not None
    if not states.is_plain(held, CLAIMED, tx.now):
        _release_expired(tx, held)
        return None
    note = ClaimNote(op.worker, tx.now, op.lease_ms)
    # Later than everything read and not later than the commit, so tokens only increase.
    tx.put(held, claimed(held.record, note, tx.version + 1))
    return job_of(job_id, held.record, tx.body(job_id), held.errors, None)
