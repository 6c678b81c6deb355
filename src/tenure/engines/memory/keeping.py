"""Records: side data beside the jobs."""

from __future__ import annotations

from tenure.engines.memory.maintaining import Upkeep
from tenure.engines.memory.memory_store import handles
from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.model.record_queries import ListRecords
from tenure.model.records import MAX_RECORD_BYTES, PutRecords, Record


class Records(Upkeep):
    """Stores and lists records."""

    @handles(PutRecords)
    def _put_records(self, op: PutRecords, now: int) -> Answer:
        if any(len(one.value or b"") > MAX_RECORD_BYTES for one in op.records):
            return InvalidInput("value", f"is larger than {MAX_RECORD_BYTES:,} bytes")
        for one in op.records:
            if one.value is None:
                self.side.pop((one.space, one.key), None)
            else:
                expires_at = None if one.keep_ms is None else now + one.keep_ms
                self.side[one.space, one.key] = Record(one.key, one.value, expires_at)
        return ops.Ok()

    @handles(ListRecords)
    def _list_records(self, query: ListRecords, now: int) -> list[Record]:
        found = [
            record
            for (space, key), record in self.side.items()
            if space == query.space
            and query.first <= key <= query.last
            and (record.expires_at is None or record.expires_at > now)
        ]
        found.sort(key=lambda record: record.key, reverse=query.newest_first)
        return found[: query.limit]
