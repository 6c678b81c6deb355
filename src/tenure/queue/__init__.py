"""Queue: a handle on a store of jobs, for threads and for asyncio."""

from tenure.queue.calls import Calls, EnqueuedIds, default_worker
from tenure.queue.open_store import Layer, Store, Wanted, Within, store_of
from tenure.queue.queue import Queue, connect

__all__ = [
    "Calls",
    "EnqueuedIds",
    "Layer",
    "Queue",
    "Store",
    "Wanted",
    "Within",
    "connect",
    "default_worker",
    "store_of",
]
