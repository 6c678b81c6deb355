"""Counts what this process commits, by queue and minute, for `rates`.

Counts are kept in memory and stored together with a commit, at most every FLUSH_SECONDS, and when
the handle is closed; a process that is killed loses the last seconds. Each process writes records
of its own, so that nobody waits for a counter.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.clock import Clock
from tenure.model import ops, rates
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Op
from tenure.model.rates import KEEP_MS, PER_MS, Counted, Per, bucket_of
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords

FLUSH_SECONDS = 5.0
MOST_RUNNING = 100_000  # claims whose start is remembered
MOST_QUEUES = 200  # that one process counts in a minute
SAMPLED = 16  # jobs of one claim whose waiting time is noted

_MINUTE, _HOUR = PER_MS["minute"], PER_MS["hour"]
ByQueue = dict[str, Counted]
Key = int | tuple[str, int]  # a token, or an id and a token


class Claims:
    """Jobs that were claimed together: their queue, when, and how many have not ended."""

    __slots__ = ("left", "queue", "started_at")

    def __init__(self, queue: str, started_at: int, left: int) -> None:
        self.queue = queue
        self.started_at = started_at
        self.left = left


class RateCounter:
    """What one process has counted, as far as it is not stored or may still grow."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything, as after a fork: the parent stores its own counts."""
        self._lock = threading.Lock()
        self._writer = f"{os.getpid():x}-{secrets.token_hex(6)}"
        self._flush_at = self._clock.monotonic() + FLUSH_SECONDS
        self._minutes: dict[int, ByQueue] = {}
        self._hours: dict[int, ByQueue] = {}  # of the minutes that are over
        self._changed = False
        # By token, or by id and token where one token is of jobs of several queues.
        self._running: OrderedDict[Key, Claims] = OrderedDict()

    # Storing ------------------------------------------------------------------------------------

    def due(self) -> list[Op]:
        """What to store together with the next commit. Call `stored` or `lost` afterwards."""
        if not self._changed or self._clock.monotonic() < self._flush_at:
            return []
        return self.flush()

    def flush(self) -> list[Op]:
        """What to store now, if anything has changed."""
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
        acked: list[Any] = []
        keyed: list[tuple[ops.Once, Answer]] = []
        with self._lock:
            for op, answer in zip(batch, answers, strict=True):
                kind = type(op)
                if kind is ops.Ack:
                    if type(answer) is ops.Ok:
                        acked.append(op)
                elif kind is ops.Enqueue:
                    if isinstance(answer, ops.Enqueued):
                        self._enqueued(op, answer, now)
                elif kind is ops.Claim:
                    if isinstance(answer, ops.Leased) and answer.jobs:
                        self._claimed(answer.jobs, now)
                elif isinstance(op, ops.Fail):
                    if isinstance(answer, ops.Moved):
                        self._ended((op.id, op.token), 1, now, answer.state)
                elif isinstance(op, ops.Once):
                    keyed.append((op, answer))
            if acked:
                self._acked(acked, now)
        # Results that were stored before are counted twice, but few calls are repeated.
        for call, answer in keyed:
            if isinstance(answer, ops.Answers):
                self.count(call.ops, answer.answers)

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

    def _enqueued(self, op: Any, answer: ops.Enqueued, now: int) -> None:
        if len(op.jobs) == 1:
            if answer.created[0]:
                self._of(op.jobs[0].queue, now).enqueued += 1
            return
        new = op.jobs if all(answer.created) else itertools.compress(op.jobs, answer.created)
        for queue, count in Counter([spec.queue for spec in new]).items():
            self._of(queue, now).enqueued += count

    def _claimed(self, jobs: list[Job], now: int) -> None:
        first = jobs[0]
        token, queue = first.token, first.queue
        others = [job for job in jobs if job.token != token or job.queue != queue]
        alike = not others and token not in self._running
        if alike:
            self._note_claims(token, first, len(jobs))
            self._of(queue, now).claimed += len(jobs)
        else:
            for job in jobs:
                self._note_claims((job.id, job.token), job, 1)
                self._of(job.queue, now).claimed += 1
        for job in jobs[:: 1 + len(jobs) // SAMPLED]:
            bucket = bucket_of((job.started_at or now) - job.run_at)
            waits = self._of(job.queue, now).waits
            waits[bucket] = waits.get(bucket, 0) + 1

    def _note_claims(self, key: Key, job: Job, count: int) -> None:
        self._running[key] = Claims(job.queue, job.started_at or job.updated_at, count)
        if len(self._running) > MOST_RUNNING:
            self._running.popitem(last=False)

    def _acked(self, acked: list[Any], now: int) -> None:
        """Count jobs that are done. Those that were claimed together are counted at once."""
        if len(acked) == 1:
            self._ended((acked[0].id, acked[0].token), 1, now, None)
            return
        for token, count in Counter([op.token for op in acked]).items():
            if token in self._running:
                self._ended(("", token), count, now, None)
            else:
                for op in acked:
                    if op.token == token:
                        self._ended((op.id, token), 1, now, None)

    def _ended(self, job: tuple[str, int], count: int, now: int, state: State | None) -> None:
        """Count jobs of one claim. state: what a failure made of the job; None if they are done."""
        key: Key = job[1] if job[1] in self._running else job
        claims = self._running.get(key)
        if claims is None:
            return  # claimed by another process
        claims.left -= count
        if claims.left <= 0:
            del self._running[key]
        one = self._of(claims.queue, now)
        if state is None:
            one.done += count
        else:
            one.failed += count
            one.dead += count if state is State.DEAD else 0
        bucket = bucket_of(now - claims.started_at)
        one.runs[bucket] = one.runs.get(bucket, 0) + count


def _add(sums: ByQueue, counted: ByQueue) -> None:
    for queue, one in counted.items():
        if queue not in sums:
            sums[queue] = Counted(waits={}, runs={})
        sums[queue].add(one)
