"""Workers that report themselves."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.memory_store import Part, handles
from tenure.errors import InvalidInput
from tenure.features.live_workers import data
from tenure.features.live_workers.data import Beat
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.model.records import MAX_RECORD_BYTES, Record


class Oracle(Part):
    """Keeps a record of each worker while it is alive, and of when its queues had one."""

    @handles(Beat)
    def _beat(self, op: Beat, now: int) -> Answer:
        key = data.live_key(op)
        old = self.store.side.get(("worker", key))
        alive = old is not None and (old.expires_at or 0) > now
        noted_at = data.decode(old.value).noted_at if old is not None and alive else 0
        notes = op.ttl_ms == 0 or now >= noted_at + data.NOTE_EVERY_MS
        worker = replace(op.worker, seen_at=now)
        for one in (worker, replace(worker, running=())):
            stored = data.Stored(one, now if notes else noted_at, op.grant)
            value = msgspec.json.encode(stored)
            if len(value) <= MAX_RECORD_BYTES:
                break
        else:
            return InvalidInput("worker", f"is larger than {MAX_RECORD_BYTES:,} bytes")
        self.store.side.pop(("worker", key), None)
        if op.ttl_ms:
            self.store.side["worker", key] = Record(key, value, now + op.ttl_ms)
        for queue in op.worker.queues if notes and self._is_for_all(op) else ():
            seen = data.seen_key(op, queue)
            until = now + data.SEEN_MS
            self.store.side["worker", seen] = Record(seen, b"%d" % now, until)
        return ops.Ok()

    def _is_for_all(self, op: Beat) -> bool:
        return op.grant is None or op.grant.tenants is None
