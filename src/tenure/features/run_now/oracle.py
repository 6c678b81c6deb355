"""The same for the reference model."""

from __future__ import annotations

from tenure.engines.memory.memory_store import Part, Record, handles
from tenure.engines.memory.operating import Operator
from tenure.features.run_now.data import RunNow
from tenure.model import states
from tenure.model.ops import Answer


class Oracle(Part):
    """Makes jobs ready now."""

    store: Operator

    @handles(RunNow)
    def _run_now(self, op: RunNow, now: int) -> Answer:
        def hurry(record: Record) -> bool:
            return record.job.run_at > now and self.store.moved(
                op, record, states.Hurried(), "run_now", now
            )

        return self.store.change(op, hurry)
