"""Reading complete jobs from all their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.record import (
    Held,
    decode_body,
    decode_errors,
    job_of,
    start_of_body,
)
from tenure.engines.foundationdb.tx import Tx
from tenure.model.job import Job
from tenure.model.summary import PREVIEW_BYTES, Summary, last_error, preview_of, summarized


def jobs_of(tx: Tx, found: Sequence[Held]) -> list[Job]:
    """The jobs, with the parts that are stored separately."""
    snapshot, keys = tx.tr.snapshot, tx.keys

    def ask(kind: int, job_id: str, wanted: bool) -> Any:
        return snapshot.get_range(*keys.span(kind, job_id)) if wanted else ()

    asked = [
        (
            held,
            ask(k.BODY, held.id, True),
            ask(k.ERRORS, held.id, bool(held.record.failures)),
            ask(k.RESULT, held.id, held.record.has_result),
        )
        for held in found
    ]
    jobs = []
    for held, *parts in asked:
        body, errors, result = ([bytes(row.value) for row in rows] for rows in parts)
        answer = b"".join(result) if held.record.has_result else None
        jobs.append(job_of(held.id, held.record, decode_body(body), decode_errors(errors), answer))
    return jobs


def summaries_of(tx: Tx, found: Sequence[Held]) -> list[Summary]:
    """Summaries. Of a payload, the first and the last part are read."""
    snapshot, keys = tx.tr.snapshot, tx.keys
    asked = [
        (
            held,
            snapshot.get_range(*keys.span(k.BODY, held.id), limit=1),
            snapshot.get_range(*keys.span(k.BODY, held.id), limit=1, reverse=True),
            snapshot.get_range(*keys.span(k.ERRORS, held.id)) if held.record.failures else (),
        )
        for held in found
    ]
    summaries = []
    for held, first, last, failures in asked:
        (begin,), (end,) = list(first), list(last)
        number = keys.unpack(bytes(end.key))[-1]
        start = start_of_body(bytes(begin.value), number, bytes(end.value))
        if start is None:
            whole = tx.body(held.id)
            start = whole, len(whole.payload)
        body, size = start
        errors = decode_errors([bytes(row.value) for row in failures])
        job = job_of(held.id, held.record, body, (), None)
        preview = preview_of(body.payload[:PREVIEW_BYTES])
        has_result = held.record.has_result
        summaries.append(summarized(job, preview, size, has_result, last_error(errors)))
    return summaries


def read_jobs(tx: Tx, ids: Sequence[str]) -> Mapping[str, Job]:
    """The jobs with these ids that exist, by snapshot reads."""
    found = [held for held in tx.peek(ids) if held is not None]
    return {job.id: job for job in jobs_of(tx, found)}
