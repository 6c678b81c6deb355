"""When something was paused, by whom and why, as records."""

from __future__ import annotations

import msgspec

from tenure.model.record_queries import ListRecords, Read


class PauseNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record. by, reason: who paused it and why, if known."""

    since: int
    by: str = ""
    reason: str = ""


decode = msgspec.json.Decoder(PauseNote).decode


def pause_key(queue: str, tenant: str | None, group: str | None) -> str:
    """The key of a pause. No name has a NUL, and a name that is left out differs from an empty
    one."""
    names = ("" if name is None else f"={name}" for name in (tenant, group))
    return "\x01".join((queue, *names))


def pause_note(read: Read, queue: str, tenant: str | None, group: str | None) -> PauseNote | None:
    """What is known about a pause: nothing, if it was made before such notes existed."""
    key = pause_key(queue, tenant, group)
    found = read(ListRecords("pause", key, key, 1))
    return decode(found[0].value) if found else None
