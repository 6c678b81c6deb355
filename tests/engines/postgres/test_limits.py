"""PostgreSQL applies limits in SQL, to whole tables at once. It must bind whom the core binds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure.clock import SystemClock
from tenure.core.limits import Rules, TenantGroup
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Limit
from tenure.settings import Settings
from tests.support import postgres

TENANTS = ("", "acme", "brick", "corp")
GROUPS = ("", "x", "y")
SCOPES: list[TenantGroup] = [
    (None, None),
    *((tenant, None) for tenant in (*TENANTS, "*")),
    *((tenant, group) for tenant in (*TENANTS, "*") for group in ("x", "y", "*")),
]

Bounds = dict[str, tuple[int | None, int]]  # the concurrency and stride of tenants
LaneBounds = dict[tuple[str, str], int | None]  # the concurrency of groups


class Store:
    """A queue with a lane for each tenant and group."""

    def __init__(self, folder: Path) -> None:
        self._engine = PostgresEngine(postgres.url_of(folder), Settings(), SystemClock())
        self._connection = psycopg.connect(postgres.shared_url(), autocommit=True)
        self._connection.execute(f"SET search_path TO {postgres.schema_of(folder)}".encode())

    def apply(self, *batch: ops.Op) -> None:
        assert not [one for one in self._engine.apply(batch) if isinstance(one, Exception)]

    def make_lanes(self) -> None:
        lanes = [(tenant, group) for tenant in TENANTS for group in GROUPS]
        specs = [
            JobSpec(f"{tenant}.{group}", "q", NULL, tenant=tenant, group=group)
            for tenant, group in lanes
        ]
        self.apply(ops.Enqueue(tuple(specs)))

    def bounds(self) -> tuple[Bounds, LaneBounds]:
        tenants = self._connection.execute("SELECT tenant, max_leased, stride FROM tenants")
        lanes = self._connection.execute(
            "SELECT t.tenant, l.grp, l.max_leased FROM lanes l JOIN tenants t ON t.id = l.tenant"
        )
        return (
            {tenant: (bound, stride) for tenant, bound, stride in tenants},
            {(tenant, group): bound for tenant, group, bound in lanes},
        )

    def close(self) -> None:
        self._connection.close()
        self._engine.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()
    postgres.give_back(tmp_path)


def change(chance: random.Random) -> ops.Op:
    tenant, group = chance.choice(SCOPES)
    kind = chance.randrange(6)
    if kind < 3:
        weight = chance.choice((None, 1, 2, 3, 7)) if group is None and tenant is not None else None
        return ops.SetLimit("q", tenant, group, chance.choice((1, 2, 5)), weight=weight)
    if kind == 3:
        return ops.ClearLimit("q", tenant, group)
    return ops.Pause("q", tenant, group) if kind == 4 else ops.Resume("q", tenant, group)


def expected(limits: list[Limit]) -> tuple[Bounds, LaneBounds]:
    rules = Rules("q", {(limit.tenant, limit.group): limit for limit in limits})
    tenants: Bounds = {}
    lanes: LaneBounds = {}
    for tenant in TENANTS:
        bound = 0 if rules.tenant_paused(tenant) else rules.tenant_concurrency(tenant)
        tenants[tenant] = (bound, ops.stride(rules.weight(tenant)))
        for group in GROUPS:
            paused = rules.group_paused(tenant, group)
            lanes[tenant, group] = 0 if paused else rules.group_concurrency(tenant, group)
    return tenants, lanes


@pytest.mark.parametrize("seed", range(4))
def test_the_server_binds_whom_the_core_binds(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    store.make_lanes()
    for _ in range(40):
        store.apply(change(chance))
        limits = store._engine.read(queries.ListLimits("q"))
        assert isinstance(limits, list)
        assert store.bounds() == expected([one for one in limits if isinstance(one, Limit)])


@pytest.mark.parametrize("seed", range(4))
def test_lanes_that_come_later_are_bound_the_same(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    store.apply(ops.SetLimit("q", concurrency=9))
    store.apply(*[change(chance) for _ in range(30)])
    store.make_lanes()
    limits = store._engine.read(queries.ListLimits("q"))
    assert isinstance(limits, list)
    assert store.bounds() == expected([one for one in limits if isinstance(one, Limit)])


@pytest.mark.parametrize("scope", [("acme", None), ("acme", "x")])
def test_a_limit_of_a_tenant_writes_nothing_of_others(
    engine: PostgresEngine, schema: str, scope: tuple[str, str | None]
) -> None:
    specs = [JobSpec(tenant, "q", NULL, tenant=tenant, group="x") for tenant in ("acme", "brick")]
    engine.apply([ops.Enqueue(tuple(specs))])
    engine.apply([ops.SetLimit("q", concurrency=1)])  # the books are up to date
    written = f"""SELECT t.tenant, t.xmin::text, l.xmin::text
        FROM {schema}.tenants t JOIN {schema}.lanes l ON l.tenant = t.id"""
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        before = {row[0]: row[1:] for row in connection.execute(written.encode())}
        engine.apply([ops.SetLimit("q", *scope, concurrency=1)])
        after = {row[0]: row[1:] for row in connection.execute(written.encode())}
    assert after["brick"] == before["brick"]
    assert after["acme"] != before["acme"]
