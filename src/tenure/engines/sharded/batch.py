"""Runs a batch: splits it by shard, and runs the parts of the shards at once.

The parts of a shard keep their order. An operation that needs more than one step, such as a claim,
ends a stretch of the batch: what follows begins when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tenure.engines.sharded.claims import Asking
from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.guarding import being_moved
from tenure.engines.sharded.keyed import run_keyed
from tenure.engines.sharded.merging import merged, with_taken
from tenure.engines.sharded.routing import Part, Route, Router
from tenure.errors import DependencyNotFound, InvalidInput, JobNotFound, TenureError
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.model.pause_records import pause_key
from tenure.model.record_queries import ListRecords
from tenure.model.records import NewRecord, PutRecords, Record

SCHEDULE_OPS = (ops.PutSchedule, ops.DropSchedule, ops.Fire)


class Batch:
    """The operations of a batch, and their answers so far."""

    def __init__(self, cluster: Cluster, batch: Sequence[Op]) -> None:
        self._cluster = cluster
        self._batch = batch
        self._router = Router(cluster, batch)
        self._answers: dict[int, Answer] = {}
        # The stretch that is collected: by shard, the place and the part of each operation.
        self._parts: dict[int, list[tuple[int, Op]]] = {}
        self._routes: dict[int, Route] = {}
        self._claims: dict[int, Asking] = {}
        self._turn: list[int] = []
        self._keyed: list[int] = []

    # path: a batch over shards
    def run(self) -> list[Answer]:
        for at, op in enumerate(self._batch):
            if isinstance(op, ops.Claim):
                self._add_claim(at, op)
                continue
            if self._claims or (self._keyed and not isinstance(op, ops.Once)):
                self._flush()
            if isinstance(op, ops.Once):
                if self._parts:
                    self._flush()
                self._keyed.append(at)
                continue
            if isinstance(op, SCHEDULE_OPS):
                self._flush()  # they are found by name
            elif self._router.overtakes(op):
                self._flush()
                self._router.forget_made()
            self._add(at, op)
        self._flush()
        return [self._answers[at] for at in range(len(self._batch))]

    def _add_claim(self, at: int, op: ops.Claim) -> None:
        if self._keyed:
            self._flush()
        if not self._claims:
            self._turn = self._cluster.next_turn()  # the claims of a stretch keep their order
        self._claims[at] = asking = Asking(self._cluster, op, self._turn)
        if (shard := asking.next_shard) is not None:
            self._parts.setdefault(shard, []).append((at, asking.next_op))

    def _add(self, at: int, op: Op) -> None:
        route = self._router.route(op)
        if isinstance(route, TenureError):
            self._answers[at] = route
        elif len(route.parts) == 1:
            ((shard, part),) = route.parts
            self._routes[at] = route
            self._parts.setdefault(shard, []).append((at, part))
        else:
            self._flush()
            run = self._in_turn if route.in_turn else self._at_once
            self._answers[at] = self._explained(op, merged(op, run(route.parts)), None)

    def _at_once(self, parts: Sequence[Part]) -> list[tuple[Op, Answer]]:
        found = self._cluster.send({shard: [op] for shard, op in parts}, self._router.view)
        return [(op, found[shard][0]) for shard, op in parts]

    def _in_turn(self, parts: Sequence[Part]) -> list[tuple[Op, Answer]]:
        """Ask the shards one by one. The note goes to the first that applies the operation, so that
        the audit log has one entry."""
        found: list[tuple[Op, Answer]] = []
        noted: int | None = None
        for shard, op in parts:
            batch = [op] if noted is None else [_without_note(op), *self._pause_of(op, noted)]
            answer = self._cluster.send({shard: batch}, self._router.view)[shard][0]
            found.append((op, answer))
            if noted is None and not isinstance(answer, TenureError):
                noted = shard
        return found

    def _pause_of(self, op: Op, noted: int) -> list[Op]:
        """Stores who paused something, as recorded by the shard with the note."""
        if not isinstance(op, ops.Pause):
            return []
        key = pause_key(op.queue, op.tenant, op.group)
        found = self._cluster.shards[noted].read(ListRecords("pause", key, key, 1))
        if not isinstance(found, list):
            return []
        values = [one.value for one in found if isinstance(one, Record)]
        return [PutRecords(tuple(NewRecord("pause", key, value) for value in values))]

    # Running what is collected ------------------------------------------------------------------

    def _flush(self) -> None:
        if self._keyed:
            keyed = {at: self._batch[at] for at in self._keyed}
            self._keyed = []
            self._answers |= run_keyed(self._cluster, keyed)
        if not (self._parts or self._claims):
            return
        parts, self._parts = self._parts, {}
        routes, self._routes = self._routes, {}
        found = self._send(parts)
        for at, answer in found.items():
            if at in self._claims:
                self._claims[at].answer(answer)
            else:
                self._answers[at] = self._settled(at, answer, routes[at])
        claims, self._claims = self._claims, {}
        self._ask_others(claims)

    def _send(self, parts: dict[int, list[tuple[int, Op]]]) -> dict[int, Answer]:
        batches = {shard: [op for _, op in mine] for shard, mine in parts.items()}
        found = self._cluster.send(batches, self._router.view)
        return {
            at: answer
            for shard, mine in parts.items()
            for (at, _), answer in zip(mine, found[shard], strict=True)
        }

    def _ask_others(self, claims: dict[int, Asking]) -> None:
        """Claims that have not found enough ask the next shard."""
        while True:
            parts: dict[int, list[tuple[int, Op]]] = {}
            for at, asking in claims.items():
                if (shard := asking.next_shard) is not None:
                    parts.setdefault(shard, []).append((at, asking.next_op))
            if not parts:
                break
            for at, answer in self._send(parts).items():
                claims[at].answer(answer)
        self._answers |= {at: asking.result() for at, asking in claims.items()}

    # Answers that need a second look ------------------------------------------------------------

    def _settled(self, at: int, answer: Answer, route: Route) -> Answer:
        op, shard = self._batch[at], route.parts[0].shard
        if isinstance(answer, JobNotFound) and isinstance(op, ops.LeaseOp):
            answer = self._tried_elsewhere(op, shard, answer)
        if route.taken and isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
            answer = with_taken(op, answer, route.taken)
        return self._explained(op, answer, shard)

    def _tried_elsewhere(self, op: ops.LeaseOp, shard: int, answer: Answer) -> Answer:
        """The answer of the shard that the job has been moved to, if it has."""
        hints = self._cluster.locator.hints
        if hints.get(op.id) != shard:
            return answer
        hints.drop(op.id)
        (place,) = self._cluster.locator.search([op.id], op.grant).values()
        if isinstance(place, TenureError):
            return place
        if place is None and not self._cluster.is_settled(self._router.view):
            return being_moved(op.id)
        if place is None or place == shard:
            return answer
        return self._cluster.send({place: [op]}, self._router.view)[place][0]

    def _explained(self, op: Op, answer: Answer, shard: int | None) -> Answer:
        """A clear error for a parent that exists on another shard."""
        if not isinstance(answer, DependencyNotFound):
            return self._cluster.settled(op, answer)
        grant = op.grant if isinstance(op, ops.GrantedOp) else None
        found = self._cluster.locator.elsewhere([answer.job_id], shard, grant)
        if answer.job_id not in found:
            return answer
        parent = found[answer.job_id]
        return InvalidInput(
            "after",
            f"job {parent.id!r} is of tenant {parent.tenant!r}, on another shard: a job can wait "
            "only for jobs of its own tenant",
        )


def _without_note(op: Op) -> Op:
    noted = isinstance(op, ops.NotedOp | ops.NotedGrantedOp) and op.note is not None
    return replace(op, note=None) if noted else op
