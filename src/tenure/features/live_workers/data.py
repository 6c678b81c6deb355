"""Workers that are alive, as they report themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from tenure.model.fields import Label, Moment, Name, QueueNames
from tenure.model.ops import Grant, GrantedOp, Needs
from tenure.model.queries import GrantedQuery
from tenure.model.record_queries import Read, every

RUNNING_SHOWN = 50  # ids of running jobs that a worker reports
LONGEST_TTL_MS = 600_000

WorkerSlots = Annotated[int, Meta(ge=0, le=10**9)]
RunningIds = Annotated[tuple[Name, ...], Meta(max_length=RUNNING_SHOWN)]
BeatSpan = Annotated[int, Meta(ge=0, le=LONGEST_TTL_MS)]


class LiveWorker(msgspec.Struct, frozen=True):
    """A worker that reported recently. busy: how many jobs it runs; `running` has
    the first of their ids. seen_at: when it last reported, by the store's clock."""

    name: Name
    queues: QueueNames
    host: Label = ""
    pid: WorkerSlots = 0
    version: Label = ""
    concurrency: WorkerSlots = 1
    running: RunningIds = ()
    busy: WorkerSlots = 0
    started_at: Moment = 0
    seen_at: Moment = 0


class Beat(GrantedOp, frozen=True):
    """Report that a worker is alive for the next `ttl_ms`; 0 reports that it has stopped."""

    needs: ClassVar[Needs] = "work"
    for_all = "at_once"
    partial = True
    worker: LiveWorker
    ttl_ms: BeatSpan

    @property
    def new_queues(self) -> Iterable[str]:
        return self.worker.queues  # not created, but it is noted when each was worked last


class ListWorkers(GrantedQuery, frozen=True):
    """Live workers of one queue, or of all, sorted by name. grant: only those that serve nobody
    else."""

    partial = True
    queue: Name | None = None


# As records ---------------------------------------------------------------------------------------
# A worker has a record that expires soon after its last report. For each of its queues there is
# another one, which says when the queue last had a worker. Only the worker itself writes its
# records, so that workers never wait for each other.

SEEN_MS = 86_400_000  # how long a queue remembers its last worker
NOTE_EVERY_MS = 30_000  # the precision of that

_LIVE, _SEEN = "live/", "seen/"
_END = "\U0010ffff"
_DIGEST = 16  # characters


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a worker's record. noted_at: when it last noted that it was seen."""

    worker: LiveWorker
    noted_at: int
    grant: Grant | None = None


class _Queues(msgspec.Struct):
    queues: tuple[str, ...]


class _StoredQueues(msgspec.Struct):
    """The part of a record that says which queues a worker listens to."""

    worker: _Queues


decode = msgspec.json.Decoder(Stored).decode
_decode_queues = msgspec.json.Decoder(_StoredQueues).decode
_decode_moment = msgspec.json.Decoder(int).decode


def live_key(op: Beat) -> str:
    """The key of a worker's record. Processes and tokens do not share records, even if the names
    of their workers are the same."""
    return f"{_LIVE}{op.worker.name}/{_digest(op)}"


def seen_key(op: Beat, queue: str) -> str:
    """The key under which a worker notes that a queue had a worker."""
    return f"{_seen_in(queue)}{_digest(op)}"


def _seen_in(queue: str) -> str:
    return f"{_SEEN}{queue}/"


def _digest(op: Beat) -> str:
    own = (op.worker.name, op.worker.host, op.worker.pid, op.grant)
    return hashlib.sha256(msgspec.json.encode(own)).hexdigest()[:_DIGEST]


def list_workers(read: Read, query: ListWorkers) -> list[LiveWorker]:
    """Live workers, sorted by name, of one queue or of all."""
    found = (decode(record.value) for record in every(read, "worker", _LIVE, _LIVE + _END))
    return [
        stored.worker
        for stored in found
        if (query.queue is None or query.queue in stored.worker.queues)
        and _is_visible(stored, query.grant)
    ]


def _is_visible(stored: Stored, grant: Grant | None) -> bool:
    """Whether a worker works only for queues and tenants that the grant allows."""
    if grant is None:
        return True
    if grant.queues is not None and not set(stored.worker.queues) <= set(grant.queues):
        return False
    if grant.tenants is None:
        return True
    tenants = None if stored.grant is None else stored.grant.tenants
    return tenants is not None and set(tenants) <= set(grant.tenants)


def has_worker(read: Read, queue: str) -> bool:
    """Whether a live worker listens to a queue."""
    for record in every(read, "worker", _LIVE, _LIVE + _END):
        if queue in _decode_queues(record.value).worker.queues:
            return True
    return False


def last_seen(read: Read, queue: str) -> int | None:
    """When a queue last had a worker, to NOTE_EVERY_MS, if that was within SEEN_MS."""
    prefix = _seen_in(queue)
    size = len(prefix) + _DIGEST  # longer keys belong to queues whose names begin with this one's
    found = every(read, "worker", prefix, prefix + _END)
    return max([_decode_moment(one.value) for one in found if len(one.key) == size], default=None)
