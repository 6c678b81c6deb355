"""A Once over several shards: each shard applies its part once, under the same key.

If the process dies between two shards, the repetition finishes the rest: parts that were applied
return what they returned before. For that, it must send each operation to the same shards. Where a
job is, or which shard has one to claim, may change in between. So every shard stores the routes of
the whole call together with its own part, in one transaction, and one of them, the *home*, does so
before the others begin. A repetition asks the shards for the key, and takes the routes that it
finds.

The home is one of the shards that the call touches. Of a claim these are all, and the key decides,
so that two tries at the same moment meet there. A shard that is away is not chosen: it would keep
calls of other tenants waiting. If it was the only one that knew the key, the repetition begins
anew. This does no harm: a job is on one shard, a lease can be used once, and jobs that a forgotten
claim holds are claimed again when their leases expire.

A call that claims jobs waits for a shard that does not respond only for a moment. What the shard
should have done otherwise is sent again by the caller, under another key. Jobs that it leases late
are kept for the next claim. But a repetition of the call, perhaps of another process, may find them
as well. So either of them first says on another shard, under a key of its own, that it takes them.

Tenants may be moved before the repetition. What a stored route sends to a shard where it is no
longer at home must not be applied there. The repetition stores a part without it there, unless the
shard has applied it before. In that case the operation goes where it is at home now, under a key of
its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import msgspec

from tenure.engines.sharded.cluster import Cluster, View, has_any
from tenure.engines.sharded.guarding import Misplaced
from tenure.engines.sharded.late import Unanswered, unanswered
from tenure.engines.sharded.merging import merged, unfinished, with_taken
from tenure.engines.sharded.routing import Part, Route, Router
from tenure.engines.sharded.shard import SCOPE
from tenure.errors import Busy, Conflict, OutcomeUnknown, StoreError, TenureError
from tenure.model import ops, wire
from tenure.model.job import Job
from tenure.model.ops import Answer, Op

_REPEATED, _HANDED_ON = "repeated", "handed on"
_EXCHANGED = {ops.Claim, ops.Ack, ops.Fail, ops.Release, ops.Progress}
_FILLER = ops.DropSlot(SCOPE, "filler", "-")  # stands for an operation of another shard
Routes = list[list[str]]  # the names of the shards of each operation
Send = Callable[[Sequence[tuple[int, int, ops.Once]]], list[tuple[int, int, Answer]]]
_decode = msgspec.json.Decoder(Routes).decode


class Stored(NamedTuple):
    """What a shard returns for its part: what it stored the first time, and its answers."""

    kept: str
    routes: Routes
    answers: Sequence[Answer]


class Keyed:
    """A Once, and the answers to its parts."""

    def __init__(self, cluster: Cluster, op: ops.Once, *, brief: bool) -> None:
        """brief: do not wait for a silent shard while another one can serve its claims."""
        self._cluster = cluster
        self._brief = brief
        self._names = list(cluster.placing.names)
        self.op = op
        self._generation: int = cluster.locator.hints.generation
        self._order = cluster.placing.order_of_call(op.key)
        router = Router(cluster, op.ops, self._order, brief=brief)
        self._today: list[Route | TenureError] = [router.route(one) for one in op.ops]
        self.routes: list[Route | TenureError] = list(self._today)
        self._did = wire.did(op)
        self._known: dict[str, Routes] = {}  # the shards that have stored routes
        self._keeps: dict[int, str] = {}  # what they were asked to store
        self._is_new = False  # no earlier try has come further than this one
        self._repeated: set[int] = set()  # shards whose parts an earlier try has applied
        self.unanswered: set[int] = set()  # shards that are silent since they were asked
        self._kept: dict[int, list[Job]] = {}  # for the claims of the call
        self._late: list[tuple[int, Part]] = []  # places and parts that were not applied elsewhere
        self._given: list[list[tuple[Op, Answer]]] = [[] for _ in op.ops]
        self._claimed: list[tuple[int, list[str]]] = []  # shards, and the ids of jobs
        self.error: TenureError | None = None  # of the whole call

    @property
    def is_fixed(self) -> bool:
        """Whether a repetition takes the same routes by itself. An operation that cannot be routed
        now may have a route then: its shard may be away, for example."""
        return all(isinstance(one, Route) and one.fixed for one in self.routes)

    def _on(self, shard: int) -> list[tuple[int, Op]]:
        """The places and parts of the operations that a shard is asked to do."""
        return [
            (at, part.op)
            for at, route in enumerate(self.routes)
            if isinstance(route, Route)
            for part in route.parts
            if part.shard == shard
        ]

    def shards(self) -> set[int]:
        """The shards that are asked; the first of the key, if there is nothing to do."""
        if not self.op.ops:
            return {self._order[0]}
        routes = [route for route in self.routes if isinstance(route, Route)]
        return {part.shard for route in routes for part in route.parts}

    # Calls whose routes are stored --------------------------------------------------------------

    def look(self) -> None:
        """Take the routes of an earlier try, if a shard that is there knows them. If this process
        claimed all jobs that the call is about, every try has taken the same routes."""
        if all(isinstance(one, Route) and (one.fixed or one.known) for one in self.routes):
            return
        parts = (_FILLER,) * len(self.op.ops)
        wanted = ops.Once(self.op.key, parts, self._did)
        enough = has_any if self._brief else None
        for number, answer in self._cluster.answers_of(wanted, self._order, enough).items():
            self._known[self._names[number]] = _stored(answer).routes
        if self._known:
            self._take_routes()
        else:
            self._take_kept()

    def _take_kept(self) -> None:
        """Take jobs that a shard has leased late to an earlier call, instead of claiming some."""
        for at, op in enumerate(self.op.ops):
            if isinstance(op, ops.Claim) and (jobs := self._cluster.late.take(op, op.limit)):
                self._kept[at] = jobs
                self.routes[at] = Route([], fixed=False)

    def homes(self) -> list[int]:
        """The shards that may store the routes, the first choice first."""
        touched = self.shards()
        roams = any(map(_roams, self.op.ops))
        among = [shard for shard in self._order if roams or shard in touched]
        if self._known:
            among = [shard for shard in self._order if self._names[shard] in self._known]
        first = self._cluster.responsive(among)
        there = [shard for shard in among if self._cluster.shards[shard].away is None]
        silent = [shard for shard in there if shard not in first]
        return (first + silent or among) if touched else []

    # path: a keyed call over shards
    def part(self, shard: int) -> ops.Once:
        """What a shard is asked to do, and the routes. An operation that is no longer at home there
        is left out. The length does not depend on the routes."""
        mine = {at: op for at, op in self._on(shard) if not self._has_moved(at, shard)}
        parts = [mine.get(at, _FILLER) for at in range(len(self.op.ops))]
        name = self._names[shard]
        routes = [
            [one for one in self._names_of(at) if one != name or at in mine]
            for at in range(len(self.op.ops))
        ]
        kept = self._keeps[shard] = _kept(routes)
        return ops.Once(self.op.key, tuple(parts), self._did, kept)

    def _names_of(self, at: int) -> list[str]:
        route = self.routes[at]
        if isinstance(route, TenureError):
            return []
        return [self._names[part.shard] for part in route.parts]

    def take_first(self, shard: int, answer: Answer) -> bool:
        """Take the results of the home, and the routes of the first time. Returns False if nothing
        was applied, and another shard may be the home."""
        if isinstance(answer, TenureError):
            self.error = answer
            if isinstance(answer, Unanswered):
                self.unanswered.add(shard)
            certain = isinstance(answer, StoreError | Busy)
            return not certain or isinstance(answer, OutcomeUnknown | Misplaced)
        self.error = None
        stored = _stored(answer)
        self._is_new = self._is_first(shard, stored)
        self._known[self._names[shard]] = stored.routes
        self._take_routes()
        if self.error is None:
            self._take(shard, stored)
        return True

    def take_part(self, shard: int, answer: Answer) -> None:
        """Take the results of another shard."""
        if not isinstance(answer, TenureError):
            stored = _stored(answer)
            self._is_first(shard, stored)
            self._take(shard, stored)
            return
        if not isinstance(answer, StoreError | Busy):
            self.error = answer
        for at, part in self._on(shard):
            # A claim of any job has found none there: the next one asks the other shards.
            none = _roams(part) and not isinstance(answer, OutcomeUnknown | Misplaced)
            late = OutcomeUnknown(answer.message) if isinstance(answer, Unanswered) else answer
            self._give(at, shard, part, ops.Leased([]) if none else late)

    def _is_first(self, shard: int, stored: Stored) -> bool:
        """Whether a shard has applied its part at this try."""
        if stored.kept == self._keeps[shard]:
            return True
        self._repeated.add(shard)
        return False

    def _take(self, shard: int, stored: Stored) -> None:
        for at, part in self._on(shard):
            if self._names[shard] in stored.routes[at]:
                self._give(at, shard, part, stored.answers[at])
            elif at not in {late for late, _ in self._late}:  # it may be left out elsewhere, too
                today = self._today[at]
                self._late += [(at, one) for one in today.parts] if isinstance(today, Route) else []

    def _take_routes(self) -> None:
        """Take the routes that shards have stored; of several, those of a shard that has applied
        the operation."""
        self._late = []
        for at, route in enumerate(self._today):
            self.routes[at] = route
            stored = [(name in routes[at], routes[at]) for name, routes in self._known.items()]
            names = max(stored, key=lambda one: (one[0], bool(one[1])))[1]
            if names or isinstance(route, Route):
                self._take_route(at, names)

    def _take_route(self, at: int, names: list[str]) -> None:
        gone = next((name for name in names if name not in self._names), None)
        if gone is not None:
            self.error = Conflict(
                f"the key {self.op.key!r} was used on shard {gone!r}, which is no longer one: "
                "whether that was done is not known"
            )
            return
        route = self.routes[at]
        today = route.parts if isinstance(route, Route) else ()
        mine = {part.shard: part for part in today}
        on = [self._names.index(name) for name in names]
        if not on:  # it had no route the first time; a shard that has stored the key has no more
            full = [part for part in today if self._names[part.shard] in self._known]
            self._late += [(at, part) for part in full]
            self.routes[at] = Route([part for part in today if part not in full], fixed=False)
        elif on != list(mine):
            parts = [mine.get(shard, Part(shard, self.op.ops[at])) for shard in on]
            self.routes[at] = Route(parts, fixed=False)

    def _has_moved(self, at: int, shard: int) -> bool:
        """Whether an operation that goes to a shard would go to another one now."""
        if shard not in self._cluster.placing.used:
            return True
        op, today = self.op.ops[at], self._today[at]
        if isinstance(today, TenureError) or _roams(op):
            return False
        return shard not in [part.shard for part in today.parts]

    # Calls whose routes are always the same -----------------------------------------------------

    def alone_on(self, shard: int) -> ops.Once:
        """The part of a shard, if the routes need not be stored. A Once of a single shard is passed
        on unchanged. The fingerprint names the places: if tenants are moved, a shard gets other
        ones."""
        mine = self._on(shard)
        if self.shards() == {shard} and len(self.op.ops) == len(mine):
            return self.op
        text = " ".join([self._names[shard], *[str(at) for at, _ in mine]])
        did = f"{self._did}/{blake2b(text.encode(), digest_size=8).hexdigest()}"
        return ops.Once(self.op.key, tuple(part for _, part in mine), did)

    def take_alone(self, shard: int, answer: Answer) -> None:
        mine = self._on(shard)
        if isinstance(answer, TenureError):
            if not mine or not isinstance(answer, StoreError | Busy):
                self.error = answer  # such as a key that was used for something else
            answers: Sequence[Answer] = [answer] * len(mine)
        else:
            assert isinstance(answer, ops.Answers)
            answers = answer.answers
        for (at, part), one in zip(mine, answers, strict=True):
            self._give(at, shard, part, one)

    def _give(self, at: int, shard: int, part: Op, answer: Answer) -> None:
        again = shard in self._repeated and isinstance(answer, ops.Leased) and answer.jobs
        if again and not _may_take(self._cluster, self.op.key, shard, _REPEATED):
            answer = ops.Leased([])
        self._given[at].append((part, answer))
        if isinstance(answer, ops.Leased):
            self._claimed.append((shard, [job.id for job in answer.jobs]))

    # Operations that were moved before they were applied ----------------------------------------

    def late(self) -> list[tuple[int, ops.Once]]:
        """The operations that were left out elsewhere, each under a key of its own."""
        found: list[tuple[int, ops.Once]] = []
        for at, (shard, op) in self._late:
            key = blake2b(f"{at} {self.op.key}".encode(errors="surrogatepass"), digest_size=16)
            once = ops.Once(f"late {key.hexdigest()}", (op,), f"{self._did}/{at}")
            found.append((shard, once))
        return found

    def take_late(self, number: int, answer: Answer) -> None:
        """Take the answer to one of `late`."""
        at, part = self._late[number]
        if isinstance(answer, ops.Answers):
            answer = answer.answers[0]
        elif not isinstance(answer, StoreError | Busy):
            assert isinstance(answer, TenureError)
            self.error = answer
        self._give(at, part.shard, part.op, answer)

    def result(self) -> Answer:
        """The result of each operation. If a shard has failed, repeating the call finishes it."""
        errors = [one for given in self._given for _, one in given if isinstance(one, TenureError)]
        serious = [one for one in errors if isinstance(one, StoreError | Busy)]  # a shard's
        again = next((one for one in serious if isinstance(one, Misplaced)), None)
        done = sum(map(len, self._given)) - len(serious)
        if self.error or again or (serious and not done):
            return self.error or again or serious[0]
        answers: list[Answer] = []
        calls = zip(self.op.ops, self.routes, self._given, strict=True)
        for at, (op, route, given) in enumerate(calls):
            if isinstance(route, TenureError) or at in self._kept:
                kept = ops.Leased(self._kept.get(at, []))
                answers.append(route if isinstance(route, TenureError) else kept)
                continue
            answer = self._cluster.settled(op, merged(op, given))
            if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
                answer = with_taken(op, answer, route.taken)
            if isinstance(answer, StoreError | Busy):
                answer = unfinished(answer if self._is_new else OutcomeUnknown(answer.message))
            answers.append(answer)
        self._note_claims()
        return ops.Answers(answers)

    def _note_claims(self) -> None:
        for shard, ids in self._claimed:
            self._cluster.locator.hints.note(ids, shard, self._generation)


def _roams(op: Op) -> bool:
    """Whether any shard can do it."""
    return isinstance(op, ops.Claim) and op.tenant is None


def _stored(answer: Answer) -> Stored:
    assert isinstance(answer, ops.Answers)
    return Stored(answer.kept, _decode(answer.kept.partition(" ")[2]), answer.answers)


def _kept(names: Routes) -> str:
    """The routes as they are stored, after the name of this try."""
    return f"{uuid.uuid4().hex} {msgspec.json.encode(names).decode()}"


def run_keyed(cluster: Cluster, keyed: Mapping[int, Op]) -> dict[int, Answer]:
    """Run several Onces together, in order: first the parts of the homes and those whose routes
    need not be stored, then the others."""
    view, brief = cluster.view, all(map(_claims_only, keyed.values()))
    all_: dict[int, Keyed] = {}
    answers: dict[int, Answer] = {}
    for at, op in keyed.items():
        assert isinstance(op, ops.Once)
        one = Keyed(cluster, op, brief=brief)
        lost = next((route for route in one.routes if isinstance(route, Misplaced)), None)
        if lost is None:
            all_[at] = one
        else:
            answers[at] = lost  # it is tried again as a whole
    planned = {at: one for at, one in all_.items() if not one.is_fixed}
    for one in planned.values():
        one.look()
    renews = all(type(op) is ops.Extend for op in ops.flat(list(keyed.values())))
    send = partial(_sent, cluster, view, renews, brief)
    homes = _run_first(send, all_, planned)
    rests = [
        (at, shard, one.part(shard))
        for at, one in planned.items()
        for shard in sorted(one.shards() - {homes.get(at, -1)} - one.unanswered)
        if one.error is None
    ]
    for one in planned.values():
        for shard in one.unanswered & one.shards() if one.error is None else ():
            one.take_part(shard, unanswered(cluster.shards[shard]))
    for at, shard, answer in send(rests):
        planned[at].take_part(shard, answer)
    for one in planned.values():
        for number, (shard, op) in enumerate(one.late() if one.error is None else ()):
            ((_, _, answer),) = send([(0, shard, op)])
            one.take_late(number, answer)
    return answers | {at: one.result() for at, one in all_.items()}


def _run_first(
    send: Send, all_: Mapping[int, Keyed], planned: Mapping[int, Keyed]
) -> dict[int, int]:
    """Run what is not planned, and the parts of the homes. Returns the home of each call that has
    one. Another shard takes its place if it turns out to be away."""
    alone = {at: one for at, one in all_.items() if at not in planned}
    firsts = [
        (at, shard, one.alone_on(shard))
        for at, one in alone.items()
        for shard in sorted(one.shards())
    ]
    left = {at: one.homes() for at, one in planned.items() if one.error is None}
    homes: dict[int, int] = {}
    while firsts or any(left.values()):
        chosen = {at: among[0] for at, among in left.items() if among}
        firsts += [(at, home, planned[at].part(home)) for at, home in chosen.items()]
        firsts.sort(key=itemgetter(0))  # calls keep their order
        left = {at: among[1:] for at, among in left.items()}
        for at, shard, answer in send(firsts):
            if at in alone:
                alone[at].take_alone(shard, answer)
            elif planned[at].take_first(shard, answer):
                homes[at] = shard
                left[at] = []
        firsts = []
    return homes


def _sent(
    cluster: Cluster,
    view: View,
    renews: bool,
    brief: bool,
    wanted: Sequence[tuple[int, int, ops.Once]],
) -> list[tuple[int, int, Answer]]:
    """Send each to its shard; those of one shard go together."""
    parts: dict[int, list[tuple[int, Op]]] = {}
    for at, shard, op in wanted:
        parts.setdefault(shard, []).append((at, op))
    if not parts:
        return []
    batches: dict[int, list[Op]] = {on: [op for _, op in mine] for on, mine in parts.items()}
    late = partial(_late, cluster, batches, cluster.now()) if brief else None
    found = cluster.send(batches, view, renews=renews, late=late)
    return [
        (at, shard, answer)
        for shard, mine in parts.items()
        for (at, _), answer in zip(mine, found[shard], strict=True)
    ]


# Late answers ------------------------------------------------------------------------------------


def _claims_only(op: Op) -> bool:
    """Whether a call claims jobs, and does nothing else that its caller would not send again."""
    assert isinstance(op, ops.Once)
    kinds = {type(one) for one in op.ops}
    return ops.Claim in kinds and kinds <= _EXCHANGED


def _late(
    cluster: Cluster,
    batches: dict[int, list[Op]],
    asked_at: tuple[float, int],
    number: int,
    call: Future[list[Answer]],
) -> list[Answer]:
    """The results of a shard that has not answered in time. Jobs that it leases later are kept."""

    def keep(done: Future[list[Answer]]) -> None:
        if done.cancelled():
            return
        for op, answer in zip(batches[number], done.result(), strict=True):
            assert isinstance(op, ops.Once)
            _keep(cluster, number, op, answer, asked_at)

    if not call.cancelled():
        call.add_done_callback(keep)
        cluster.wake()  # the next claim finds what others have
    return [unanswered(cluster.shards[number])] * len(batches[number])


def _keep(
    cluster: Cluster, number: int, op: ops.Once, answer: Answer, asked_at: tuple[float, int]
) -> None:
    """Keep the jobs of a late part, unless it was applied at an earlier try, or is the whole call:
    then the caller repeats it."""
    if not op.kept or not isinstance(answer, ops.Answers) or answer.kept != op.kept:
        return
    both = zip(op.ops, answer.answers, strict=True)
    found = [(claim, leased) for claim, leased in both if isinstance(leased, ops.Leased)]
    if not any(leased.jobs for _, leased in found):
        return
    if _may_take(cluster, op.key, number, _HANDED_ON):
        for claim, leased in found:
            assert isinstance(claim, ops.Claim)
            cluster.keep(number, claim, leased, asked_at)


def _may_take(cluster: Cluster, key: str, shard: int, what: str) -> bool:
    """Whether the jobs that a shard has leased to a call may be taken: all repetitions of it may
    return them, or one process may hand them on. The first shard of the key, but this one, says
    which."""
    others = [one for one in cluster.placing.order_of_call(key) if one != shard]
    there = [one for one in others if cluster.shards[one].away is None]
    if not there:
        return what is _REPEATED
    name = cluster.placing.names[shard]
    text = blake2b(f"{name} {key}".encode(errors="surrogatepass"), digest_size=16)
    once = ops.Once(f"late {text.hexdigest()}", (), "late", what)
    try:
        (answer,) = cluster.shards[there[0]].apply([once])
    except TenureError:
        return what is _REPEATED
    return isinstance(answer, ops.Answers) and answer.kept == what
