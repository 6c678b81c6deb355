"""A worker's reports that it is alive, and what it runs."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Protocol

from tenure.errors import Forbidden, InvalidInput, TenureError
from tenure.features.live_workers.data import RUNNING_SHOWN, Beat, LiveWorker
from tenure.model import ops
from tenure.model.fields import MAX_NAME, MAX_QUEUES_PER_CALL
from tenure.model.ops import good
from tenure.queue import Queue, store_of
from tenure.worker.run import Run

log = logging.getLogger("tenure.worker")

BEAT_SECONDS = 5.0
TTL_MS = 20_000  # some reports may be late


class Listening(Protocol):
    """Queues that a worker listens to."""

    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def concurrency(self) -> int: ...


class Beats:
    """Reports a worker, once it has begun to work, in a separate thread: a report may have to wait.
    If reports are not allowed, this is logged once, and the worker continues."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        posts: Sequence[Listening],
        runs: Callable[[], Collection[Run]],
    ) -> None:
        self._queue = queue
        self._name = name
        self._posts = posts
        self._runs = runs
        self._started_at = queue.clock.now_ms()
        self._allowed = True
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Report the worker from now on. Must not be called concurrently."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="tenure-beats", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Report that the worker has stopped."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._tell(0)

    def _beat(self) -> None:
        while self._allowed:
            self._tell(TTL_MS)
            if self._stopped.wait(BEAT_SECONDS):
                return

    def _tell(self, ttl_ms: int) -> None:
        if not self._allowed:
            return
        try:
            (answer,) = store_of(self._queue).do([Beat(self._worker(), ttl_ms)])
            good(answer, ops.Ok)
        except (Forbidden, InvalidInput) as error:  # or the service does not know of workers
            self._allowed = False
            log.warning("worker %s is not listed among the live workers: %s", self._name, error)
        except TenureError as error:
            log.debug("worker %s could not report itself: %s", self._name, error)
        except Exception:
            log.exception("worker %s could not report itself", self._name)

    def _worker(self) -> LiveWorker:
        running = [run.job.id for run in self._runs() if not run.ended]
        queues = dict.fromkeys(queue for post in self._posts for queue in post.queues)
        return LiveWorker(
            name=self._name,
            queues=tuple(queues)[:MAX_QUEUES_PER_CALL],
            host=socket.gethostname()[:MAX_NAME],
            pid=os.getpid(),
            version=_version(),
            concurrency=sum(post.concurrency for post in self._posts),
            running=tuple(running[:RUNNING_SHOWN]),
            busy=len(running),
            started_at=self._started_at,
        )


@cache
def _version() -> str:
    from importlib.metadata import version  # takes long to import

    return version("tenure")
