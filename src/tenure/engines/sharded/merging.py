"""Merges the results of several shards into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy

from tenure.engines.sharded.guarding import Misplaced
from tenure.errors import Busy, NotFound, TenureError
from tenure.model import ops
from tenure.model.ops import Answer, Op


def merged(op: Op, parts: Sequence[tuple[Op, Answer]]) -> Answer:
    """The result of an operation, from the results of its parts. What was done on some shards is
    not undone if others fail: the error says so."""
    answers = [answer for _, answer in parts]
    if len(answers) == 1:
        return answers[0]
    done = [answer for answer in answers if not isinstance(answer, TenureError)]
    failed = [answer for answer in answers if isinstance(answer, TenureError)]
    serious = [error for error in failed if not isinstance(error, NotFound)]
    if serious and not (done and op.partial):
        return _partly(serious[0]) if done else serious[0]
    if not done:
        return failed[0]
    if isinstance(op, ops.Import) and failed:
        return failed[0]
    return _sum(op, done, parts)


def _partly(error: TenureError) -> TenureError:
    """The same error, with a note that other shards have done their part."""
    told = f"{error.message}; other shards have done their part: repeat it when this one is back"
    if isinstance(error, Misplaced):
        return Busy(told)  # parts were applied: it is not tried again for the caller
    again = copy(error)
    again.message, again.args = told, (told,)
    return again


def unfinished(error: TenureError) -> TenureError:
    """The error of a shard, for an operation of a keyed call of which others were applied."""
    again = copy(error)
    again.message = f"{error.message}; the same call with the same key finishes it"
    again.args = (again.message,)
    return again


def _sum(op: Op, done: Sequence[Answer], parts: Sequence[tuple[Op, Answer]]) -> Answer:
    first = done[0]
    if isinstance(first, ops.Changed):
        return _changed(op, [one for one in done if isinstance(one, ops.Changed)])
    if isinstance(first, ops.Enqueued):
        return _enqueued(op, parts)
    if isinstance(first, ops.Maintained):
        return _maintained([one for one in done if isinstance(one, ops.Maintained)])
    if isinstance(first, ops.Corrected):
        by: Counter[str] = Counter()
        for one in done:
            if isinstance(one, ops.Corrected):
                by.update(one.by)
        return ops.Corrected({name: count for name, count in by.items() if count})
    if isinstance(first, ops.Slots):
        slots = [one for one in done if isinstance(one, ops.Slots)]
        return ops.Slots(max(one.count for one in slots), any(one.held for one in slots))
    if isinstance(first, ops.Fired):
        return ops.Fired(any(isinstance(one, ops.Fired) and one.fired for one in done))
    return first


def _changed(op: Op, done: Sequence[ops.Changed]) -> Answer:
    assert isinstance(op, ops.JobsOp)
    missing = {job_id for one in done for job_id in one.missing}
    refused = {job_id: holder for one in done for job_id, holder in one.refused.items()}
    return ops.Changed(
        sum(one.count for one in done),
        tuple(job_id for job_id in dict.fromkeys(op.ids) if job_id in missing),
        refused,
    )


def _enqueued(op: Op, parts: Sequence[tuple[Op, Answer]]) -> Answer:
    assert isinstance(op, ops.Import)
    created: dict[str, list[bool]] = {}
    at = 0
    for part, answer in parts:
        assert isinstance(part, ops.Import)
        assert isinstance(answer, ops.Enqueued)
        at = max(at, answer.at)
        for job_id, new in zip(answer.ids, answer.created, strict=True):
            created.setdefault(job_id, []).append(new)
    ids = [entry.job.id for entry in op.entries]
    return ops.Enqueued(ids, [created[job_id].pop(0) for job_id in ids], at)


def _maintained(done: Sequence[ops.Maintained]) -> Answer:
    total = done[0]
    for one in done[1:]:
        total = total + one
    left = [one.after for one in done if one.after is not None]
    return ops.Maintained(
        total.promoted,
        total.leases,
        total.expired,
        total.slots,
        total.purged,
        min(left, default=None),
    )


def with_taken(op: ops.Enqueue, answer: ops.Enqueued, taken: frozenset[str]) -> ops.Enqueued:
    """The result, including the jobs that were left out because another shard has them."""
    if len(answer.ids) == len(op.jobs):
        return answer
    if len(op.jobs) - len(answer.ids) != sum(spec.id in taken for spec in op.jobs):
        taken = frozenset(spec.id for spec in op.jobs) - frozenset(answer.ids)
    rest = iter(zip(answer.ids, answer.created, strict=True))
    both = [(spec.id, False) if spec.id in taken else next(rest) for spec in op.jobs]
    return ops.Enqueued([one for one, _ in both], [new for _, new in both], answer.at)
