"""A Once over several shards: each shard applies its part once, under the same key.

If the process dies between two shards, the repetition finishes the rest: parts that were applied
return what they returned before. For that, it must send each operation to the same shards.
Where a job is, or which shard has one to claim, may change in between. Then the home shard of the
key stores the routes together with its own part, in one transaction, before other shards begin.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec

from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.merging import merged, with_taken
from tenure.engines.sharded.routing import Part, Route, Router
from tenure.engines.sharded.shard import SCOPE
from tenure.errors import OutcomeUnknown, TenureError
from tenure.model import ops, wire
from tenure.model.ops import Answer, Op

_CHUNK = 400  # characters of routes in one id
_FILLER = ops.DropSlot(SCOPE, "filler", "-")  # stands for an operation of another shard
Routes = list[list[str]]  # the names of the shards of each operation
_decode = msgspec.json.Decoder(Routes).decode


class Keyed:
    """A Once, and the answers to its parts."""

    def __init__(self, cluster: Cluster, op: ops.Once) -> None:
        self._cluster = cluster
        self._names = list(cluster.placing.names)
        self.op = op
        self.home: int = cluster.placing.of(f"key {op.key}")
        router = Router(cluster, op.ops, self.home)
        self.routes: list[Route | TenureError] = [router.route(one) for one in op.ops]
        self._did = wire.did(op)
        self._given: list[list[tuple[Op, Answer]]] = [[] for _ in op.ops]
        self.error: TenureError | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether a repetition takes the same routes by itself."""
        return all(isinstance(one, TenureError) or one.fixed for one in self.routes)

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
        """Those that are asked; the home shard, if there is nothing to do."""
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
        """What the home shard is asked to do. It is as long for any routes."""
        mine = dict(self._on(self.home))
        parts = [mine.get(at, _FILLER) for at in range(len(self.op.ops))]
        names = [
            [] if isinstance(route, TenureError) else [self._names[p.shard] for p in route.parts]
            for route in self.routes
        ]
        return ops.Once(self.op.key, (_echo(names), *parts), self._did)  # type: ignore[arg-type]

    def take_first(self, answer: Answer) -> None:
        """Take what the home shard answered, and the routes of the first time."""
        if isinstance(answer, TenureError):
            self.error = answer
            return
        assert isinstance(answer, ops.Answers)
        echo, *answers = answer.answers
        assert isinstance(echo, ops.Changed)
        self._take_routes(_decode("".join(one.partition(":")[2] for one in echo.missing)))
        for at, part in self._on(self.home):
            self._given[at].append((part, answers[at]))

    def _take_routes(self, names: Routes) -> None:
        for at, route in enumerate(self.routes):
            if isinstance(route, TenureError):
                continue
            mine = {part.shard: part for part in route.parts}
            on = [self._names.index(name) for name in names[at] if name in self._names]
            if on != list(mine):
                parts = [mine.get(shard, Part(shard, self.op.ops[at])) for shard in on]
                self.routes[at] = Route(parts, fixed=False)

    # The other shards ---------------------------------------------------------------------------

    def rest(self, shard: int) -> ops.Once:
        parts = tuple(part for _, part in self._on(shard))
        name = self._names[shard]
        return ops.Once(self.op.key, parts, f"{self._did}/{name}")  # type: ignore[arg-type]

    def alone_on(self, shard: int) -> ops.Once:
        """The part of a shard, if the routes need not be stored. A Once of a single shard is passed
        on as it is."""
        whole = self.shards() == {shard} and len(self.op.ops) == len(self._on(shard))
        return self.op if whole else self.rest(shard)

    def take_rest(self, shard: int, answer: Answer) -> None:
        mine = self._on(shard)
        if isinstance(answer, TenureError):
            self.error = answer
            return
        assert isinstance(answer, ops.Answers)
        for (at, part), one in zip(mine, answer.answers, strict=True):
            self._given[at].append((part, one))

    def result(self) -> Answer:
        """The answers to all operations, or the error of a shard: then a repetition finishes."""
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
        for route, given in zip(self.routes, self._given, strict=True):
            for _, answer in given:
                if isinstance(answer, ops.Leased) and isinstance(route, Route):
                    ids = [job.id for job in answer.jobs]
                    self._cluster.locator.hints.note(ids, route.parts[0].shard)


def _echo(names: Routes) -> Op:
    """An operation whose result repeats the routes: it returns ids that do not exist as missing."""
    text = msgspec.json.encode(names).decode()
    chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    return ops.Cancel(tuple(f"{uuid.uuid4().hex}:{chunk}" for chunk in chunks))


def run(cluster: Cluster, keyed: Mapping[int, Op]) -> dict[int, Answer]:
    """Run several Onces together, in order: first the parts of the home shards and those whose
    routes need not be stored, then the others."""
    all_: dict[int, Keyed] = {}
    for at, op in keyed.items():
        assert isinstance(op, ops.Once)
        all_[at] = Keyed(cluster, op)
    planned = {at: one for at, one in all_.items() if not one.is_fixed}
    firsts: list[tuple[int, int, ops.Once]] = []
    for at, one in all_.items():
        if at in planned:
            firsts.append((at, one.home, one.first()))
        else:
            firsts += [(at, shard, one.alone_on(shard)) for shard in sorted(one.shards())]
    for at, shard, answer in _sent(cluster, firsts):
        if at in planned:
            planned[at].take_first(answer)
        else:
            all_[at].take_rest(shard, answer)
    rests = [
        (at, shard, one.rest(shard))
        for at, one in planned.items()
        for shard in sorted(one.shards() - {one.home})
        if one.error is None
    ]
    for at, shard, answer in _sent(cluster, rests):
        all_[at].take_rest(shard, answer)
    return {at: one.result() for at, one in all_.items()}


def _sent(
    cluster: Cluster, wanted: Sequence[tuple[int, int, ops.Once]]
) -> list[tuple[int, int, Answer]]:
    """Send each to its shard; those of one shard go together."""
    parts: dict[int, list[tuple[int, Op]]] = {}
    for at, shard, op in wanted:
        parts.setdefault(shard, []).append((at, op))
    if not parts:
        return []
    found = cluster.send({shard: [op for _, op in mine] for shard, mine in parts.items()})
    return [
        (at, shard, answer)
        for shard, mine in parts.items()
        for (at, _), answer in zip(mine, found[shard], strict=True)
    ]
