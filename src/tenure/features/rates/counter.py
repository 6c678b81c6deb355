"""Counts what this process commits, by queue and minute, for `rates`.

Counts are kept in memory and stored together with a commit, at most every FLUSH_SECONDS, and when
the handle is closed; a process that is killed loses the last seconds. Each process writes records
of its own, so that nobody waits for a counter.

A job that ends here may have been claimed by another process. Its queue is looked up when the
counts are stored; if there are very many such jobs, a part of them stands for all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tenure.clock import Clock
from tenure.engines import Engine
from tenure.features.rates import data as rates
from tenure.features.rates.data import KEEP_MS, PER_MS, Counted, Per, bucket_of
from tenure.model import ops
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, GetJobs, Page, Query
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords
from tenure.model.tally import tally
from tenure.queue.running import Claims, Running

log = logging.getLogger("tenure.rates")

FLUSH_SECONDS = 5.0
MOST_QUEUES = 200  # that one process counts in a minute
SAMPLED = 32  # jobs of one commit whose waiting time is noted, more or less
MOST_LOOKED_UP = 500  # jobs of other processes, each time that counts are stored

_MINUTE, _HOUR = PER_MS["minute"], PER_MS["hour"]
ByQueue = dict[str, Counted]
Read = Callable[[Query], Found]


class Ended(NamedTuple):
    """A job of another process that ended here. state: what a failure made of it; None if done."""

    id: str
    at: int
    state: State | None


class RateCounter:
    """The counts of one process that are not stored yet, or may still grow."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything, as after a fork: the parent stores its own counts."""
        self._lock = threading.Lock()
        self._storing = threading.Lock()
        self._writer = f"{os.getpid():x}-{os.urandom(6).hex()}"
        self._flush_at = self._clock.monotonic() + FLUSH_SECONDS
        self._minutes: dict[int, ByQueue] = {}
        self._hours: dict[int, ByQueue] = {}  # of the minutes that are over
        self._changed = False
        self._running = Running()
        self._foreign: list[Ended] = []  # some of those that were claimed elsewhere
        self._foreign_count = 0  # all of them

    # Storing ------------------------------------------------------------------------------------

    def due(self, read: Read) -> list[Op]:
        """What to store together with the next commit. Call `stored` or `lost` afterwards."""
        return self.flush(read) if self._is_due else []

    @property
    def _is_due(self) -> bool:
        return self._changed and self._clock.monotonic() >= self._flush_at

    def store_apart(self, engine: Engine) -> None:
        """Store what is due, in a thread of its own: no commit waits for it."""
        if self._is_due and self._storing.acquire(blocking=False):
            self._storing.release()
            threading.Thread(
                target=self.store, args=(engine,), name="tenure-rates", daemon=True
            ).start()

    def store(self, engine: Engine) -> None:
        """Store what has been counted now. One at a time."""
        with self._storing:
            also = self.flush(engine.read)
            if not also:
                return
            try:
                answers = engine.apply(also)
            except Exception:  # the store is gone; what a closed handle has not stored is lost
                log.info("the rates of the last seconds could not be stored", exc_info=True)
                self.lost()
                return
            if all(isinstance(answer, ops.Ok) for answer in answers):
                self.stored()
            else:
                self.lost()

    def flush(self, read: Read) -> list[Op]:
        """What to store now, if anything has changed."""
        self._count_foreign(read)
        with self._lock:
            self._flush_at = self._clock.monotonic() + FLUSH_SECONDS
            if not self._changed:
                return []
            self._changed = False
            hours: dict[int, ByQueue] = {}
            for at, counted in (*self._hours.items(), *self._minutes.items()):
                _add(hours.setdefault(at - at % _HOUR, {}), counted)
            minutes = self._records("minute", self._minutes)
            return [PutRecords((*minutes, *self._records("hour", hours)))]

    def _count_foreign(self, read: Read) -> None:
        """Look up the queues of jobs that were claimed elsewhere, and count them."""
        with self._lock:
            ended, count = {one.id: one for one in self._foreign}, self._foreign_count
            self._foreign, self._foreign_count = [], 0
        if not ended:
            return
        try:
            found = read(GetJobs(tuple(ended)))
        except Exception:  # it must not fail the batch that is about to be committed
            log.info("%d jobs are not counted in the rates", count, exc_info=True)
            return
        jobs = found.jobs if isinstance(found, Page) else []
        by_queue: dict[tuple[str, int, State | None], list[int]] = {}
        for job in jobs:
            _, at, state = ended[job.id]
            took = by_queue.setdefault((job.queue, at - at % _MINUTE, state), [])
            took.append(bucket_of(at - (job.started_at or at)))
        with self._lock:
            for (queue, minute, state), took in by_queue.items():
                one = self._of(queue, minute)
                _count_ends(one, round(len(took) * count / len(ended)), state)
                for bucket in took:
                    one.runs[bucket] = one.runs.get(bucket, 0) + 1

    def _records(self, per: Per, counts: dict[int, ByQueue]) -> list[NewRecord]:
        return [
            NewRecord("rate", rates.key_of(per, at, self._writer), value, KEEP_MS[per])
            for at, counted in counts.items()
            if len(value := msgspec.json.encode(counted)) <= MAX_RECORD_BYTES
        ]

    def stored(self) -> None:
        """It was stored: what cannot grow any more is forgotten."""
        now = self._clock.now_ms()
        with self._lock:
            if self._changed:
                return
            for at in [at for at in self._minutes if at + _MINUTE <= now]:
                _add(self._hours.setdefault(at - at % _HOUR, {}), self._minutes.pop(at))
            for at in [at for at in self._hours if at + _HOUR <= now]:
                del self._hours[at]

    def lost(self) -> None:
        """It was not stored."""
        self._changed = True

    # Counting -----------------------------------------------------------------------------------

    def count(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """Count a batch that was committed."""
        now = self._clock.now_ms()
        with self._lock:
            # Results of a Once that were stored before are counted twice, but few calls are
            # repeated.
            for queue, count in ops.count_added(batch, answers).items():
                self._of(queue, now).enqueued += count
            for kind, some, given in ops.runs(batch, answers):
                if kind is ops.Ack:
                    if set(map(type, given)) != {ops.Ok}:
                        some = _those(some, given, ops.Ok)
                    self._acked(some, now)
                elif kind is ops.Claim:
                    self._claimed(given, now)
                elif kind is ops.Fail:
                    for op, answer in zip(some, given, strict=True):
                        if isinstance(answer, ops.Moved):
                            self._failed(op, answer.state, now)

    def _of(self, queue: str, now: int) -> Counted:
        """The counts of a queue in this minute."""
        self._changed = True
        at = now - now % _MINUTE
        counts = self._minutes.get(at)
        if counts is None:
            counts = self._minutes[at] = {}
        one = counts.get(queue)
        if one is None:
            one = Counted(waits={}, runs={})
            if len(counts) < MOST_QUEUES:
                counts[queue] = one
        return one

    def _acked(self, acked: Sequence[ops.Ack], now: int) -> None:
        known, others = self._running.end_all(acked)
        for claims, count in known:
            self._ended(claims, count, now, None)
        for op in others:
            self._ended_elsewhere(op.id, now, None)

    def _failed(self, op: ops.Fail, state: State, now: int) -> None:
        claims = self._running.end(op.id, op.token)
        if claims is None:
            self._ended_elsewhere(op.id, now, state)
        else:
            self._ended(claims, 1, now, state)

    def _claimed(self, answers: Sequence[Answer], now: int) -> None:
        """Count the jobs that were claimed in one commit."""
        jobs: list[Job] = []
        for answer in answers:
            if isinstance(answer, ops.Leased) and answer.jobs:
                self._running.add(answer.jobs)
                jobs += answer.jobs
        for queue, count in tally([job.queue for job in jobs]).items():
            self._of(queue, now).claimed += count
        some = jobs[:: 1 + len(jobs) // SAMPLED]
        # Jobs that were enqueued together have waited equally long.
        waited = tally([(job.queue, (job.started_at or now) - job.run_at) for job in some])
        for (queue, ms), count in waited.items():
            waits, bucket = self._of(queue, now).waits, bucket_of(ms)
            waits[bucket] = waits.get(bucket, 0) + count

    def _ended(self, claims: Claims, count: int, now: int, state: State | None) -> None:
        """Count jobs of one claim. state: what a failure made of the job; None if they are done."""
        one = self._of(claims.queue, now)
        _count_ends(one, count, state)
        bucket = bucket_of(now - claims.started_at)
        one.runs[bucket] = one.runs.get(bucket, 0) + count

    def _ended_elsewhere(self, id: str, now: int, state: State | None) -> None:
        """Note a job that another process has claimed."""
        self._changed = True
        self._foreign_count += 1
        if len(self._foreign) < MOST_LOOKED_UP:
            self._foreign.append(Ended(id, now, state))


def _those(some: Sequence[Any], answers: Sequence[Answer], kind: type) -> list[Any]:
    """The operations that have an answer of this kind."""
    return [op for op, answer in zip(some, answers, strict=True) if type(answer) is kind]


def _count_ends(one: Counted, count: int, state: State | None) -> None:
    if state is None:
        one.done += count
    else:
        one.failed += count
        one.dead += count if state is State.DEAD else 0


def _add(sums: ByQueue, counted: ByQueue) -> None:
    for queue, one in counted.items():
        if queue not in sums:
            sums[queue] = Counted(waits={}, runs={})
        sums[queue].add(one)
