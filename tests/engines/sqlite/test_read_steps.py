"""What one transaction reads of steps is bounded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tenure
from tenure import PayloadTooLarge, Queue
from tenure.features.steps.data import Checkpoint, Recall, Signal
from tenure.model.ops import Answer, Op, Recorded
from tenure.queue import store_of


def test_what_one_batch_reads_of_steps_is_bounded(tmp_path: Path) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        _read_much(queue)


def _read_much(queue: Queue) -> None:
    def apply(*batch: Op) -> list[Answer]:
        return store_of(queue).committer.run(batch)

    queue.enqueue("q", id="a")
    (job,) = queue.claim("q")
    lease = (job.id, job.token)
    result = msgspec.Raw(msgspec.json.encode("x" * (2**20 - 2)))
    for n in range(12):
        apply(Checkpoint(*lease, f"s{n}", result=result))
    answers = apply(*[Recall(*lease)] * 5)
    assert [getattr(one, "code", "read") for one in answers] == ["read"] * 3 + ["busy"] * 2
    again = apply(*[Checkpoint(*lease, "s0")] * 40)
    assert 25 < sum(isinstance(one, Recorded) for one in again) < 32
    large = msgspec.Raw(msgspec.json.encode("x" * 30_000))
    to_many = Signal(("a",) * 300, name="go", value=large)
    with pytest.raises(PayloadTooLarge, match="ids"):
        to_many.check()
