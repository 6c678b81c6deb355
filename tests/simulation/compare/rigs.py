"""The engines, each with several callers whose clocks are wrong, and the traits of each engine."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import psycopg

import tenure
from tenure.clock import Clock
from tenure.engines import Engine, open_shard
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.remote import RemoteEngine
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.members import Members
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.engines.sqlite.oldest import CLOCK_MS
from tenure.model.fields import MAX_CLAIM
from tenure.observe.metrics import Metrics, measured
from tenure.server import checks, payload_sizes
from tenure.server.routes import make_app
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.server.host import host
from tests.simulation.compare.model import Follower, Model, Sweeps
from tests.support import audit_postgres, fdb, postgres
from tests.support.audit import audit
from tests.support.fdb_audit import wrong_keys

RECOVERIES = 0.01  # of the commits meet one


class Skewed:
    """A clock with a constant error. It does not sleep: time moves between steps."""

    def __init__(self, right: ManualClock, by_ms: int) -> None:
        self._right = right
        self.by_ms = by_ms

    def now_ms(self) -> int:
        return self._right.now_ms() + self.by_ms

    def monotonic(self) -> float:
        return self._right.monotonic()

    def sleep(self, seconds: float) -> None:
        pass


class Traits:
    """The properties that an engine declares, and its known differences from the model."""

    def __init__(
        self,
        *,
        store_time: bool = False,
        strict: bool = True,
        transfers: bool = True,
        cheap: bool = True,
        most_back_ms: int = 60_000,
        old_leases: bool = True,
        reuses_keys: bool = True,
        high_tokens: bool = True,
        exact_losses: bool = True,
        one_clock: bool = False,
        sweeps: Sweeps = "for alike",
    ) -> None:
        self.store_time = store_time  # the store's clock is used, not those of the callers
        self.strict = strict  # serves tenants exactly in turn, with one token per claim
        self.transfers = transfers  # can export and import
        self.cheap = cheap  # comparing the whole state is cheap
        self.most_back_ms = most_back_ms  # how far the time may be set back
        self.old_leases = old_leases  # finds leases that had expired when they were imported
        self.exact_losses = (
            exact_losses  # a lost lease names the state at its position in the batch
        )
        self.one_clock = one_clock  # its processes have one clock: they are on one machine
        self.high_tokens = high_tokens  # imports jobs with tokens higher than any given so far
        self.sweeps = sweeps  # when the claims of a batch sweep
        self.reuses_keys = reuses_keys  # a used key may be sent with other operations


class Rig:
    """A store with its callers, and the model to compare it with."""

    def __init__(self, traits: Traits, sweep: int, skews_ms: list[int]) -> None:
        self.traits = traits
        self.skews_ms = skews_ms
        self.clock = ManualClock()
        self.clocks = [Skewed(self.clock, by_ms) for by_ms in skews_ms]
        self.model_clock = ManualClock()
        kind = Model if traits.strict else Follower
        self.model = kind(self.model_clock, sweep, traits.sweeps)
        self.engines: list[Engine] = []
        self.audit: Callable[[], list[str]] = list
        self._closing = ExitStack()

    def on_close(self, call: Callable[[], object]) -> None:
        self._closing.callback(call)

    def add(self, engines: list[Engine]) -> None:
        """Add the handles of the callers."""
        self.engines = engines
        for engine in engines:
            self.on_close(engine.close)

    def set_model_clock(self, caller: int) -> None:
        """Set the model's clock to the time that applies to this caller."""
        clock: Clock = self.clock if self.traits.store_time else self.clocks[caller]
        self.model_clock.advance((clock.now_ms() - self.model_clock.now_ms()) / 1000)

    def age_slack_ms(self, back_ms: int = 0) -> int:
        """By how much the age of the oldest ready job may be wrong if the clock was set back by so
        much; see engines/sqlite/oldest.py."""
        wrong = max(self.skews_ms) - min(self.skews_ms) + back_ms
        return wrong if self.traits.one_clock and wrong > CLOCK_MS else 0

    def ahead_ms(self, caller: int) -> int:
        """By how much due times are shifted to suit the caller's clock."""
        return 0

    def close(self) -> None:
        self._closing.close()


Open = Callable[[int, list[int]], Rig]  # takes the sweep and the skews of the callers


def _folder(rig: Rig) -> Path:
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)
    rig.on_close(folder.cleanup)
    return Path(folder.name)


def sqlite(sweep: int, skews_ms: list[int]) -> Rig:
    """Several handles on one file."""
    rig = Rig(TRAITS["sqlite"], sweep, skews_ms)
    path = _folder(rig) / "jobs.db"
    rig.add([SqliteEngine(path, Settings(sweep=sweep), clock) for clock in rig.clocks])
    rig.audit = partial(audit, path)
    return rig


def shards(sweep: int, skews_ms: list[int]) -> Rig:
    """The engine with shards, on a single one: it must do all that a single store does. What it
    refuses, and whom it serves first if there are several, is in tests/engines/sharded."""
    rig = Rig(TRAITS["shards-one"], sweep, skews_ms)
    path = _folder(rig) / "jobs.db"

    def opened(clock: Clock) -> ShardedEngine:
        settings = Settings(sweep=sweep, url=f"sqlite:///{path}")
        members = Members({"0": settings.url}, spread=False)
        return ShardedEngine.of(members, settings, clock, open_shard)

    rig.add([opened(clock) for clock in rig.clocks])
    rig.audit = partial(audit, path)
    return rig


