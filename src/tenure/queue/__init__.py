"""Queue: a handle on a store of jobs, for threads and for asyncio."""

from tenure.queue.calls import Calls, EnqueuedIds, default_worker
from tenure.queue.queue import Queue, connect

__all__ = ["Calls", "EnqueuedIds", "Queue", "connect", "default_worker"]
