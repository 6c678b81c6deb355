"""The engine: opens the shards, and gives batches and queries to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.engines.sharded import reads, ring
from tenure.engines.sharded.batch import Batch
from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.members import members_of
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.routing import Router
from tenure.engines.sharded.shard import Shard, Store
from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.settings import Settings

PATIENCE = 5.0  # seconds that a shard may keep a batch waiting: others wait with it

OpenStore = Callable[[Settings, Clock], Store]


class ShardedEngine:
    """One queue over several stores."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.in_flight: int = cluster.in_flight

    @classmethod
    def open(cls, settings: Settings, clock: Clock, open_store: OpenStore) -> ShardedEngine:
        """Open all shards. Those that are away are tried again; at least one must be there."""
        members = members_of(settings.url)
        placing = Placing(list(members.urls), spread=members.spread)
        patience = min(settings.busy_timeout, PATIENCE)

        def open_one(name: str) -> Store:
            url = members.urls[name]
            store = open_store(replace(settings, url=url, busy_timeout=patience), clock)
            try:
                ring.check(store, placing, name)
            except BaseException:
                store.close()
                raise
            return store

        shards = [Shard(name, partial(open_one, name)) for name in members.urls]
        try:
            _open_all(shards)
        except BaseException:
            for shard in shards:
                shard.close()
            raise
        return cls(Cluster(shards, placing, clock))

    @property
    def placing(self) -> Placing:
        """Which shard a tenant is on."""
        return self._cluster.placing

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        return Batch(self._cluster, batch).run()

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        router = Router(self._cluster, batch)
        parts: list[tuple[int, Op]] = []
        for op in batch:
            route = router.route(op)
            if isinstance(route, TenureError):
                raise route
            if len(route.parts) != 1 or route.taken:
                raise InvalidInput("connection", "a transaction can change one shard only")
            parts += [(part.shard, part.op) for part in route.parts]
        on = {shard for shard, _ in parts}
        if len(on) != 1:
            raise InvalidInput("connection", "a transaction can change one shard only")
        shard = self._cluster.shards[on.pop()]
        try:
            return shard.apply_within(connection, [op for _, op in parts])
        except InvalidInput as error:
            if error.field != "connection":
                raise
            raise InvalidInput("connection", f"{error.reason} (shard {shard.name!r})") from None

    def read(self, query: Query) -> Found:
        return reads.read(self._cluster, query)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        stops = [shard.listen(wake) for shard in self._cluster.shards]

        def stop() -> None:
            for one in stops:
                one()

        return stop

    def log_bytes(self) -> int | None:
        """The size of all write-ahead logs, if the shards have one."""
        logs = [getattr(shard.store, "log_bytes", None) for shard in self._cluster.shards]
        sizes = [log() for log in logs if log is not None]
        return sum(sizes) if sizes else None

    def away(self) -> dict[str, str]:
        """The shards that are away, and why."""
        return self._cluster.away()

    def close(self) -> None:
        self._cluster.close()


def _open_all(shards: Sequence[Shard]) -> None:
    first: StoreError | None = None
    for shard in shards:
        try:
            shard.open()
        except StoreError as error:
            first = first or error
            shard.leave(error.message)
    if first is not None and all(shard.away is not None for shard in shards):
        raise first
