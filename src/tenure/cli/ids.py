"""Job ids as people give them: in full, or as the first characters of an id."""

from __future__ import annotations

from tenure.errors import Conflict, Forbidden, InvalidInput, StoreError
from tenure.queue import Queue

SHORTEST = 4  # characters of a prefix; a shorter one is more likely a slip


def full_id(store: Queue, given: str) -> str:
    """Return the id that starts with what was given. If no job has such an id, return it unchanged:
    the caller reports that there is none. Raises InvalidInput if several ids start with it, or if
    it is too short."""
    try:
        found = store.find_ids(given, limit=4)
    except (Conflict, Forbidden, InvalidInput, StoreError):
        return given  # a service that is older, or a token that is bound to tenants
    if not found or found[0] == given:
        return given
    if len(given) < SHORTEST:
        raise InvalidInput(
            "id", f"{given!r} is too short: give the whole id, or at least {SHORTEST} characters"
        )
    if len(found) > 1:
        several = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise InvalidInput("id", f"{given!r} is the start of several ids: {several}")
    return found[0]
