"""An operation is applied only on a shard where what it names belongs."""

from __future__ import annotations

import pytest

from tenure.engines.sharded.guarding import Misplaced, misplaced
from tenure.engines.sharded.placing import END, Placing
from tenure.engines.sharded.shard import SCOPE
from tenure.model import ops
from tenure.model.job import JobSpec, null
from tenure.model.ops import Op
from tenure.model.records import NewRecord, PutRecords

PLACING = Placing(["a", "b", "c"], spread=True)
JOB = JobSpec(id="j", queue="q", payload=null(), tenant="acme")
ACME = PLACING.of_tenant("acme")
OPS: dict[str, tuple[Op, int | None]] = {
    "enqueue": (ops.Enqueue((JOB,)), ACME),
    "follow-up": (ops.Ack("j", 1, then=(JOB,)), ACME),
    "claim": (ops.Claim(("q",), "w", 1_000, tenant="acme"), ACME),
    "limit": (ops.SetLimit("q", "acme", concurrency=1), ACME),
    "pause": (ops.Pause("q", "acme"), ACME),
    "keyed": (ops.Once("key", (ops.Enqueue((JOB,)),)), ACME),
    "slot": (ops.TakeSlot("scope", "key", "me", 1_000), PLACING.of_slots("scope")),
    "record": (PutRecords((NewRecord("rate", "k", b"1"),)), PLACING.of_record("rate", "k")),
    "any job": (ops.Enqueue((JobSpec(id="j", queue="q", payload=null()),)), None),
    "any claim": (ops.Claim(("q",), "w", 1_000), None),
    "pause of all": (ops.Pause("q"), None),
    "record of a pause": (PutRecords((NewRecord("pause", "k", b"1"),)), None),
    "slot of a shard": (ops.TakeSlot(SCOPE, "key", "me", 1_000), None),
}


@pytest.mark.parametrize("name", OPS)
def test_an_operation_belongs_on_the_shard_of_what_it_names(name: str) -> None:
    op, place = OPS[name]
    for number in range(3):
        assert (misplaced(op, number, PLACING) is None) == (place in (None, number))


def test_nothing_is_applied_for_a_tenant_that_is_being_moved() -> None:
    moved = next(
        tenant
        for tenant in (f"t{n}" for n in range(100))
        if Placing(["a", "b"], spread=True, ring=[0], to=[0, 1], upto=END).is_moving(tenant)
    )
    op = ops.Pause("q", moved)
    for below, upto, shard in ((0, 0, 0), (0, END, None), (END, END, 1)):
        placing = Placing(["a", "b"], spread=True, ring=[0], to=[0, 1], below=below, upto=upto)
        allowed = [n for n in (0, 1) if not isinstance(misplaced(op, n, placing), Misplaced)]
        assert allowed == ([] if shard is None else [shard])