class OnServerTime(PostgresEngine):
    """A PostgreSQL engine that uses the server's clock, as in production."""

    @property
    def _given(self) -> int | None:
        return None


class ServerClock:
    """The clock of the server, moved by hand: `moment` reads it from a table."""

    def __init__(self, schema: str, clock: ManualClock) -> None:
        self._clock = clock
        self._schema = schema
        self._shown = 0
        self._connection = psycopg.connect(postgres.shared_url(), autocommit=True)
        self._run("CREATE TABLE IF NOT EXISTS {0}.hand (ms bigint)")
        self._run("DELETE FROM {0}.hand; INSERT INTO {0}.hand VALUES (0)")
        self._run(
            "CREATE OR REPLACE FUNCTION {0}.moment(given bigint) RETURNS bigint LANGUAGE sql "
            "VOLATILE AS 'SELECT coalesce(given, (SELECT ms FROM {0}.hand))'"
        )

    def _run(self, statement: str) -> None:
        self._connection.execute(statement.format(self._schema).encode())

    def show(self) -> None:
        """Set the server's clock."""
        now = self._clock.now_ms()
        if now != self._shown:
            self._run(f"UPDATE {{0}}.hand SET ms = {now}")
            self._shown = now

    def close(self) -> None:
        self._connection.close()


POSTGRES_PLACE = Path("compare")


class PostgresRig(Rig):
    """Several machines with one server, whose clock is right."""

    def __init__(self, sweep: int, skews_ms: list[int]) -> None:
        super().__init__(TRAITS["postgres"], sweep, skews_ms)
        schema = postgres.schema_of(POSTGRES_PLACE)
        url = f"{postgres.url_of(POSTGRES_PLACE)}&options=-ctrack_functions%3Dall"
        settings = Settings(sweep=sweep)
        self.add([OnServerTime(url, settings, clock) for clock in self.clocks])
        postgres.empty(schema)
        self._server = ServerClock(schema, self.clock)
        self.on_close(self._server.close)
        self.audit = partial(audit_postgres.audit, postgres.shared_url(), schema)

    def set_model_clock(self, caller: int) -> None:
        super().set_model_clock(caller)
        self._server.show()

    def ahead_ms(self, caller: int) -> int:
        return self.clocks[caller].by_ms


def http(sweep: int, skews_ms: list[int]) -> Rig:
    """A service with metrics on a SQLite file, and its clients."""
    rig = Rig(TRAITS["http"], sweep, skews_ms)
    path = _folder(rig) / "jobs.db"
    metrics = Metrics(tenants=True)
    queue = tenure.connect(
        f"sqlite:///{path}",
        settings=Settings(sweep=sweep),
        clock=rig.clock,
        wrap=partial(measured, metrics),
    )
    # A service gives out fewer jobs than a claim asks for if they may be large. The model does not.
    for module, name, most in (
        (checks, "CLAIM_BYTES", 2**50),
        (payload_sizes, "UNKNOWN_CLAIM", MAX_CLAIM),
    ):
        unbounded = mock.patch.object(module, name, most)
        unbounded.start()
        rig.on_close(unbounded.stop)
    service = make_app(queue, metrics=metrics)
    name = f"compare-{len(host().services)}"
    host().services[name] = service
    rig.on_close(queue.close)
    rig.on_close(service.news.close)
    rig.on_close(partial(host().services.pop, name))
    url = f"{host().url}/{name}"
    rig.add([RemoteEngine(url, Settings(), clock) for clock in rig.clocks])
    rig.audit = partial(audit, path)
    return rig


def foundationdb(sweep: int, skews_ms: list[int], *, faults: bool = False) -> Rig:
    """Several clients of one simulated cluster, which recovers now and then: versions jump."""
    rig = Rig(TRAITS["foundationdb"], sweep, skews_ms)
    cluster = fdb_sim.Cluster(ManualClock())
    wrong = [fdb.faults(n) if faults else fdb_sim.Faults(n) for n in range(len(skews_ms))]
    rig.add(
        [
            FoundationDbEngine(
                fdb_sim,
                fdb_sim.open(cluster, faults=replace(wrong[n], recovery=RECOVERIES)),
                Settings(sweep=sweep),
                clock,
                hybrid=False,
                chance=random.Random(n),
                aside_from=1 + n % 2 * 3,
                near_from=1 + n % 2 * 7,
            )
            for n, clock in enumerate(rig.clocks)
        ]
    )
    rig.audit = lambda: wrong_keys(fdb_sim.open(cluster))
    return rig


TRAITS: dict[str, Traits] = {
    "sqlite": Traits(one_clock=True),
    "shards-one": Traits(one_clock=True),
    # Jobs set back by more than 2 s are found only by maintenance: is_due in claiming.sql.
    "postgres": Traits(store_time=True, most_back_ms=1_500, exact_losses=False, sweeps="for all"),
    "http": Traits(store_time=True, transfers=False),
    "foundationdb": Traits(strict=False, cheap=False, sweeps="together"),
}
RIGS: dict[str, Open] = {
    "sqlite": sqlite,
    "shards-one": shards,
    "postgres": PostgresRig,
    "http": http,
    "foundationdb": foundationdb,
    "foundationdb-faults": partial(foundationdb, faults=True),
}
TRAITS["foundationdb-faults"] = TRAITS["foundationdb"]
