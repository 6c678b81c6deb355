"""Workers that are alive, as they report themselves."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from tenure.model.fields import Label, Moment, Name, QueueNames
from tenure.model.ops import GrantedOp, Needs
from tenure.model.queries import GrantedQuery

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


class ListWorkers(GrantedQuery, frozen=True):
    """Live workers of one queue, or of all, sorted by name. grant: only those that serve nobody
    else."""

    partial = True
    queue: Name | None = None
