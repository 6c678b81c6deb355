"""Error groups as records: their keys, and the list that is built from them."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.features.errors import data
from tenure.features.errors.data import ErrorGroup, ErrorGroups, ListErrors
from tenure.model.record_queries import Read, every

_COUNT, _MUTE = "g", "m"  # the first character of a key
_END, _PAST = "\x01", "\x02"  # ends the name of a queue
_decode = msgspec.json.Decoder(ErrorGroup).decode


def key_of(one: ErrorGroup, writer: str) -> str:
    """The key of a writer's count of a group."""
    return f"{_COUNT}{one.queue}{_END}{one.group}.{writer}"


def keys_of(queue: str | None) -> tuple[str, str]:
    """The first and the last key of the counts of a queue, or of all queues."""
    if queue is None:
        return _COUNT, f"{_COUNT}\U0010ffff"
    return f"{_COUNT}{queue}{_END}", f"{_COUNT}{queue}{_PAST}"


def keys_of_group(one: ErrorGroup) -> tuple[str, str]:
    """The first and the last key of the counts of a group, of all writers."""
    return key_of(one, ""), key_of(one, "\U0010ffff")


def mute_key(group: str) -> str:
    """The key of the record that mutes a group."""
    return f"{_MUTE}{group}"


def is_mute(key: str) -> bool:
    """Whether this is such a key, and not that of a count."""
    return key.startswith(_MUTE)


def list_errors(read: Read, query: ListErrors) -> ErrorGroups:
    """Add up what each writer has counted."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for record in every(read, "error", *keys_of(query.queue)):
        one = _decode(record.value)
        known = found.get((one.queue, one.group))
        found[one.queue, one.group] = one if known is None else known.plus(one)
    muted = {record.key[1:] for record in every(read, "error", _MUTE, f"{_MUTE}\U0010ffff")}
    groups = [
        replace(one, muted=one.group in muted)
        for one in found.values()
        if query.queue in (None, one.queue)
    ]
    return data.page_of(groups, query.limit, query.cursor)
