"""The place in a list over several shards as text: the cursor of each shard that has more."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.errors import InvalidInput

Places = dict[int, str | None]  # by shard: its cursor; None for its beginning


def cursor_of(places: Mapping[int, str | None]) -> str:
    return "~".join(f"{shard:x}:{cursor or ''}" for shard, cursor in sorted(places.items()))


def places_of(cursor: str, shards: int) -> Places:
    """The place that a cursor encodes. Raises InvalidInput."""
    places: Places = {}
    for part in cursor.split("~"):
        number, mark, rest = part.partition(":")
        if not mark or len(number) != 1 or number not in f"{'0123456789abcdef'[:shards]}":
            raise InvalidInput("cursor", f"{cursor!r} is not a cursor returned by a list")
        places[int(number, 16)] = rest or None
    return places
