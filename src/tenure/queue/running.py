"""The claims of this process that have not ended: the queue and the start of each.

Jobs that were claimed together have one token, and are remembered as one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from tenure.model.job import Job
from tenure.model.ops import Ack

MOST_RUNNING = 100_000  # claims that are remembered

Key = int | tuple[str, int]  # a token, or an id and a token


_token_of, _claim_of = attrgetter("token"), attrgetter("token", "queue")


class Claims:
    """Jobs that were claimed together: their queue, when, and how many have not ended."""

    __slots__ = ("left", "queue", "started_at")

    def __init__(self, job: Job, left: int) -> None:
        self.queue: str = job.queue
        self.started_at: int = job.started_at or job.updated_at
        self.left: int = left


class Running:
    """Claims by token, or by id and token where the jobs of one token are not alike. Shards may use
    the same token for different jobs."""

    def __init__(self) -> None:
        self._claims: OrderedDict[Key, Claims] = OrderedDict()
        self._apart: Counter[int] = Counter()  # claims by id and token, by token

    def add(self, jobs: Sequence[Job]) -> None:
        """Remember jobs that were claimed by one operation."""
        token = jobs[0].token
        if token not in self._claims and len(set(map(_claim_of, jobs))) == 1:
            self._claims[token] = Claims(jobs[0], len(jobs))
        else:
            for job in jobs:
                self._claims[job.id, job.token] = Claims(job, 1)
                self._apart[job.token] += 1
        while len(self._claims) > MOST_RUNNING:
            self._forget(next(iter(self._claims)))

    def end(self, id: str, token: int, count: int = 1) -> Claims | None:
        """Forget jobs of one token that have ended. Returns their claim; None if it is not known,
        such as one of another process."""
        key: Key = (id, token) if token in self._apart and (id, token) in self._claims else token
        claims = self._claims.get(key)
        if claims is not None:
            claims.left -= count
            if claims.left <= 0:
                self._forget(key)
        return claims

    def end_all(self, acked: Sequence[Ack]) -> tuple[list[tuple[Claims, int]], list[Ack]]:
        """Forget jobs that are done. Returns their claims with the number of jobs of each, and the
        acks whose claims are not known."""
        known: list[tuple[Claims, int]] = []
        unknown: list[Ack] = []
        others: set[int] = set()  # tokens whose acks are looked at one by one
        for token, some in groupby(map(_token_of, acked)):
            count = len(list(some))
            claims = None if token in self._apart else self.end("", token, count)
            if claims is None:
                others.add(token)
            else:
                known.append((claims, count))
        for op in [op for op in acked if op.token in others] if others else ():
            claims = self.end(op.id, op.token) if op.token in self._apart else None
            if claims is None:
                unknown.append(op)
            else:
                known.append((claims, 1))
        return known, unknown

    def _forget(self, key: Key) -> None:
        del self._claims[key]
        if isinstance(key, tuple):
            self._apart[key[1]] -= 1
            if not self._apart[key[1]]:
                del self._apart[key[1]]
