"""What operators did to jobs, as records."""

from __future__ import annotations

import msgspec

from tenure.model import queries
from tenure.model.history import MOST_MOVES, Past, past_keys
from tenure.model.record_queries import ListRecords, Read

_decode = msgspec.json.Decoder(Past).decode


def list_past(read: Read, query: queries.ListPast) -> list[Past]:
    newest = read(ListRecords("past", *past_keys(query.id), MOST_MOVES, newest_first=True))
    return [_decode(record.value) for record in reversed(newest)]
