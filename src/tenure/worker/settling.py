"""Settling the jobs of worker processes that have died, by the marks that they left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tenure.errors import Busy, LeaseLost, NotFound, StoreError, StoreRejected, TenureError
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.observe.logs import counted
from tenure.queue import Queue, store_of
from tenure.worker.marks import RUNNING, Dead, Mark, dead_of, name_of_store
from tenure.worker.outage import FIRST_PAUSE, LONGEST_PAUSE
from tenure.worker.suspects import WORKER_DIED

log = logging.getLogger("tenure.worker")

WAIT_SECONDS = 1.0  # for which a worker waits for it before its first claim
AT_ONCE = 1_000


async def begin_settling(queue: Queue) -> Callable[[], object]:
    """Start to settle, and wait for a moment: a worker in burst mode also runs what is released.
    Returns a function that ends it."""
    task = asyncio.create_task(settle(queue))
    await asyncio.wait([task], timeout=WAIT_SECONDS)
    return task.cancel


async def settle(queue: Queue) -> None:
    """Release the jobs that dead processes had claimed and not started, and fail those that they
    were running. A job that has ended, or that somebody has claimed since, stays as it is: its
    token is another one. While the store is away, this tries again."""
    if queue.settings.url.startswith("memory:"):
        return  # it died with its process
    try:
        with dead_of(name_of_store(queue.settings)) as found:
            for dead in found:
                _tell(dead, await _store(queue, [_op(dead, mark) for mark in dead.marks]))
                dead.path.unlink(missing_ok=True)
    except OSError as error:
        log.debug("there are no marks of dead processes: %s", error)
    except TenureError as error:
        log.warning("jobs of a dead process are left until their leases expire: %s", error)
    except Exception:
        log.exception("jobs of a dead process are left until their leases expire")


def _op(dead: Dead, mark: Mark) -> Op:
    if mark.state != RUNNING:
        return ops.Release(mark.id, mark.token)
    message = f"the worker process {dead.died} while it ran this job"
    return ops.Fail(mark.id, mark.token, message, WORKER_DIED)


async def _store(queue: Queue, left: list[Op]) -> list[Op]:
    """Returns the operations that were applied."""
    pause, applied = FIRST_PAUSE, []
    while left:
        batch, left = left[:AT_ONCE], left[AT_ONCE:]
        try:
            answers: list[Answer] = await store_of(queue).ado(batch)
        except (Busy, StoreError) as error:
            answers = [error] * len(batch)
        again = []
        for op, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, TenureError):
                applied.append(op)
            elif isinstance(answer, Busy | StoreError) and not isinstance(answer, StoreRejected):
                again.append(op)
            elif not isinstance(answer, LeaseLost | NotFound):
                log.warning("a job of a dead process waits until its lease expires: %s", answer)
        if again:
            left += again
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
    return applied


def _tell(dead: Dead, applied: list[Op]) -> None:
    failed = [op.id for op in applied if isinstance(op, ops.Fail)]
    if applied:
        log.warning(
            "worker process %s %s: %s failed (%s), %s given back that it had not started",
            dead.pid,
            dead.died,
            counted(len(failed), "running job"),
            ", ".join([*failed[:3], *["..."] * (len(failed) > 3)]) or "none",
            counted(len(applied) - len(failed), "job"),
        )
