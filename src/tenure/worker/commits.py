"""Committing what a worker has to tell: all together, or apart by the parts of the store.

A store with parts commits the outcomes of each part by themselves, one batch of a part at a time,
and a claim does not wait for them. So a part that is slow delays only the outcomes of its own jobs.
Until they are stored, their leases are renewed.

A service may have such a store, and does not say which part an outcome concerns. Outcomes that go
with a claim wait only for a moment there. Others are sent apart, so that no claim waits for them;
while they are held up, the next ones go with claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tenure.errors import Closed, OutcomeUnknown, Unauthorized
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue import Queue, store_of
from tenure.worker.admission import Admission
from tenure.worker.kept_outcomes import after_all, as_store_error, is_of_one
from tenure.worker.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage
from tenure.worker.post import Post

HELD_UP_SECONDS = 0.25  # after which a service is taken to wait for one part of its store


class Commits:
    """Commits batches, and tries again while the store is unavailable."""

    def __init__(self, queue: Queue, admission: Admission, outage: Outage) -> None:
        self._store = store_of(queue)
        self._admission = admission
        self._outage = outage

    async def commit(self, batch: list[Op], beside: bool = False) -> tuple[list[Answer], float]:
        """Returns the answers, and when the last try was sent."""
        pause, unsure = FIRST_PAUSE, False
        while True:
            sent_at = self._store.clock.monotonic()
            try:
                do = self._store.ado_beside if beside else self._store.ado
                answers: list[Answer] = await do(batch)
            except Closed:
                raise
            except Exception as error:
                if self._may_work_later(error):
                    unsure = unsure or isinstance(error, OutcomeUnknown)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                if len(batch) > 1:  # one operation is at fault; commit the others
                    each = [(await self.commit([op], beside))[0][0] for op in batch]
                    return each, sent_at
                return [as_store_error(error)], sent_at
            else:
                self._outage.is_over()
                return [*map(after_all, batch, answers)] if unsure else answers, sent_at

    def _may_work_later(self, error: Exception) -> bool:
        """Whether to commit the same batch again. Raises NotAllowed if the worker must end."""
        if isinstance(error, Unauthorized):
            self._admission.refuse(error)
            return True
        if not is_of_one(error):
            self._outage.goes_on("the store cannot commit", error)
            return True
        return False


Note = Callable[[Post, Sequence[Op], Sequence[Answer]], None]


class Apart:
    """Commits the outcomes of each part of the store by themselves."""

    def __init__(self, queue: Queue, commits: Commits, note: Note) -> None:
        """note: called with what became of each batch."""
        store = store_of(queue)
        self._clock = store.clock
        self._part_of = store.part_of
        self._is_service = store.is_service
        self._commits = commits
        self._note = note
        # What to commit after the batch in progress, by post and part.
        self._next: dict[tuple[int, int | None], list[Op]] = {}
        self._sent_at: dict[tuple[int, int | None], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    def is_held_up(self, post: Post) -> bool:
        """Whether a service has not answered for a while."""
        sent_at = self._sent_at.get((id(post), None)) if self._is_service else None
        return sent_at is not None and self._clock.monotonic() - sent_at > HELD_UP_SECONDS

    def take(self, post: Post, batch: list[Op], *, claims: bool) -> None:
        """Commit the operations, if the store has parts, and remove them from the list. claims:
        whether a claim goes with them. Raises the error of an earlier one that ends the worker."""
        if self._error is not None:
            raise self._error
        if not batch or (self._part_of is None and (claims or not self._is_service)):
            return
        by_part: dict[int | None, list[Op]] = {}
        for op in batch:
            part = None if self._part_of is None else self._part_of([op])
            by_part.setdefault(part, []).append(op)
        for part, some in by_part.items():
            self._send(post, part, some)
        batch.clear()

    def _send(self, post: Post, part: int | None, some: list[Op]) -> None:
        key = (id(post), part)
        if key in self._next:
            self._next[key] += some
            return
        following: list[Op] = []
        self._next[key] = following
        post.apart = [*post.apart, some, following]  # not in place: other threads read it
        task = asyncio.create_task(self._work(post, key, some), name="tenure outcomes")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, post: Post, key: tuple[int, int | None], batch: list[Op]) -> None:
        try:
            while batch:
                self._sent_at[key] = self._clock.monotonic()
                answers, _ = await self._commits.commit(batch)
                self._note(post, batch, answers)
                done, batch = batch, self._next[key]
                following: list[Op] = []
                self._next[key] = following
                post.apart = [*(one for one in post.apart if one is not done), following]
                post.wake()
        except Exception as error:  # the worker ends with it
            self._error = error
        finally:
            left = self._next.pop(key)
            self._sent_at.pop(key, None)
            post.to_tell += [op for op in [*batch, *left] if not isinstance(op, ops.Progress)]
            post.apart = [one for one in post.apart if one is not batch and one is not left]
            post.wake()

    def cancel(self) -> None:
        """Stop waiting for what is not stored."""
        for task in self._tasks:
            task.cancel()
