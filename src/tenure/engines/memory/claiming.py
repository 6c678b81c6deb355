"""Claims, and what becomes due before one."""

from __future__ import annotations

import math
import secrets
from collections import Counter, defaultdict
from fractions import Fraction

from msgspec.structs import replace

from tenure.engines.memory.enqueuing import Enqueuing
from tenure.engines.memory.memory_store import Record, handles
from tenure.model import ops, states
from tenure.model.job import Job, State
from tenure.model.ops import Answer


class Claiming(Enqueuing):
    """Gives out jobs."""

    token_steps: int = (
        16  # tokens grow by random steps up to this, so that claims cannot be counted
    )

    @handles(ops.Claim)
    def _claim(self, op: ops.Claim, now: int) -> Answer:
        leased: list[Job] = []
        picked = 0
        token = self._token + 1 + secrets.randbelow(self.token_steps)
        for queue in sorted(set(op.queues)):
            if queue in self._queues:
                self._sweep(queue, self._sweep_limit, now)
        for queue in dict.fromkeys(op.queues):
            for record in self._pick(queue, op, op.limit - picked, now):
                picked += 1
                self._move(record, states.Claimed(), now)
                if record.job.state is State.LEASED:
                    record.job = replace(
                        record.job,
                        token=token,
                        worker=op.worker,
                        started_at=now,
                        lease_until=now + op.lease_ms,
                        progress=None,
                        note=None,
                    )
                    leased.append(record.job)
        if picked:
            self._token = token
        return ops.Leased(leased)

    def _pick(self, queue: str, op: ops.Claim, room: int, now: int) -> list[Record]:
        """The jobs to lease: tenants take turns, each tenant's jobs in order, within all limits."""
        if queue not in self._queues or room <= 0:
            return []
        book, limit = self._queues[queue], self._limit(queue)
        if limit.paused:
            return []
        live = [r for r in self._live.values() if r.job.queue == queue]
        leased = [r for r in live if r.job.state is State.LEASED]
        if limit.concurrency is not None:
            room = min(room, limit.concurrency - len(leased))
        room = min(room, self._rate_room(queue, now))
        held: Counter[tuple[str, str | None]] = Counter((r.job.tenant, None) for r in leased)
        held.update((r.job.tenant, r.job.group) for r in leased)
        lines: dict[str, list[Record]] = defaultdict(list)
        not_groups = frozenset(op.not_groups)
        for record in sorted((r for r in live if r.ready), key=lambda r: r.order):
            wanted = op.tenant is None or record.job.tenant == op.tenant
            if wanted and record.job.group not in not_groups:
                lines[record.job.tenant].append(record)
        picked: list[Record] = []
        while len(picked) < room:
            turns = sorted(
                (self._turns[queue, tenant], tenant)
                for tenant in lines
                if self._next(queue, tenant, lines, held) is not None
            )
            if not turns:
                break
            _, tenant = turns[0]
            first = self._next(queue, tenant, lines, held)
            assert first is not None
            lines[tenant].remove(first)
            held.update([(tenant, None), (tenant, first.job.group)])
            picked.append(first)
            if op.tenant is None:
                place = max(self._turns[queue, tenant], book.served + 1)
                book.served = place
                self._turns[queue, tenant] = place + ops.stride(self._weight(queue, tenant))
        self._use_rate(queue, len(picked), now)
        return picked

    def _next(
        self,
        queue: str,
        tenant: str,
        lines: dict[str, list[Record]],
        held: Counter[tuple[str, str | None]],
    ) -> Record | None:
        """The tenant's first job that no limit holds back."""
        bound = self._tenant_bound(queue, tenant)
        if bound is not None and held[tenant, None] >= bound:
            return None
        for record in lines[tenant]:
            bound = self._group_bound(queue, tenant, record.job.group)
            if bound is None or held[tenant, record.job.group] < bound:
                return record
        return None

    def _tokens(self, queue: str, now: int) -> int:
        """What the bucket of the rate limit holds. No time counts twice, so nothing is added while
        the clock is behind the last claim."""
        book, limit = self._queues[queue], self._limit(queue)
        gained = max(0, now - book.tokens_at) * (limit.rate or 0)
        return min(book.tokens + gained, (limit.rate or 0) * (limit.per_ms or 0))

    def _use_rate(self, queue: str, jobs: int, now: int) -> None:
        book, per_ms = self._queues[queue], self._limit(queue).per_ms
        if per_ms is not None and jobs:
            book.tokens = self._tokens(queue, now) - jobs * per_ms
            book.tokens_at = max(book.tokens_at, now)

    def _rate_room(self, queue: str, now: int) -> int:
        """How many claims the rate limit allows now."""
        per_ms = self._limit(queue).per_ms
        return 2**31 if per_ms is None else self._tokens(queue, now) // per_ms

    def _rate_allows_at(self, queue: str, now: int) -> int:
        """When the rate limit allows the next claim."""
        book, limit = self._queues[queue], self._limit(queue)
        missing = (limit.per_ms or 0) - self._tokens(queue, now)
        return max(book.tokens_at, now) + math.ceil(Fraction(max(0, missing), limit.rate or 1))

    def _sweep(self, queue: str, limit: int, now: int) -> tuple[int, int, int]:
        """Handle expired leases, due delayed jobs, and expired jobs."""
        live = [r for r in self._live.values() if r.job.queue == queue]
        overdue = [r for r in live if r.job.lease_until is not None and r.job.lease_until <= now]
        overdue.sort(key=lambda r: (r.job.lease_until, r.seq))
        for record in overdue[:limit]:
            self._move(record, states.LeaseRanOut(), now)
        due = [
            r for r in live if r.job.state is State.PENDING and not r.ready and r.job.run_at <= now
        ]
        due.sort(key=lambda r: (r.job.run_at, r.seq))
        for record in due[:limit]:
            record.ready = True
        expired = [
            r
            for r in live
            if r.job.state in (State.WAITING, State.PENDING)
            and r.job.expires_at is not None
            and r.job.expires_at <= now
        ]
        expired.sort(key=lambda r: (r.job.expires_at, r.seq))
        self._telling = True  # all expired jobs end before any child is notified
        for record in expired[:limit]:
            self._move(record, states.Expired(), now)
        self._settle(now)
        return len(due[:limit]), len(overdue[:limit]), len(expired[:limit])
