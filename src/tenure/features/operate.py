"""Running a batch of operations in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tenure.core import enqueue, features, leases, limits, operator, schedules, slots, transfer
from tenure.core import put_records as records
from tenure.core.features import Operation
from tenure.core.transaction import Transaction
from tenure.features import parts
from tenure.model import ops, wire
from tenure.model.ops import Answer, Op
from tenure.model.records import PutRecords

Operations = Mapping[type[Op], Operation]
NOTED = (ops.NotedOp, ops.NotedGrantedOp)

SHARED: dict[type[Op], Operation] = {
    ops.Enqueue: enqueue.enqueue,
    ops.Ack: leases.ack,
    ops.Fail: leases.fail,
    ops.Extend: leases.extend,
    ops.Release: leases.release,
    ops.Progress: leases.progress,
    ops.Cancel: operator.cancel,
    ops.Replay: operator.replay,
    ops.Delete: operator.delete,
    ops.Update: operator.update,
    ops.ReplayEdited: operator.replay_edited,
    ops.SetLimit: limits.set_limit,
    ops.ClearLimit: limits.clear_limit,
    ops.Pause: limits.pause,
    ops.Resume: limits.resume,
    ops.TakeSlot: slots.take_slot,
    ops.DropSlot: slots.drop_slot,
    ops.PutSchedule: schedules.put_schedule,
    ops.DropSchedule: schedules.drop_schedule,
    ops.Fire: schedules.fire,
    ops.Import: transfer.import_,
    PutRecords: records.put_records,
}


for _one in parts("rules"):
    features.ALL[_one.__name__] = _one.RULES
    SHARED |= _one.RULES.operations


def operate(tx: Transaction[Any], batch: Sequence[Op], own: Operations) -> list[Answer]:
    """Run operations in order. own: the engine's implementations, which replace the shared ones."""
    answers: list[Answer] = []
    for kind, run in groupby(batch, key=type):
        if kind is ops.Once:
            answers.extend(_once(tx, op, own) for op in run)
        else:
            tx.forget()
            operation, some = implementation(kind, own), list(run)
            given = operation(tx, some)
            if issubclass(kind, NOTED):
                features.noted(tx, some, given)
            answers.extend(given)
    return answers


def implementation(kind: type[Op], own: Operations) -> Operation:
    """How an engine runs operations of a kind."""
    return own.get(kind) or SHARED[kind]


# path: a keyed call
def _once(tx: Transaction[Any], op: Any, own: Operations) -> Answer:
    known = tx.answers_of(op.key)
    if known is not None:
        return wire.decode_once(op, known, tx.read_jobs)
    answers = operate(tx, op.ops, own)
    tx.put_answers(op.key, wire.encode_once(op, answers, op.kept))
    return ops.Answers(answers, op.kept)
