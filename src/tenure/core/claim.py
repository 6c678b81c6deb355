"""Who is served next: the policy of claims, over what an engine fetches.

A claim sweeps its queues first (see upkeep.py). It then takes from one queue after the other,
within the room that the limits of the queue leave. The tenants of a queue take turns: the one with
the first turn is served, and its next turn is later by its stride. A tenant's jobs are taken in
order over all its lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from tenure.model.ops import Limit

UNLIMITED = 2**31
C = TypeVar("C")
L = TypeVar("L")

# Adjacent claims with the same of these are picked together, and the jobs are dealt out in order.
_LOOKS_FOR = attrgetter("queues", "tenant", "not_groups")
BY_TURN = attrgetter("turn", "name")


class Tenant(Protocol):
    """A tenant that may have something to claim."""

    turn: int

    @property
    def name(self) -> str: ...
    @property
    def stride(self) -> int: ...


T = TypeVar("T", bound=Tenant)


class Turns(Protocol[T]):
    """The tenants of a queue, and what is taken from them."""

    served: int  # the turn that was served last

    def tenants(self, room: int) -> Iterator[T]:
        """All that may have something to claim, in the order of turns and names. They should be
        fetched in pages: most claims need no more than `room` of them."""

    def take(self, tenant: T, most: int) -> int:
        """Take the first jobs of a tenant. Returns how many it had, up to `most`."""


class Source(Turns[T], Protocol[T]):
    """A queue that a claim takes from."""

    def room(self) -> int:
        """How many more jobs the limits of the queue let start. See `room_of`."""

    def tenant(self, name: str, room: int) -> T | None:
        """This one, if it may have something to claim. It is asked for `room` jobs."""

    def spend(self, count: int) -> None:
        """Take this many jobs off the rate. Called once, after all were taken."""


def alike(calls: Iterable[C], op_of: Callable[[C], Any] = lambda call: call) -> Iterator[list[C]]:
    """The calls that are picked together, by their claims."""
    return (list(run) for _, run in groupby(calls, key=lambda call: _LOOKS_FOR(op_of(call))))


def room_of(limit: Limit, leased: int, tokens: int) -> int:
    """How many more jobs the limits of a queue let start, with this many leased, and these tokens
    in the bucket of its rate."""
    if limit.paused:
        return 0
    room = UNLIMITED if limit.concurrency is None else limit.concurrency - leased
    return room if limit.per_ms is None else min(room, tokens // limit.per_ms)


def pick(sources: Iterable[Source[T]], only: str | None, limit: int) -> None:
    """Take up to `limit` jobs. A claim of a single tenant does not count as its turn."""
    for source in sources:
        room = min(limit, source.room())
        if room <= 0:
            continue
        if only is None:
            count = serve(source, room)
        else:
            tenant = source.tenant(only, room)
            count = 0 if tenant is None else source.take(tenant, room)
        if count:
            source.spend(count)
        limit -= count
        if limit <= 0:
            return


# path: a claim in turns
def serve(source: Turns[T], room: int) -> int:
    """Serve the tenants in turns. Returns how many jobs they had."""
    take, served = source.take, source.served

    def take_turn(tenant: T, most: int) -> int:
        nonlocal served
        count = take(tenant, most)
        if count:
            turn, stride = tenant.turn, tenant.stride
            served = (turn if turn > served else served + 1) + (count - 1) * stride
            tenant.turn = served + stride
        return count

    count = InOrder(source.tenants(room), BY_TURN, take_turn).take(room)
    source.served = served
    return count


class InOrder(Generic[L]):
    """Takes jobs from lines, one at a time, always from the line that comes first: tenants by their
    turns, or lanes by their heads.

    lines: in order; looked at only as far as needed. place: where a line comes, or None if it has
    nothing left. take: takes the first jobs of a line, at most so many, and returns how many it
    had. room: how many may be taken in all.
    """

    __slots__ = ("_fresh", "_last", "_lines", "_place", "_room", "_take", "_used")

    def __init__(
        self,
        lines: Iterator[L],
        place: Callable[[L], Any],
        take: Callable[[L, int], int],
        room: int = UNLIMITED,
    ) -> None:
        self._lines = lines
        self._place = place
        self._take = take
        self._room = room
        self._fresh: L | None = None  # the next of the lines, if it was fetched
        self._used: list[tuple[Any, L]] = []  # a heap of those taken from, with their places
        self._last: L | None = None  # the one taken from last, whose place is not known yet

    def take(self, most: int) -> int:
        """Take at most so many jobs. Returns how many there were."""
        wanted = left = min(most, self._room)
        lines, place, take, used = self._lines, self._place, self._take, self._used
        fresh, last = self._fresh, self._last
        while left > 0:
            if last is not None and (at := place(last)) is not None:
                heappush(used, (at, last))
            if fresh is None:
                fresh = next(lines, None)
            if used and (fresh is None or used[0][0] < place(fresh)):
                line = heappop(used)[1]
            elif fresh is not None:
                line, fresh = fresh, None
            else:
                last = None
                break
            share = 1
            if left > 1 and not used:
                if fresh is None:
                    fresh = next(lines, None)
                if fresh is None:  # no other line can come before its next jobs
                    share = left
            count = take(line, share)
            left -= count
            last = line if count else None
        self._fresh, self._last = fresh, last
        self._room -= wanted - left
        return wanted - left
