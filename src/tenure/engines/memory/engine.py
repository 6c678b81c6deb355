"""The engine of memory://: the table of operations and queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenure.clock import Clock
from tenure.engines.memory.explaining import Explaining
from tenure.engines.memory.memory_store import handles
from tenure.errors import (
    Conflict,
    InvalidInput,
)
from tenure.features import FINDERS, parts
from tenure.model import ops
from tenure.model.job import State
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query, Together
from tenure.settings import Settings, without_secrets


class MemoryEngine(Explaining):
    """The reference model as an engine."""

    in_flight = 1

    def __init__(self, clock: Clock, sweep: int = 1000, settings: Settings | None = None) -> None:
        super().__init__(clock, sweep, settings or Settings())
        self._parts += [one.Oracle(self) for one in parts("oracle")]
        self._handlers: dict[type[Op] | type[Query], Callable[[Any, int], Any]] = {
            method.handles: getattr(part, name)
            for part in (self, *self._parts)
            for kind in type(part).__mro__
            for name, method in vars(kind).items()
            if hasattr(method, "handles")
        }

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> MemoryEngine:
        if url not in ("memory:", "memory://"):
            raise InvalidInput(
                "url", f"{without_secrets(url)!r}: a memory queue has no name; use memory://"
            )
        return cls(clock, settings.sweep, settings)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        with self._lock:
            now = self._clock.now_ms()
            return [self._run(op, now) for op in batch]

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        raise InvalidInput("connection", "a memory queue has no connections to share")

    def read(self, query: Query) -> Found:
        with self._lock:
            now = self._clock.now_ms()
            if isinstance(query, Together):
                return [self.read(one) for one in query.queries]
            if type(query) not in self._handlers:
                find = FINDERS[type(query)]
                found: Found = find(lambda part: self._list_records(part, now), query)
            else:
                found = self._handlers[type(query)](query, now)
            return found

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # no other process can reach these jobs

    def close(self) -> None:
        pass

    @handles(ops.Once)
    def _once(self, op: ops.Once, now: int) -> Answer:
        said = op.fingerprint or op.ops
        if op.key not in self._answered:
            answer = ops.Answers(self._in_order(op.ops, now), op.kept)
            self._answered[op.key] = (now, said, answer)
            return answer
        _, first, answer = self._answered[op.key]
        if first != said:
            return Conflict(
                f"the key {op.key!r} was used for other operations; nothing was changed"
            )
        return ops.Answers([self._still_held(one) for one in answer.answers], answer.kept)

    def _still_held(self, answer: Answer) -> Answer:
        """What a claim returns when it is repeated: of its jobs, those it still holds."""
        if not isinstance(answer, ops.Leased):
            return answer
        held = {
            (job.id, job.token): job
            for job in (record.job for record in self._live.values())
            if job.state is State.LEASED
        }
        leases = [(job.id, job.token) for job in answer.jobs]
        return ops.Leased([held[lease] for lease in leases if lease in held])

    def _in_order(self, batch: Sequence[Op], now: int) -> list[Answer]:
        return [self._run(one, now) for one in batch]

    def _run(self, op: Op, now: int) -> Answer:
        answer: Answer = self._handlers[type(op)](op, now)
        for part in self._parts:
            part.answered(op, answer, now)
        return answer
