"""What a token may do, and how much of the service it may use: the one chain of checks.

Every call becomes operations and queries, so this is the one place that decides. In this order:

scopes          the token has the scope of each; one that adds jobs needs `produce`, too
bound_token     what a token that is bound to queues or tenants may name and see
features        what they check: who makes a change, how many workers report themselves
new_names       how many queues a token may create
payload_sizes   a claim leases no more jobs than fit into a response
traffic         the bytes of its responses that are not read yet
large           its large changes leave time for those of others
readers         queries take turns in the threads that all tokens share
redaction       named fields are hidden in what a query returns

An operation says itself what the checks must know: its scope (`needs`), the jobs that it `adds`,
its `new_queues`, and by its base class whether it gets a grant or a note. So a new one passes all
of them, and none of them lists kinds that are like others.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, get_args

from msgspec.structs import replace

from tenure.errors import Forbidden, TenureError
from tenure.features import AnyOp, AnyQuery, parts
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.model.queries import Query, Together, bytes_of
from tenure.queue import Layer, Queue, Store, Wanted, Within, store_of
from tenure.server.asked_for import asked_for
from tenure.server.auth import Scope, Token
from tenure.server.bound_token import Bound
from tenure.server.large import Spaced
from tenure.server.new_names import NewNames
from tenure.server.payload_sizes import PayloadSizes
from tenure.server.readers import Readers
from tenure.server.redaction import SMALL, Redaction, json_bytes
from tenure.server.traffic import BODY_BYTES, Traffic

T = TypeVar("T")

# Everything that a service accepts, and the scope that it needs.
NEEDS: dict[type[Op] | type[Query], Scope] = {
    kind: Scope(kind.needs) for kind in (*get_args(AnyOp), *get_args(AnyQuery))
}
CLAIM_BYTES = 4 * 1_048_576  # of payloads in the response to one claim
_CLAIMS = frozenset({ops.Claim, ops.Once})  # may claim jobs
MANY = 200  # jobs or operations in a request, from which on they are validated in a thread


class Check(Protocol):
    """What a feature checks: the class `Check` among its routes, made for each token."""

    kinds: tuple[type[Op], ...]  # of the operations that it looks at, or their bases

    async def checked(self, batch: Sequence[Op]) -> Sequence[Op]:
        """The operations as they are to be carried out; may raise an error."""


class Means:
    """What the tokens of a service share: threads, bytes, and names."""

    def __init__(self, queue: Queue, redaction: Redaction, *, shared: bool) -> None:
        """shared: whether there is more than one token."""
        store = store_of(queue)
        self.readers: Readers = Readers(store, shared=shared)
        self.names: NewNames = NewNames(queue)
        self.sizes: PayloadSizes = PayloadSizes()
        self.shared = shared
        self.redaction = redaction
        # By the hash of a token.
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.bodies: defaultdict[str, Traffic] = defaultdict(partial(Traffic, BODY_BYTES))
        self._aside = Readers(store, shared=shared, slots=1)

    async def aside(self, who: str, size: int, work: Callable[[], T]) -> T:
        """Do work for a request that has this many jobs or operations. If they are many, it is done
        in a thread."""
        return work() if size <= MANY else await self.in_thread(who, work)

    async def in_thread(self, who: str, work: Callable[[], T], *, weight: float = 1) -> T:
        """Do work for a token in a thread, so that the event loop can serve others. The tokens take
        turns, and each has a share of the CPU time; raises Busy. weight: of that time."""
        pace, loop = self.traffic[who].work, asyncio.get_running_loop()

        def measured() -> T:
            began = time.thread_time()
            try:
                return work()
            finally:
                loop.call_soon_threadsafe(pace.spend, weight * (time.thread_time() - began))

        return await self._aside.run(who, "this request", measured, pace)

    def close(self) -> None:
        self.readers.close()
        self._aside.close()


class FairStore(Layer):
    """A store whose queries run in the threads that a token shares with others."""

    def __init__(self, inner: Store, means: Means, who: str) -> None:
        super().__init__(inner)
        self._means = means
        self._who = who

    def do(self, wanted: Wanted) -> Any:
        raise Forbidden("a request does not wait in a thread")

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        if isinstance(wanted, Query):
            return self._means.readers.read(self._who, wanted)
        return self._inner.ado(wanted)


class Checked(FairStore):
    """A store for the requests of a token."""

    def __init__(
        self,
        inner: Store,
        token: Token,
        means: Means,
        *,
        acts_for_dialect: bool = False,
        redacted: bool = True,
    ) -> None:
        """acts_for_dialect: what is done is part of another call, and not an operator's change.
        redacted: whether the fields are hidden that the service hides."""
        large = means.traffic[token.hash].large
        super().__init__(Spaced(inner, large) if means.shared else inner, means, token.hash)
        self.token = token
        self._names = None if token.allows(Scope.ADMIN) else means.names
        self._redaction = means.redaction if redacted else Redaction(())
        unchecked = FairStore(inner, means, token.hash)
        self._checks: list[Check] = [
            part.Check(unchecked, token, acts_for_dialect=acts_for_dialect)
            for part in parts("routes")
            if hasattr(part, "Check")
        ]
        self._bound = Bound(token, unchecked.ado) if token.is_bound else None
        self._may = frozenset(kind for kind, scope in NEEDS.items() if token.allows(scope))
        adds = token.allows(Scope.PRODUCE)
        # Operations that it may do whatever they hold.
        self._always = frozenset(kind for kind in self._may if adds or not _may_add(kind))
        # Those that need no further look: all that most requests of such a token hold.
        self._plain: frozenset[type] = frozenset()
        if self._bound is None and self._names is None:
            seen: list[type] = [Query]
            for check in self._checks:
                seen += check.kinds
            self._plain = frozenset(
                kind for kind in self._always - _CLAIMS if not issubclass(kind, tuple(seen))
            )

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        if type(wanted) is list and self._plain.issuperset(map(type, wanted)):
            if not self._means.sizes.may_grow(wanted):
                return self._inner.ado(wanted)
            return self._apply(wanted)
        return self._read(wanted) if isinstance(wanted, Query) else self._checked(wanted)

    def away(self) -> tuple[str, ...]:
        return self._inner.away() if self._bound is None else ()

    async def _checked(self, wanted: Sequence[Op] | Within) -> list[Answer]:
        if isinstance(wanted, Within):
            raise Forbidden("a request has no connection to share")
        batch = wanted
        if not self._always.issuperset(map(type, batch)):
            for op in batch:
                self.must(op)
        if self._bound is not None:
            batch = await self._bound.limited(batch)
        kinds = set(map(type, ops.flat(batch)))
        for check in self._checks:
            if any(issubclass(kind, check.kinds) for kind in kinds):
                batch = await check.checked(batch)
        if self._names is not None:
            queues = [queue for op in ops.flat(batch) for queue in op.new_queues]
            await self._names.admit(self._who, queues)
        if len(batch) == 1 and type(batch[0]) is ops.Claim:
            return await self._claimed(batch[0])
        if not _CLAIMS.isdisjoint(map(type, batch)):
            return await self._apply_claims(self._capped(batch))
        return await self._apply(batch)

    def must(self, op: Op | Query) -> None:
        """Raise Forbidden unless the token has the scope that an operation needs."""
        if isinstance(op, ops.Once | Together):
            for one in op.ops if isinstance(op, ops.Once) else op.queries:
                self.must(one)
            return
        needed = NEEDS[type(op)]
        if type(op) in self._may:
            if type(op) in self._always or not (isinstance(op, Op) and op.adds):
                return
            needed = Scope.PRODUCE
        who = "without a token, you" if self.token.is_anonymous else "this token"
        raise Forbidden(
            f"{who} may not {asked_for(type(op))}: that needs the scope {needed.value!r}"
        )

    # Queries ------------------------------------------------------------------------------------

    async def _read(self, query: Query) -> Any:
        self.must(query)
        size = self._means.sizes.of_result(query)
        traffic = self._means.traffic[self._who]
        await traffic.reserve(size)
        try:
            found = await (super().ado(query) if self._bound is None else self._bound.read(query))
        finally:
            traffic.release(size)
        redaction = self._redaction
        if not redaction:
            return found
        if json_bytes(found) > SMALL:
            return await self._means.in_thread(self._who, partial(redaction.of, found))
        return redaction.of(found)

    # Operations, with as many jobs as fit into memory ---------------------------------------------

    async def _apply(self, batch: Sequence[Op]) -> list[Answer]:
        answers: list[Answer] = await self._inner.ado(batch)
        self._means.sizes.note_added(batch, answers)
        return answers

    async def _apply_claims(self, batch: Sequence[Op]) -> list[Answer]:
        sizes, traffic = self._means.sizes, self._means.traffic[self._who]
        claims = [op for op in ops.flat(batch) if isinstance(op, ops.Claim)]
        size = sum(op.limit * sizes.expected(op.queues) for op in claims)
        await traffic.reserve(size)
        try:
            answers = await self._apply(batch)
        finally:
            traffic.release(size)
        for _, answer in ops.answered(batch, answers):
            if isinstance(answer, ops.Leased):
                sizes.note_jobs(answer.jobs)
        return answers

    async def _claimed(self, op: ops.Claim) -> list[Answer]:
        if not self._means.sizes.are_small(op):
            return [await self._claim_in_steps(op)]
        answers: list[Answer] = await self._inner.ado([op])
        if isinstance(answers[0], ops.Leased):
            self._means.sizes.note_jobs(answers[0].jobs)
        return answers

    async def _claim_in_steps(self, op: ops.Claim) -> Answer:
        """Claim in steps, until the jobs are enough or large enough."""
        jobs: list[Job] = []
        size = 0
        while True:
            wanted = op.limit - len(jobs)
            wanted = min(wanted, self._means.sizes.fitting(op.queues, CLAIM_BYTES - size))
            try:
                (answer,) = await self._apply_claims([replace(op, limit=wanted)])
            except asyncio.CancelledError:
                self._release(jobs)
                raise
            except TenureError:
                if not jobs:
                    raise
                return ops.Leased(jobs)
            if not isinstance(answer, ops.Leased):
                return ops.Leased(jobs) if jobs else answer
            jobs += answer.jobs
            size += sum(map(bytes_of, answer.jobs))
            if len(answer.jobs) < wanted or len(jobs) == op.limit or size >= CLAIM_BYTES:
                return ops.Leased(jobs)

    def _release(self, jobs: Sequence[Job]) -> None:
        """Release jobs that nobody will get. If that fails, their leases expire."""
        if jobs:
            release = self._inner.ado([ops.Release(job.id, job.token) for job in jobs])
            task = asyncio.ensure_future(release)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _capped(self, batch: Sequence[Op]) -> list[Op]:
        """The operations, with claims for no more jobs than fit into one response."""
        left = CLAIM_BYTES

        def capped(op: Op) -> Op:
            nonlocal left
            if isinstance(op, ops.Once):
                return replace(op, ops=tuple(map(capped, op.ops)))
            if not isinstance(op, ops.Claim):
                return op
            limit = min(op.limit, self._means.sizes.fitting(op.queues, left))
            left = max(0, left - limit * self._means.sizes.expected(op.queues))
            return op if limit == op.limit else replace(op, limit=limit)

        return list(map(capped, batch))


def _may_add(kind: type) -> bool:
    """Whether operations of a kind may add jobs besides what their scope says."""
    return issubclass(kind, Op) and kind.adds is not Op.adds and kind.needs != "produce"
