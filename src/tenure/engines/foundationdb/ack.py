"""Acks that only finish their job: the transition is the same for all of them, and children are
notified at the end.

The core's `ack` decides on one job at a time, reads its failures, and writes a result in a second
step. For batches of 100, it takes 19 us of CPU time a job, and this 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tenure.core import leases
from tenure.core.leases import OK, lost, not_acked
from tenure.core.moves import PARENTS_DONE, settle
from tenure.engines.foundationdb.record import Held
from tenure.engines.foundationdb.transaction import Transaction
from tenure.model import ops
from tenure.model.ops import Answer


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    answers: list[Answer] = []
    for plain, run in groupby(batch, key=_is_plain):
        answers += (_ack_plain if plain else leases.ack)(tx, list(run))
    return answers


def _is_plain(op: ops.Ack) -> bool:
    return op.keep and not op.then


def _ack_plain(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    tx.load(op.id for op in batch)
    answers: list[Answer] = []
    for op in batch:
        job = _seen(tx, op)
        if job is None or lost(job, op.id, op.token) is not None:
            settle(tx)  # which may move this job, and the error names its state
            answer = not_acked(tx, _seen(tx, op), op)
            assert answer is not None
            answers.append(answer)
        else:
            tx.end(job, op.result)
            tx.news.append((job, PARENTS_DONE))
            answers.append(OK)
    settle(tx)
    return answers


def _seen(tx: Transaction, op: ops.Ack) -> Held | None:
    """The job, if it exists and the operation may see it."""
    job = tx.job(op.id)
    if job is None or op.grant is None or op.grant.allows(job.record.queue, job.record.tenant):
        return job
    return None
