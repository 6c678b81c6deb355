"""A store made by random operations is copied: every query answers the same in the copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant
from msgspec.structs import replace

from tenure.engines import Engine
from tenure.engines.memory import MemoryEngine
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops, queries
from tenure.queue.store_copy import Copy
from tenure.settings import Settings
from tests.simulation.test_same_as_the_model import QUEUES, TENANTS, OnPostgres, SameAsTheModel
from tests.support import audit_postgres, postgres
from tests.support.audit import audit


def everything(engine: Engine) -> dict[str, queries.Found]:
    """What there is to ask, but for what the copy itself changes: the pauses of queues."""
    asked: list[queries.Query] = [queries.ListSchedules()]
    limits: Any = engine.read(queries.ListLimits())
    rated = {one.queue for one in limits if one.rate is not None}  # a copy starts with full buckets
    for queue in QUEUES:
        asked += [queries.ListTenants(queue)]
        asked += [queries.NextDue((queue,))] if queue not in rated else []
        asked += [queries.ListGroups(queue, tenant) for tenant in TENANTS]
    found = {str(query): engine.read(query) for query in asked}
    exported = engine.read(queries.Export())
    assert isinstance(exported, queries.Exported)
    found["jobs"] = replace(exported, cursor=None)
    return found


def stats(engine: Engine) -> list[queries.QueueStats]:
    found: Any = engine.read(queries.GetStats())
    return list(found)


class Copied(SameAsTheModel):
    """From SQLite to PostgreSQL."""

    @invariant()
    def the_whole_state_is_the_same(self) -> None:
        """Not what is tried here: it is compared once, at the end."""

    @contextmanager
    def target(self) -> Iterator[Engine]:
        """Another store, empty, and sound when it is left."""
        folder = Path("copied") / str(os.getpid())
        schema = postgres.schema_of(folder)
        engine = PostgresEngine(postgres.url_of(folder), Settings(), self.clock)
        postgres.empty(schema)
        yield engine
        engine.close()
        assert audit_postgres.audit(postgres.shared_url(), schema) == []

    def teardown(self) -> None:
        self.flush()
        # A lease is taken from its worker, and what is over is ended: not what is compared here.
        self.engine.apply([ops.Maintain()])
        limits = self.engine.read(queries.ListLimits())
        paused = {one.queue for one in stats(self.engine) if one.paused}
        with self.target() as target:
            Copy(self.engine, target, self.clock).run("requeue")
            assert everything(target) == everything(self.engine)
            assert target.read(queries.ListLimits()) == limits
            assert stats(target) == [
                replace(one, paused=one.queue in paused) for one in stats(self.engine)
            ]
        super().teardown()


class CopiedToSqlite(Copied, OnPostgres):
    """From PostgreSQL to SQLite."""

    place = Path("copied-from")

    @contextmanager
    def target(self) -> Iterator[Engine]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.db"
            engine = SqliteEngine(path, Settings(), self.clock)
            yield engine
            engine.close()
            assert audit(path) == []


class CopiedToMemory(Copied):
    """From SQLite to memory."""

    @contextmanager
    def target(self) -> Iterator[Engine]:
        yield MemoryEngine(self.clock)


_SETTINGS = settings(
    max_examples=5,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCopied = Copied.TestCase
TestCopied.settings = _SETTINGS
TestCopiedToSqlite = CopiedToSqlite.TestCase
TestCopiedToSqlite.settings = _SETTINGS
TestCopiedToMemory = CopiedToMemory.TestCase
TestCopiedToMemory.settings = settings(_SETTINGS, max_examples=8)
