"""The file: opening, checking and migrating it, and translating its errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from tenure.clock import Clock
from tenure.engines.sqlite.sqlite_statements import SCHEMA, SQL
from tenure.errors import (
    Busy,
    InvalidInput,
    NotAStore,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    WrongVersion,
)
from tenure.settings import without_secrets

OLDEST_SQLITE = (3, 35, 0)  # RETURNING
RETRY_SECONDS = 0.005
CACHE_KIB = 16_384
VERSION = "schema_version"  # the name of the counter

_BUSY, _LOCKED, _READONLY, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 11, 13, 14, 26

_TOOBIG, _CONSTRAINT, _MISMATCH, _RANGE = 18, 19, 20, 25
_REJECTED = (_TOOBIG, _CONSTRAINT, _MISMATCH, _RANGE)  # caused by the parameters of a statement


def path_of(url: str) -> Path:
    """The file of sqlite:///relative.db or sqlite:////absolute.db."""
    prefix = "sqlite:///"
    name = unquote(url[len(prefix) :])
    if not url.startswith(prefix) or not name or "?" in url:
        raise InvalidInput(
            "url", f"{without_secrets(url)!r} must be sqlite:///file.db or sqlite:////path/file.db"
        )
    if "\0" in name:
        raise InvalidInput("url", f"{without_secrets(url)!r} contains a NUL character")
    if name == ":memory:":
        raise InvalidInput("url", "for jobs in memory, use memory://")
    return Path(name).absolute()


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate sqlite3's errors to Tenure's."""
    try:
        yield
    except sqlite3.Error as error:
        raise _meaning(error, path) from error


def _meaning(error: sqlite3.Error, path: Path) -> StoreError | Busy:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (_BUSY, _LOCKED):
        return Busy(f"{path} stayed locked by another writer; nothing was changed: try again")
    if code == _FULL:
        return StoreFull(f"{path}: the disk is full; nothing was changed: free some space")
    if code == _READONLY:
        return StoreReadOnly(
            f"{path} cannot be written; check the permissions of the file and folder"
        )
    if code in (_NOTADB, _CORRUPT):
        return NotAStore(f"{path} is not a valid SQLite database: {error}; nothing was changed")
    if code == _CANTOPEN:
        why = "check its permissions"
        if path.is_dir():
            why = "it is a folder"
        elif not path.parent.is_dir():
            why = "the folder does not exist"
        return StoreError(f"{path} cannot be opened: {why}")
    if code in _REJECTED:
        return StoreRejected(f"{path}: {error}; nothing was changed")
    return StoreError(f"{path}: {error}")


def connect(path: Path, busy_timeout: float, *, create: bool = True) -> sqlite3.Connection:
    """A connection in autocommit mode that may be used from any thread."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )


def open_writer(path: Path, busy_timeout: float, clock: Clock) -> sqlite3.Connection:
    """Open the write connection, after creating or migrating the schema. It does not wait for other
    writers by itself."""
    connection, _ = _opened(path, busy_timeout, clock)
    connection.execute("PRAGMA busy_timeout = 0")
    return connection


def upgrade(url: str, busy_timeout: float, clock: Clock) -> tuple[int, int]:
    """Create or migrate the schema. Returns the versions before and after."""
    connection, before = _opened(path_of(url), busy_timeout, clock)
    connection.close()
    return before, max(SCHEMA)


def exists(url: str, busy_timeout: float) -> bool:
    """Whether the file exists and has a schema."""
    path = path_of(url)
    if not path.exists():
        return False
    with translated(path), closing(connect(path, busy_timeout, create=False)) as connection:
        return version_of(path, connection) > 0


def upgrade_sql(url: str, busy_timeout: float) -> str:
    """The SQL that `upgrade` would execute now."""
    path = path_of(url)
    version = 0
    if path.exists():
        with translated(path), closing(connect(path, busy_timeout)) as connection:
            version = version_of(path, connection)
    refuse_newer(path, version)
    lines = [f"-- {path}: from version {version} to {max(SCHEMA)}"]
    for step in range(version + 1, max(SCHEMA) + 1):
        lines += [f"{statement};" for statement in SCHEMA[step]]
        lines.append(f"UPDATE tenure_counters SET value = {step} WHERE name = '{VERSION}';")
    return "\n".join(lines)


def _opened(path: Path, busy_timeout: float, clock: Clock) -> tuple[sqlite3.Connection, int]:
    check_sqlite()
    _create(path)
    with translated(path):
        connection = connect(path, busy_timeout)
        try:
            # Reject files of other programs or versions before writing anything to them.
            refuse_newer(path, version_of(path, connection))
            set_wal(connection, busy_timeout, clock)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            before = migrate(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection, before


def _create(path: Path) -> None:
    """Create the file, if it does not exist, so that only its owner can read it. SQLite gives its
    other files the same permissions."""
    with suppress(OSError):  # SQLite will report it
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def open_reader(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """A read-only connection to an existing file."""
    with translated(path):
        connection = connect(path, busy_timeout, create=False)
        connection.execute("PRAGMA query_only = ON")
    return connection


def check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise WrongVersion(
            f"SQLite {needed} or newer is needed; this Python has {sqlite3.sqlite_version}"
        )


def set_wal(connection: sqlite3.Connection, busy_timeout: float, clock: Clock) -> None:
    """Switch to write-ahead logging. SQLite itself does not wait while others open the file."""
    deadline = clock.monotonic() + busy_timeout
    while True:
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != _BUSY or clock.monotonic() >= deadline:
                raise
            clock.sleep(RETRY_SECONDS)
        else:
            if mode != "wal":
                raise StoreError("SQLite cannot use a write-ahead log here: is it a network disk?")
            return


def version_of(path: Path, connection: sqlite3.Connection) -> int:
    """The version of the schema; 0 if there is none yet. Raises WrongVersion for a file of the time
    before the first release, which has its version under another name."""
    if connection.execute(SQL["has_schema"]).fetchone() is None:
        return 0
    row = connection.execute(SQL["counter"], (VERSION,)).fetchone()
    if row is not None:
        return int(row[0])
    if connection.execute(SQL["counter"], ("version",)).fetchone() is None:
        raise NotAStore(f"{path} has Tenure's tables, but no schema version")
    raise WrongVersion(
        f"{path} is of a Tenure before its first release, which this one cannot read; nothing was "
        "changed. Finish its jobs with the Tenure that made it, then use another file"
    )


def refuse_newer(path: Path, version: int) -> None:
    newest = max(SCHEMA)
    if version > newest:
        raise WrongVersion(
            f"{path} has schema version {version}; this Tenure knows up to {newest}: upgrade Tenure"
        )


def migrate(path: Path, connection: sqlite3.Connection) -> int:
    """Migrate the schema to the newest version in one transaction. Returns the previous version."""
    if version_of(path, connection) == max(SCHEMA):
        return max(SCHEMA)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(path, connection)
        refuse_newer(path, version)
        for step in range(version + 1, max(SCHEMA) + 1):
            for statement in SCHEMA[step]:
                connection.execute(statement)
            connection.execute(SQL["set_counter"], (step, VERSION))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return version
