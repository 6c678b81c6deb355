"""What operators did to jobs, as records."""

from __future__ import annotations

import msgspec

from tenure.model import queries
from tenure.model.history import MOST_MOVES, Past, heard_key, past_keys
from tenure.model.record_queries import ListRecords, Read, every

_decode = msgspec.json.Decoder(Past).decode


def list_past(read: Read, query: queries.ListPast) -> list[Past]:
    newest = read(ListRecords("past", *past_keys(query.id), MOST_MOVES, newest_first=True))
    return [_decode(record.value) for record in reversed(newest)]


def heard_at(read: Read, job_id: str, since: int) -> int | None:
    """When the worker of a job learned that it was cancelled, if it was cancelled at `since`."""
    first, last = heard_key(job_id, 0), past_keys(job_id)[1]
    found = (_decode(record.value).at for record in every(read, "past", first, last))
    return min((at for at in found if at >= since), default=None)
