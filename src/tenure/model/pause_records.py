"""Since when something is paused, and by whom, as records."""

from __future__ import annotations

import msgspec

from tenure.model.record_queries import ListRecords, Read


class PauseNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record. by: who paused it, if that is known."""

    since: int
    by: str = ""


decode = msgspec.json.Decoder(PauseNote).decode


def pause_key(queue: str, tenant: str | None, group: str | None) -> str:
    """The key of a pause. No name has a NUL, and a name that is left out differs from an empty
    one."""
    names = ("" if name is None else f"={name}" for name in (tenant, group))
    return "\x01".join((queue, *names))


def pause_note(read: Read, queue: str, tenant: str | None, group: str | None) -> PauseNote | None:
    """What is known of a pause. Nothing is, if it is older than this note."""
    key = pause_key(queue, tenant, group)
    found = read(ListRecords("pause", key, key, 1))
    return decode(found[0].value) if found else None
