"""What each shard stores about all shards: which they are, and which tenants have moved.

Every shard has the same text, its *mark*, besides its own name. A batch is applied to a shard only
if that still has the mark that the caller knows (core/fencing.py). So the stores decide where
tenants are, and not the URL of a process: a URL must name all shards of the ring, and may name
more. Tenants are moved from one ring to another in the order of a hash: those whose position is
below `below` already belong to the new ring, and those from there to `upto` are being copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from tenure.core.fencing import MARK, SPACE, Fence
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.shard import Shard, Store
from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.model import queries
from tenure.model.record_queries import ListRecords
from tenure.model.records import NewRecord, PutRecords, Record

_MEMBER = "member"  # the key of the record with the name of the shard; sorts after the mark
MAX_NAMES = 10_000  # characters of all names


class Ring(msgspec.Struct, frozen=True):
    """The shards of a queue.

    origin: tells one queue's shards from another's. to: the shards after the move that is going on;
    empty if none is. side: where slots, records and keys of calls are; they do not move as long as
    their shard is one. frozen: the shards that accept no changes, because tenants are being copied.
    """

    epoch: int
    origin: str
    spread: bool
    names: tuple[str, ...]
    side: tuple[str, ...]
    to: tuple[str, ...] = ()
    below: int = 0
    upto: int = 0
    frozen: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        """The shards of both rings."""
        return (*self.names, *(name for name in self.to if name not in self.names))

    @property
    def is_moving(self) -> bool:
        return bool(self.to)

    def next(self, **changes: object) -> Ring:
        return replace(self, epoch=self.epoch + 1, **changes)

    def text(self) -> str:
        """The mark: JSON."""
        return msgspec.json.encode(self).decode()

    def placing(self, among: Sequence[str]) -> Placing:
        """Where tenants are, by the numbers of these shards."""
        at = {name: number for number, name in enumerate(among)}
        return Placing(
            among,
            spread=self.spread,
            ring=[at[name] for name in self.names],
            side=[at[name] for name in self.side],
            to=[at[name] for name in self.to],
            below=self.below,
            upto=self.upto,
        )


def parse(text: str | bytes) -> Ring:
    """The ring of a mark. Raises StoreError."""
    try:
        return msgspec.json.decode(text, type=Ring)
    except msgspec.DecodeError:
        raise StoreError(f"the mark of a shard cannot be read: {text!r:.200}") from None


def first_ring(names: Iterable[str], *, spread: bool) -> Ring:
    """The ring of new shards. Raises InvalidInput."""
    ordered = tuple(sorted(names))
    text = " ".join(ordered)
    if len(text) > MAX_NAMES:
        raise InvalidInput("shards", f"the names have more than {MAX_NAMES} characters together")
    kind = "spread" if spread else "together"
    origin = blake2b(f"{kind}\0{text}".encode(), digest_size=8).hexdigest()
    return Ring(0, origin, spread, ordered, ordered)


class Mark(msgspec.Struct, frozen=True):
    """What one shard stores: its name and the ring, if it has been used as a shard."""

    name: str | None
    ring: Ring | None


def read(store: Store) -> Mark:
    """What a shard stores about the shards."""
    found = _stored(store)
    name, ring = found.get(_MEMBER), found.get(MARK)
    return Mark(
        None if name is None else msgspec.json.decode(name, type=str),
        None if ring is None else parse(ring),
    )


def check(mark: Mark, store: Store, name: str) -> None:
    """Raise InvalidInput if a store is another shard, or was used alone."""
    if mark.name not in (None, name):
        raise InvalidInput(
            "shards",
            f"the store of shard {name!r} was made as shard {mark.name!r}: use the same URL as "
            "before",
        )
    if mark.name is None and _is_used(store):
        raise InvalidInput(
            "shards",
            f"the store of shard {name!r} has jobs, but is no shard: copy it into new shards with "
            "`tenure copy`",
        )


def agreed(found: Mapping[str, Mark], names: Sequence[str], *, spread: bool) -> Ring | None:
    """The ring of shards that were used before; None if none was. Raises InvalidInput."""
    rings = [mark.ring for mark in found.values() if mark.ring is not None]
    if not rings:
        return None
    ring = max(rings, key=lambda one: one.epoch)
    told = f"the shards are {' '.join(ring.used)}"
    if any(one.origin != ring.origin for one in rings):
        raise InvalidInput(
            "shards", "these are stores of different shards: use the same URL as before"
        )
    if ring.spread != spread:
        raise InvalidInput(
            "shards",
            f"{told}, with without_tenant={'spread' if ring.spread else 'together'}: use the same "
            "URL as before",
        )
    lacking = lacks(ring, names)
    if lacking is not None:
        raise lacking
    return ring


def is_outdated(mine: Ring | None, ring: Ring, name: str) -> bool:
    """Whether a shard was restored from a backup that is older than the last move of tenants. Each
    mark reaches all shards before the next one is made, so a shard that is used is at most one mark
    behind."""
    return mine is not None and name in mine.used and mine.epoch + 1 < ring.epoch


def outdated(name: str) -> StoreError:
    """The error of a shard that is outdated."""
    return StoreError(
        f"the store of shard {name!r} is older than the last move of tenants: restore a newer "
        f"backup, or run `tenure readmit URL {name}`, which deletes what has moved away since"
    )


def lacks(ring: Ring, names: Sequence[str]) -> InvalidInput | None:
    """An error if a URL with these shards does not name all of the ring."""
    missing = [name for name in ring.used if name not in names]
    if not missing:
        return None
    during = "tenants are being moved, and " if ring.is_moving else ""
    return InvalidInput(
        "shards",
        f"{during}the shards are {' '.join(ring.used)}, but the URL does not name "
        f"{' '.join(missing)}: open the queue again with a URL that names all of them",
    )


def join(store: Store, name: str, ring: Ring) -> None:
    """Mark a new store as a shard of this ring."""
    member = NewRecord(SPACE, _MEMBER, msgspec.json.encode(name))
    store.apply([PutRecords((member,))], Fence("", ring.text()))


def ring_of(store: Store | Shard) -> Ring | None:
    """The ring as a shard knows it."""
    mark = _stored(store).get(MARK)
    return None if mark is None else parse(mark)


def advance(store: Store | Shard, old: Ring, new: Ring) -> None:
    """Give a shard its next mark. Raises Fenced if it has another one by now."""
    store.apply([], Fence(old.text(), new.text()))


def _stored(store: Store | Shard) -> dict[str, bytes]:
    """What a shard stores about the shards, by key."""
    found = store.read(ListRecords(SPACE, MARK, _MEMBER, 2))
    if isinstance(found, TenureError):
        raise found
    assert isinstance(found, list)
    return {one.key: one.value for one in found if isinstance(one, Record)}


def _is_used(store: Store) -> bool:
    found = store.read(queries.GetStats())
    if isinstance(found, TenureError):
        raise found
    return bool(found)
