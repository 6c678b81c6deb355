"""What each shard stores about the shards together: its own name, and the names of all.

A handle with other shards, or with files that were swapped, would look for tenants in the wrong
place. So each shard is marked when it is first used, and compared when it is opened.
"""

from __future__ import annotations

from hashlib import blake2b

from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.shard import SCOPE, Store
from tenure.errors import InvalidInput, TenureError
from tenure.model import ops, queries
from tenure.model.fields import MAX_SPAN_MS

_KEY = "member"
_SHOWN = 200  # characters of the names


def mark_of(placing: Placing, name: str) -> str:
    """What a shard stores: its name, how many shards there are, and which."""
    names = " ".join(sorted(placing.names))
    kind = "spread" if placing.spread else "together"
    told = blake2b(f"{kind}\0{names}".encode(), digest_size=8).hexdigest()
    return f"{name} of {len(placing.names)} ({names[:_SHOWN]}), {kind}, {told}"


def check(store: Store, placing: Placing, name: str) -> None:
    """Mark a new shard. Raises InvalidInput if it is one of other shards, or a store of its own."""
    mine = mark_of(placing, name)
    marks = _marks(store)
    if marks == [mine]:
        return
    if marks:
        raise InvalidInput(
            "shards",
            f"the store of shard {name!r} was made as shard {marks[0].rpartition(',')[0]}: use the "
            "same URL as before, or copy everything into new shards with `tenure copy`",
        )
    if _is_used(store):
        raise InvalidInput(
            "shards",
            f"the store of shard {name!r} has jobs, but is no shard: copy it into new shards with "
            "`tenure copy`",
        )
    store.apply([ops.TakeSlot(SCOPE, _KEY, mine, MAX_SPAN_MS, limit=1)])
    if _marks(store) != [mine]:
        raise InvalidInput(
            "shards", f"shard {name!r} was opened with other shards at the same time"
        )


def _marks(store: Store) -> list[str]:
    found = store.read(queries.ListSlots(SCOPE, _KEY))
    if isinstance(found, TenureError):
        raise found
    assert isinstance(found, list)
    return [slot.holder for slot in found if isinstance(slot, queries.Slot)]


def _is_used(store: Store) -> bool:
    found = store.read(queries.GetStats())
    if isinstance(found, TenureError):
        raise found
    return bool(found)
