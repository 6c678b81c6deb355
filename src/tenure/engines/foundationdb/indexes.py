"""The index keys of a job. They depend only on its record, so a move updates the indexes by
comparing the keys before and after."""

from __future__ import annotations

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.record import Record
from tenure.model.job import FINAL, State


def places(keys: Keys, job_id: str, record: Record) -> dict[bytes, bytes]:
    """All keys of a job besides its own."""
    queue, tenant, group, seq = record.queue, record.tenant, record.group, record.seq
    found = {keys.pack(k.LISTED, queue, *seq, job_id): b""}
    if record.error:
        found[keys.pack(k.ERROR, record.error, *seq, job_id)] = b""
    if record.state in FINAL:
        ended = keys.pack(k.ENDED, queue, record.state.value, record.finished_at, *seq, job_id)
        found[ended] = b""
        return found
    if record.unique_key is not None:
        found[keys.pack(k.UNIQUE, queue, tenant, record.unique_key)] = job_id.encode()
    if record.state is State.LEASED:
        found[keys.pack(k.LEASE, queue, tenant, group, job_id)] = b""
        found[keys.pack(k.ENDING, queue, record.lease_until, *seq, job_id)] = b""
        return found
    if record.expires_at is not None:
        found[keys.pack(k.EXPIRING, queue, record.expires_at, *seq, job_id)] = b""
    if record.state is State.PENDING:
        if record.ready:
            found[ready_key(keys, job_id, record)] = b""
        else:
            found[keys.pack(k.DELAYED, queue, record.run_at, *seq, job_id)] = b""
    return found


def ready_key(keys: Keys, job_id: str, record: Record) -> bytes:
    """Its place in line."""
    lane = (record.queue, record.tenant, record.group)
    return keys.pack(k.READY, *lane, record.priority, *record.seq, job_id)
