"""The engine: opens the shards, and passes batches and queries to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.core.fencing import Fence, Fenced
from tenure.engines.sharded import reads
from tenure.engines.sharded.batch import Batch
from tenure.engines.sharded.cluster import LOOK_SECONDS, PATIENCE, Cluster
from tenure.engines.sharded.guarding import Misplaced, misplaced
from tenure.engines.sharded.members import Members, members_of
from tenure.engines.sharded.opening import Opening
from tenure.engines.sharded.parts import part_of
from tenure.engines.sharded.placing import Placing
from tenure.engines.sharded.ring import outdated
from tenure.engines.sharded.routing import Router
from tenure.engines.sharded.shard import Shard, Store
from tenure.errors import Busy, InvalidInput, JobNotFound, StoreError, TenureError
from tenure.model import queries
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.settings import Settings

OpenStore = Callable[[Settings, Clock], Store]


class ShardedEngine:
    """One queue over several stores."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = self.cluster = cluster
        self.in_flight: int = cluster.in_flight

    @classmethod
    def open(cls, settings: Settings, clock: Clock, open_store: OpenStore) -> ShardedEngine:
        """Open all shards. Those that are away are tried again; at least one must be there, and all
        of them the first time."""
        members = members_of(settings.url)
        return cls.of(members, settings, clock, open_store)

    @classmethod
    def of(
        cls, members: Members, settings: Settings, clock: Clock, open_store: OpenStore
    ) -> ShardedEngine:
        """Open these shards."""
        opening = Opening(members)
        patience = min(settings.busy_timeout, PATIENCE)

        def open_one(name: str) -> Store:
            url = members.urls[name]
            store = open_store(replace(settings, url=url, busy_timeout=patience), clock)
            try:
                opening.opened(name, store)
            except BaseException:
                store.close()
                raise
            return store

        shards = [Shard(name, partial(open_one, name)) for name in members.urls]
        try:
            _open_all(shards)
            cluster = Cluster(shards, opening.decide(), clock)
            for shard in shards:
                if shard.name in opening.outdated():
                    shard.leave(outdated(shard.name).message)
            return cls(cluster)
        except BaseException:
            for shard in shards:
                shard.close()
            raise

    @property
    def placing(self) -> Placing:
        """Which shard a tenant is on."""
        return self._cluster.placing

    def part_of(self, batch: Sequence[Op]) -> int | None:
        return part_of(self._cluster, batch)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        cluster = self._cluster
        answers = Batch(cluster, batch).run()
        until = cluster.clock.monotonic() + PATIENCE
        while again := [at for at, one in enumerate(answers) if isinstance(one, Misplaced)]:
            if cluster.clock.monotonic() > until:
                break
            cluster.clock.sleep(LOOK_SECONDS)
            cluster.refresh(cluster.view)
            rest = Batch(cluster, [batch[at] for at in again]).run()
            for at, answer in zip(again, rest, strict=True):
                answers[at] = answer
        return [Busy(one.message) if isinstance(one, Misplaced) else one for one in answers]

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
        mine = [op for _, op in parts]
        for op in mine:
            error = misplaced(op, self._cluster.shards.index(shard), router.view.placing)
            if error is not None:
                raise error
        if shard.name in router.view.ring.frozen:
            self._cluster.refresh(router.view)
            raise Busy(f"shard {shard.name!r}: tenants are being moved: try again")
        try:
            return shard.apply_within(connection, mine, Fence(router.view.mark))
        except Fenced:
            self._cluster.refresh(router.view)
            raise Busy(f"shard {shard.name!r}: tenants were just moved: try again") from None
        except InvalidInput as error:
            if error.field != "connection":
                raise
            raise InvalidInput("connection", f"{error.reason} (shard {shard.name!r})") from None

    def read(self, query: Query) -> Found:
        """A tenant's jobs are read where they are, and a job that is not found may just have been
        moved: then it is looked for again."""
        cluster = self._cluster
        if cluster.is_lacking:
            cluster.refresh(cluster.view)  # a part must not look like everything
        until = cluster.clock.monotonic() + PATIENCE
        while True:
            view = cluster.view
            found = reads.read(cluster, query)
            if not _may_have_moved(query, found) or cluster.is_settled(view):
                return found
            if cluster.clock.monotonic() > until:
                return found if cluster.is_current(view) else Busy("tenants are being moved")
            cluster.clock.sleep(LOOK_SECONDS)
            cluster.refresh(view)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        stops = [self._cluster.listen(wake)]
        stops += [shard.listen(wake) for shard in self._cluster.shards]

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


def _may_have_moved(query: Query, found: Found) -> bool:
    """Whether the result may be incomplete if a tenant was moved meanwhile."""
    if isinstance(found, JobNotFound):
        return True
    if isinstance(query, queries.GetJobs) and isinstance(found, queries.Page):
        return found.cursor is None and len(found.jobs) < len(query.ids)
    where = getattr(query, "filter", query)
    return getattr(where, "tenant", None) is not None
