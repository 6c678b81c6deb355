"""Rates: what happened in each queue, by minute and by hour.

Each process counts what it commits, in records of its own; a reader adds them up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

import msgspec

from tenure.model.fields import Moment, Name
from tenure.model.queries import Query
from tenure.model.record_queries import Read, every

Per = Literal["minute", "hour"]
PER_MS: dict[Per, int] = {"minute": 60_000, "hour": 3_600_000}
KEEP_MS: dict[Per, int] = {"minute": 25 * 3_600_000, "hour": 90 * 86_400_000}

Histogram = dict[int, int]  # the number of a bucket: how many


class Counted(msgspec.Struct, array_like=True):
    """What one process has counted for a queue in a minute or an hour."""

    enqueued: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    waits: Histogram = {}
    runs: Histogram = {}

    def add(self, other: Counted) -> None:
        """Add the counts of another process."""
        self.enqueued += other.enqueued
        self.claimed += other.claimed
        self.done += other.done
        self.failed += other.failed
        self.dead += other.dead
        self.waits = dict(Counter(self.waits) + Counter(other.waits))
        self.runs = dict(Counter(self.runs) + Counter(other.runs))


class RatePoint(msgspec.Struct, frozen=True):
    """What happened in a queue in the minute or hour that began at `at`. Times are in milliseconds:
    waiting from ready to claimed, and running from claimed to done or failed. They are None if no
    job was claimed or ended."""

    at: int
    enqueued: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    wait_p50: int | None = None
    wait_p99: int | None = None
    run_p50: int | None = None
    run_p99: int | None = None


class QueueRates(msgspec.Struct, frozen=True):
    """The points of one queue, oldest first, without those in which nothing happened."""

    points: list[RatePoint]


class ListRates(Query, frozen=True):
    """What happened in one queue, or in all queues, by minute or by hour."""

    partial = True
    by_queue = True
    since: Moment
    until: Moment
    queue: Name | None = None
    per: Per = "minute"


class Rates(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What happened in each queue. per_ms: the length of a point. since: where the points begin."""

    per_ms: int
    since: int
    now: int
    queues: dict[str, QueueRates]


def bucket_of(ms: int) -> int:
    """The bucket of a time: two for each power of two."""
    if ms < 2:
        return max(0, ms)
    bits = ms.bit_length()
    return 2 * (bits - 1) + (ms >> (bits - 2) & 1)


def time_of(bucket: int) -> int:
    """The middle of a bucket."""
    if bucket < 2:
        return bucket
    first = (2 + bucket % 2) << (bucket // 2 - 1)
    return first + ((1 << (bucket // 2 - 1)) - 1) // 2


def quantile(histogram: Histogram, part: float) -> int | None:
    """The time that this fraction of all times does not exceed, approximately."""
    left = part * sum(histogram.values())
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return time_of(bucket)
    return None


def point_of(at: int, one: Counted) -> RatePoint:
    return RatePoint(
        at, one.enqueued, one.claimed, one.done, one.failed, one.dead,
        quantile(one.waits, 0.5), quantile(one.waits, 0.99),
        quantile(one.runs, 0.5), quantile(one.runs, 0.99),
    )  # fmt: skip


def key_of(per: Per, at: int, writer: str = "") -> str:
    """The key of a writer's record for the minute or hour that begins then. Keys sort by time."""
    return f"{per[0]}{at:015d}.{writer}"


def at_of(key: str) -> int:
    return int(key[1:16])


class Sums:
    """Adds up the records of all writers."""

    def __init__(self) -> None:
        self._points: defaultdict[str, dict[int, Counted]] = defaultdict(dict)

    def add(self, at: int, counted: dict[str, Counted]) -> None:
        for queue, one in counted.items():
            points = self._points[queue]
            if at in points:
                points[at].add(one)
            else:
                points[at] = one

    def queues(self) -> dict[str, QueueRates]:
        return {
            queue: QueueRates([point_of(at, points[at]) for at in sorted(points)])
            for queue, points in sorted(self._points.items())
        }


# As records ---------------------------------------------------------------------------------------

_decode = msgspec.json.Decoder(dict[str, Counted]).decode


def list_rates(read: Read, query: ListRates) -> Rates:
    """Add up what each process has counted."""
    per_ms = PER_MS[query.per]
    since = query.since - query.since % per_ms
    sums = Sums()
    first, last = key_of(query.per, since), key_of(query.per, query.until, "\U0010ffff")
    for record in every(read, "rate", first, last):
        counted = _decode(record.value)
        if query.queue is not None:
            counted = {name: one for name, one in counted.items() if name == query.queue}
        sums.add(at_of(record.key), counted)
    return Rates(per_ms, since, query.until, sums.queues())
