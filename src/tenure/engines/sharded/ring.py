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

from tenure.core.fencing import KEY, SCOPE, Fence
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.shard import Shard, Store
from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.model import ops, queries
from tenure.model.fields import MAX_NAME, MAX_SPAN_MS

_MEMBER = "member"  # the key of the slot whose holder is the name of the shard
MAX_NAMES = 400  # characters of all names


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
        """The mark: all names once, and each set of shards as bits."""
        names = sorted({*self.used, *self.side})
        bits = [
            f"{sum(1 << names.index(name) for name in part):x}"
            for part in (self.names, self.side, self.to, self.frozen)
        ]
        kind = "spread" if self.spread else "together"
        span = f"{self.below:x}-{self.upto:x}"
        return " ".join([str(self.epoch), self.origin, kind, span, *bits, *names])

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


def parse(text: str) -> Ring:
    """The ring of a mark. Raises StoreError."""
    try:
        epoch, origin, kind, span, *rest = text.split(" ")
        bits, names = [int(part, 16) for part in rest[:4]], rest[4:]
        ring, side, to, frozen = (
            tuple(name for n, name in enumerate(names) if part >> n & 1) for part in bits
        )
        below, upto = (int(part, 16) for part in span.split("-"))
        return Ring(int(epoch), origin, kind == "spread", ring, side, to, below, upto, frozen)
    except ValueError:
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
    name, ring = _holder(store, _MEMBER), _holder(store, KEY)
    return Mark(None if name is None else name.split(" ")[0], None if ring is None else parse(ring))


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
    member = ops.TakeSlot(SCOPE, _MEMBER, name, MAX_SPAN_MS, limit=1)
    store.apply([member], Fence("", ring.text()))


def ring_of(store: Store | Shard) -> Ring | None:
    """The ring as a shard knows it."""
    text = _holder(store, KEY)
    return None if text is None else parse(text)


def advance(store: Store | Shard, old: Ring, new: Ring) -> None:
    """Give a shard its next mark. Raises Fenced if it has another one by now."""
    text = new.text()
    assert len(text) <= MAX_NAME
    store.apply([], Fence(old.text(), text))


def _holder(store: Store | Shard, key: str) -> str | None:
    found = store.read(queries.ListSlots(SCOPE, key))
    if isinstance(found, TenureError):
        raise found
    assert isinstance(found, list)
    holders = [slot.holder for slot in found if isinstance(slot, queries.Slot)]
    return holders[0] if holders else None


def _is_used(store: Store) -> bool:
    found = store.read(queries.GetStats())
    if isinstance(found, TenureError):
        raise found
    return bool(found)
