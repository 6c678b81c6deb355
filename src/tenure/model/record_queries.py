"""Queries whose results are made of records. An engine implements ListRecords only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tenure.model import queries
from tenure.model.fields import Label, PageLimit
from tenure.model.history import MOST_MOVES, Past, past_keys
from tenure.model.queries import Found, Query
from tenure.model.records import MAX_KEY, Record, Space

LAST_KEY = "\U0010ffff" * MAX_KEY
_PAGE = 500  # records that are read together


class ListRecords(Query, frozen=True):
    """Records of a space whose keys are between `first` and `last`, sorted by key. A service does
    not accept it."""

    space: Space
    first: Label = ""
    last: Label = LAST_KEY
    limit: PageLimit = 1000
    newest_first: bool = False  # by key, from the last to the first


_decode_past = msgspec.json.Decoder(Past).decode

Read = Callable[[ListRecords], list[Record]]

# How each query is made of records.
FINDERS: dict[type[Query], Callable[[Read, Any], Found]] = {
    queries.ListPast: lambda read, query: _list_past(read, query),
}


def every(read: Read, space: Space, first: str = "", last: str = LAST_KEY) -> Iterator[Record]:
    """All records between two keys, read in parts."""
    while True:
        page = read(ListRecords(space, first, last, _PAGE))
        yield from page
        if len(page) < _PAGE:
            return
        first = next_key(page[-1].key)


def next_key(key: str) -> str:
    """A key that sorts after this one, and before every other that does. Text has no NUL."""
    return key + "\x01"


def _list_past(read: Read, query: queries.ListPast) -> Found:
    newest = read(ListRecords("past", *past_keys(query.id), MOST_MOVES, newest_first=True))
    return [_decode_past(record.value) for record in reversed(newest)]
