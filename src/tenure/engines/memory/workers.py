"""Workers that report themselves."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.records import Records
from tenure.engines.memory.store import handles
from tenure.errors import InvalidInput
from tenure.model import ops, worker_records
from tenure.model.ops import Answer
from tenure.model.records import MAX_RECORD_BYTES, Record


class Workers(Records):
    """Keeps a record of each worker while it is alive, and of when its queues had one."""

    @handles(ops.Beat)
    def _beat(self, op: ops.Beat, now: int) -> Answer:
        key = worker_records.live_key(op)
        old = self._side.get(("worker", key))
        alive = old is not None and (old.expires_at or 0) > now
        noted_at = worker_records.decode(old.value).noted_at if old is not None and alive else 0
        notes = op.ttl_ms == 0 or now >= noted_at + worker_records.NOTE_EVERY_MS
        worker = replace(op.worker, seen_at=now)
        for one in (worker, replace(worker, running=())):
            stored = worker_records.Stored(one, now if notes else noted_at, op.grant)
            value = msgspec.json.encode(stored)
            if len(value) <= MAX_RECORD_BYTES:
                break
        else:
            return InvalidInput("worker", f"is larger than {MAX_RECORD_BYTES:,} bytes")
        self._side.pop(("worker", key), None)
        if op.ttl_ms:
            self._side["worker", key] = Record(key, value, now + op.ttl_ms)
        for queue in op.worker.queues if notes and self._is_for_all(op) else ():
            seen = worker_records.seen_key(op, queue)
            until = now + worker_records.SEEN_MS
            self._side["worker", seen] = Record(seen, b"%d" % now, until)
        return ops.Ok()

    def _is_for_all(self, op: ops.Beat) -> bool:
        return op.grant is None or op.grant.tenants is None
