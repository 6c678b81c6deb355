"""The engine contract, and opening an engine by its URL.

An engine runs operations; it knows nothing about tasks, HTTP or workers. The committer has as many
batches in progress as `in_flight` says, and besides them renewals of leases and outcomes that are
sent again. `apply` and `read` may be called from any thread at any time.

The modules of an engine are imported when a store of its kind is opened, so `import tenure` is
quick and only needs the libraries of engines that are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.engines.sharded.members import SCHEME, is_sharded, members_of
from tenure.errors import InvalidInput
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.settings import Settings, without_secrets


class Engine(Protocol):
    """The interface of every store."""

    @property
    def in_flight(self) -> int:
        """How many batches may be applied at once. More than one only if batches do not block each
        other; concurrent batches do not see each other's changes."""

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        """Run the operations in order and return the result of each. Every operation is atomic, and
        durable before this returns. One that fails returns its error and changes nothing. Raises
        StoreError if nothing of the batch happened."""

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        """Like `apply`, inside the caller's own transaction on `connection`. The caller commits or
        rolls back."""

    def read(self, query: Query) -> Found:
        """Read from one snapshot."""

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` from a thread of the engine soon after another process changed something.
        Spurious calls are possible. Returns a function that stops it."""

    def close(self) -> None:
        """Release all resources. The engine must not be used afterwards."""


@runtime_checkable
class Recording(Protocol):
    """A store that records its results where an interrupted caller still finds them."""

    def apply_to(self, batch: Sequence[Op], answers: list[Answer]) -> None:
        """Like `apply`, but append the results to a list before the commit. If an exception is
        raised, they are in the list only if the batch was committed: a signal came afterwards."""


@runtime_checkable
class ClaimsAtOnce(Protocol):
    """A store that may gain from several claims of one queue at the same time."""

    @property
    def claims_at_once(self) -> bool:
        """Whether such claims can run beside each other, rather than one after the other."""


PartOf = Callable[[Sequence[Op]], int | None]


def parts_of(engine: Engine) -> PartOf | None:
    """What tells which one part of a store a batch concerns, if the store has parts that can be
    slow or away by themselves; it returns None if there are several, or if that is not known.
    It does not wait, and never raises."""
    found: PartOf | None = getattr(engine, "part_of", None)
    return found


@runtime_checkable
class HasLog(Protocol):
    """A store whose write-ahead log is on this machine and can grow."""

    def log_bytes(self) -> int | None:
        """The size of the log in bytes; None if it turns out to have none."""


@runtime_checkable
class HasShards(Protocol):
    """Several stores, some of which may be away."""

    def away(self) -> dict[str, str]:
        """The names of the shards that are away, and why."""


def _open_memory(url: str, settings: Settings, clock: Clock) -> Engine:
    from tenure.engines.memory.engine import MemoryEngine

    return MemoryEngine.open(url, settings, clock)


def _open_sqlite(url: str, settings: Settings, clock: Clock) -> Engine:
    from tenure.engines.sqlite.engine import SqliteEngine

    return SqliteEngine.open(url, settings, clock)


def _open_postgres(url: str, settings: Settings, clock: Clock) -> Engine:
    with _psycopg_for(url):
        from tenure.engines.postgres.engine import PostgresEngine
    return PostgresEngine.open(url, settings, clock)


@contextmanager
def _psycopg_for(url: str) -> Iterator[None]:
    """Turn a missing psycopg into an error that says what to install."""
    try:
        yield
    except ImportError as error:
        if (error.name or "psycopg").partition(".")[0] != "psycopg":
            raise
        raise InvalidInput(
            "url",
            f"{without_secrets(url)!r} needs psycopg: pip install 'tenure[postgresql]' ({error})",
        ) from None


def _open_foundationdb(url: str, settings: Settings, clock: Clock) -> Engine:
    from tenure.engines.foundationdb.engine import FoundationDbEngine

    return FoundationDbEngine.open(url, settings, clock)


def _open_remote(url: str, settings: Settings, clock: Clock) -> Engine:
    from tenure.engines.remote import RemoteEngine

    return RemoteEngine.open(url, settings, clock)


def _open_sharded(url: str, settings: Settings, clock: Clock) -> Engine:
    """Import the engine only when it is used, since few use it."""
    from tenure.engines.sharded.engine import ShardedEngine

    return ShardedEngine.open(replace(settings, url=url), clock, open_shard)


ENGINES: dict[str, Callable[[str, Settings, Clock], Engine]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "fdb": _open_foundationdb,
    "http": _open_remote,
    "https": _open_remote,
    SCHEME: _open_sharded,
}


def open_shard(settings: Settings, clock: Clock) -> Any:
    """Open one of several shards: a store that has fences."""
    return open_engine(settings, clock)


def open_engine(settings: Settings, clock: Clock) -> Engine:
    """Open the engine for the URL."""
    return ENGINES[_scheme_of(settings.url)](settings.url, settings, clock)


def stores_of(settings: Settings) -> list[Settings]:
    """The settings of each shard; of the store itself, if it is a single one."""
    if _scheme_of(settings.url) != SCHEME:
        return [settings]
    return [replace(settings, url=url) for url in members_of(settings.url).urls.values()]


def _scheme_of(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme == "postgres":  # libpq takes both
        scheme = "postgresql"
    if scheme in ("sqlite", "postgresql") and is_sharded(url):
        return SCHEME
    if scheme not in ENGINES:
        known = ", ".join(f"{name}://" for name in ENGINES)
        raise InvalidInput("url", f"{without_secrets(url)!r} must begin with one of {known}")
    return scheme


def exists(settings: Settings) -> bool:
    """Whether there is a store at the URL: opening it would not create one."""
    if _scheme_of(settings.url) == SCHEME:
        return any(exists(one) for one in stores_of(settings))
    match _scheme_of(settings.url):
        case "sqlite":
            from tenure.engines.sqlite import file

            return file.exists(settings.url, settings.busy_timeout)
        case "postgresql":
            with _psycopg_for(settings.url):
                from tenure.engines.postgres import server
            return server.exists(settings.url)
        case "fdb":
            from tenure.engines.foundationdb.engine import FoundationDbEngine

            return FoundationDbEngine.exists(settings.url, settings.busy_timeout, SystemClock())
    return True


def migrate(settings: Settings, clock: Clock) -> tuple[int, int] | None:
    """Create the store's schema or bring it up to date. Returns the versions before and after, or
    None if the store has no schema. Of shards, the oldest version."""
    if _scheme_of(settings.url) == SCHEME:
        done = [versions for one in stores_of(settings) if (versions := migrate(one, clock))]
        return min(done, default=None)
    match _scheme_of(settings.url):
        case "sqlite":
            from tenure.engines.sqlite import file

            return file.upgrade(settings.url, settings.busy_timeout, clock)
        case "postgresql":
            with _psycopg_for(settings.url):
                from tenure.engines.postgres import server
            return server.upgrade(settings.url)
    return None


def migration_sql(settings: Settings) -> str | None:
    """The SQL that `migrate` would execute now, to review it or run it by hand. Raises InvalidInput
    for shards: each needs its own."""
    if _scheme_of(settings.url) == SCHEME:
        raise InvalidInput("url", "give the URL of one shard: each may need different statements")
    match _scheme_of(settings.url):
        case "sqlite":
            from tenure.engines.sqlite import file

            return file.upgrade_sql(settings.url, settings.busy_timeout)
        case "postgresql":
            with _psycopg_for(settings.url):
                from tenure.engines.postgres import server
            return server.upgrade_sql(settings.url)
    return None
