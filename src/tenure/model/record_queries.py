"""Queries that only engines ask. Others are built from that for records: see finders.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tenure.model.fields import Label, PageLimit
from tenure.model.queries import Query
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


class FindAnswers(Query, frozen=True):
    """The text that is stored under a key of a Once, in a list; an empty one if there is none.
    Shards ask it of their stores."""

    key: Label


Read = Callable[[ListRecords], list[Record]]


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
