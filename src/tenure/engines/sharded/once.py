"""A Once over several shards: each shard applies its part once, under the same key.

If the process dies between two shards, the repetition finishes the rest: parts that were applied
return what they returned before. For that, it must send each operation to the same shards.
Where a job is, or which shard has one to claim, may change in between. Then the home shard of the
key stores the routes together with its own part, in one transaction, before other shards begin.

Tenants may be moved before the repetition. What a stored route sends to a shard where it is no
longer at home must not be applied there. The repetition *closes* the key on that shard: it returns
what was returned before, or makes sure that the part will never be applied there. In the second
case the operations go where they are at home now, under keys of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec

from tenure.core.fencing import SCOPE
from tenure.engines.sharded.cluster import Cluster, View
from tenure.engines.sharded.guarding import Misplaced
from tenure.engines.sharded.merging import merged, with_taken
from tenure.engines.sharded.routing import Part, Route, Router
from tenure.errors import Conflict, OutcomeUnknown, TenureError
from tenure.model import ops, wire
from tenure.model.ops import Answer, Op

_CHUNK = 400  # characters of routes in one id
_FILLER = ops.DropSlot(SCOPE, "filler", "-")  # stands for an operation of another shard
_CLOSED = ":closed"  # the end of an id that no job has
Routes = list[list[str]]  # the names of the shards of each operation
_decode = msgspec.json.Decoder(Routes).decode


class Keyed:
    """A Once, and the answers to its parts."""

    def __init__(self, cluster: Cluster, op: ops.Once) -> None:
        self._cluster = cluster
        self._names = list(cluster.placing.names)
        self.op = op
        self._generation: int = cluster.locator.hints.generation
        self.home: int = cluster.placing.of_call(op.key)
        router = Router(cluster, op.ops, self.home)
        self._today: list[Route | TenureError] = [router.route(one) for one in op.ops]
        self.routes: list[Route | TenureError] = list(self._today)
        self._did = wire.did(op)
        self._late: list[tuple[int, Part]] = []  # places and parts that were not applied elsewhere
        self._given: list[list[tuple[Op, Answer]]] = [[] for _ in op.ops]
        self._claimed: list[tuple[int, list[str]]] = []  # shards, and the ids of jobs
        self.error: TenureError | None = None

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
        """The shards that are asked; the home shard, if there is nothing to do."""
        return (
            {self.home}
            if not self.op.ops
            else {
                part.shard
                for route in self.routes
                if isinstance(route, Route)
                for part in route.parts
            }
        )

    # The home shard, which stores the routes ----------------------------------------------------

    def first(self) -> ops.Once:
        """What the home shard is asked to do. Its length does not depend on the routes."""
        mine = dict(self._on(self.home))
        parts = [mine.get(at, _FILLER) for at in range(len(self.op.ops))]
        names = [
            [] if isinstance(route, TenureError) else [self._names[p.shard] for p in route.parts]
            for route in self.routes
        ]
        return ops.Once(self.op.key, (_echo(names), *parts), self._did)  # type: ignore[arg-type]

    def take_first(self, answer: Answer) -> None:
        """Take the results of the home shard, and the routes of the first time."""
        if isinstance(answer, TenureError):
            self.error = answer
            return
        assert isinstance(answer, ops.Answers)
        echo, *answers = answer.answers
        assert isinstance(echo, ops.Changed)
        self._take_routes(_decode("".join(one.partition(":")[2] for one in echo.missing)))
        if self.error is not None:
            return
        for at, part in self._on(self.home):
            self._give(at, self.home, part, answers[at])

    def _take_routes(self, names: Routes) -> None:
        for at, route in enumerate(self.routes):
            if isinstance(route, TenureError):
                continue
            gone = next((name for name in names[at] if name not in self._names), None)
            if gone is not None:
                self.error = Conflict(
                    f"the key {self.op.key!r} was used on shard {gone!r}, which is no longer one: "
                    "whether that was done is not known"
                )
                return
            mine = {part.shard: part for part in route.parts}
            on = [self._names.index(name) for name in names[at]]
            if not on:  # it had no route the first time
                self._late += [(at, part) for part in route.parts]
                self.routes[at] = Route([], fixed=False)
            elif on != list(mine):
                parts = [mine.get(shard, Part(shard, self.op.ops[at])) for shard in on]
                self.routes[at] = Route(parts, fixed=False)

    # The other shards ---------------------------------------------------------------------------

    def rest(self, shard: int) -> ops.Once:
        mine = self._on(shard)
        return self._part_of(shard, [at for at, _ in mine], [part for _, part in mine])

    def rest_or_closing(self, shard: int) -> ops.Once:
        """The part of a shard by the stored routes. If it is no longer at home there, an operation
        that closes the key, and is as long."""
        mine = self._on(shard)
        if not any(self._has_moved(at, shard) for at, _ in mine):
            return self.rest(shard)
        closing = ops.Cancel((f"{uuid.uuid4().hex}{_CLOSED}",))
        return self._part_of(shard, [at for at, _ in mine], [closing, *[_FILLER] * (len(mine) - 1)])

    def _part_of(self, shard: int, places: Sequence[int], parts: Sequence[Op]) -> ops.Once:
        """The fingerprint names the places: if tenants are moved, a shard gets other ones."""
        text = " ".join([self._names[shard], *map(str, places)])
        did = f"{self._did}/{blake2b(text.encode(), digest_size=8).hexdigest()}"
        return ops.Once(self.op.key, tuple(parts), did)  # type: ignore[arg-type]

    def _has_moved(self, at: int, shard: int) -> bool:
        """Whether an operation that goes to a shard would go to another one now."""
        if shard not in self._cluster.placing.used:
            return True
        op, today = self.op.ops[at], self._today[at]
        if isinstance(today, TenureError) or (isinstance(op, ops.Claim) and op.tenant is None):
            return False
        return shard not in [part.shard for part in today.parts]

    def alone_on(self, shard: int) -> ops.Once:
        """The part of a shard, if the routes need not be stored. A Once of a single shard is passed
        on unchanged."""
        whole = self.shards() == {shard} and len(self.op.ops) == len(self._on(shard))
        return self.op if whole else self.rest(shard)

    def take_rest(self, shard: int, answer: Answer) -> None:
        mine = self._on(shard)
        if isinstance(answer, TenureError):
            self.error = answer
            return
        assert isinstance(answer, ops.Answers)
        if mine and _is_closed(mine[0][1], answer.answers[0]):  # now, or by another repetition
            known = {at for at, _ in self._late}  # those that were closed on another shard, too
            new = [at for at, _ in mine if at not in known]
            self._late += [(at, part) for at in new for part in self._parts_today(at)]
            return
        for (at, part), one in zip(mine, answer.answers, strict=True):
            self._give(at, shard, part, one)

    def _give(self, at: int, shard: int, part: Op, answer: Answer) -> None:
        self._given[at].append((part, answer))
        if isinstance(answer, ops.Leased):
            self._claimed.append((shard, [job.id for job in answer.jobs]))

    def _parts_today(self, at: int) -> Sequence[Part]:
        today = self._today[at]
        return today.parts if isinstance(today, Route) else ()

    # Operations that were moved before they were applied ----------------------------------------

    def late(self) -> list[tuple[int, ops.Once]]:
        """The operations whose shard was closed, each under a key of its own."""
        found: list[tuple[int, ops.Once]] = []
        for at, (shard, op) in self._late:
            key = blake2b(f"{at} {self.op.key}".encode(errors="surrogatepass"), digest_size=16)
            once = ops.Once(f"late {key.hexdigest()}", (op,), f"{self._did}/{at}")  # type: ignore[arg-type]
            found.append((shard, once))
        return found

    def take_late(self, number: int, answer: Answer) -> None:
        """Take the answer to one of `late`."""
        if isinstance(answer, TenureError):
            self.error = answer
            return
        assert isinstance(answer, ops.Answers)
        at, part = self._late[number]
        self._give(at, part.shard, part.op, answer.answers[0])

    def result(self) -> Answer:
        """The results of all operations, or the error of a shard: then repeating the call finishes
        it."""
        if self.error is not None:
            return self._unfinished(self.error)
        answers: list[Answer] = []
        for op, route, given in zip(self.op.ops, self.routes, self._given, strict=True):
            if isinstance(route, TenureError):
                answers.append(route)
                continue
            answer = merged(op, given)
            if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
                answer = with_taken(op, answer, route.taken)
            answers.append(answer)
        self._note_claims()
        return ops.Answers(answers)

    def _unfinished(self, error: TenureError) -> TenureError:
        if not any(self._given):
            return error
        return OutcomeUnknown(
            f"{error.message}; other shards have applied their part of the call: the same call "
            "with the same key finishes it"
        )

    def _note_claims(self) -> None:
        for shard, ids in self._claimed:
            self._cluster.locator.hints.note(ids, shard, self._generation)


def _is_closed(op: Op, answer: Answer) -> bool:
    """Whether this is the answer to what closes a key, and not to the operation itself."""
    own = op.ids if isinstance(op, ops.JobsOp) else ()
    missing = answer.missing if isinstance(answer, ops.Changed) else ()
    return any(one.endswith(_CLOSED) and one not in own for one in missing)


def _echo(names: Routes) -> Op:
    """An operation whose result repeats the routes: it returns ids that do not exist as missing."""
    text = msgspec.json.encode(names).decode()
    chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    return ops.Cancel(tuple(f"{uuid.uuid4().hex}:{chunk}" for chunk in chunks))


def run(cluster: Cluster, keyed: Mapping[int, Op]) -> dict[int, Answer]:
    """Run several Onces together, in order: first the parts of the home shards and those whose
    routes need not be stored, then the others."""
    view = cluster.view
    all_: dict[int, Keyed] = {}
    answers: dict[int, Answer] = {}
    for at, op in keyed.items():
        assert isinstance(op, ops.Once)
        one = Keyed(cluster, op)
        lost = next((route for route in one.routes if isinstance(route, Misplaced)), None)
        if lost is None:
            all_[at] = one
        else:
            answers[at] = lost  # it is tried again as a whole
    planned = {at: one for at, one in all_.items() if not one.is_fixed}
    firsts: list[tuple[int, int, ops.Once]] = []
    for at, one in all_.items():
        if at in planned:
            firsts.append((at, one.home, one.first()))
        else:
            firsts += [(at, shard, one.alone_on(shard)) for shard in sorted(one.shards())]
    for at, shard, answer in _sent(cluster, view, firsts):
        if at in planned:
            planned[at].take_first(answer)
        else:
            all_[at].take_rest(shard, answer)
    rests = [
        (at, shard, one.rest_or_closing(shard))
        for at, one in planned.items()
        for shard in sorted(one.shards() - {one.home})
        if one.error is None
    ]
    for at, shard, answer in _sent(cluster, view, rests):
        all_[at].take_rest(shard, answer)
    for one in planned.values():
        for number, (shard, op) in enumerate(one.late() if one.error is None else ()):
            ((_, _, answer),) = _sent(cluster, view, [(0, shard, op)])
            one.take_late(number, answer)
    return answers | {at: one.result() for at, one in all_.items()}


def _sent(
    cluster: Cluster, view: View, wanted: Sequence[tuple[int, int, ops.Once]]
) -> list[tuple[int, int, Answer]]:
    """Send each to its shard; those of one shard go together."""
    parts: dict[int, list[tuple[int, Op]]] = {}
    for at, shard, op in wanted:
        parts.setdefault(shard, []).append((at, op))
    if not parts:
        return []
    found = cluster.send({on: [op for _, op in mine] for on, mine in parts.items()}, view)
    return [
        (at, shard, answer)
        for shard, mine in parts.items()
        for (at, _), answer in zip(mine, found[shard], strict=True)
    ]
