"""The server: connecting to it, making and migrating the schema, and what its errors mean."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from tenure.engines.postgres.db import Db
from tenure.engines.postgres.statements import Statements, statements
from tenure.errors import (
    Busy,
    InvalidInput,
    NotAStore,
    StoreError,
    StoreFull,
    StoreReadOnly,
    TenureError,
    WrongVersion,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# A connection whose other end is gone shall be noticed within a minute or two.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "fallback_application_name": "tenure",
    "client_encoding": "utf8",
}
_NOT_YET = ("starting up", "shutting down", "recovery mode", "not yet accepting")


class Address(NamedTuple):
    """What a URL says: the database, and the schema in it."""

    shown: str  # without the password
    parameters: dict[str, Any]
    schema: str

    @property
    def statements(self) -> Statements:
        return statements(self.schema)


def address_of(url: str) -> Address:
    """The address that postgresql://user:password@host/database?schema=name means."""
    base, _, text = url.partition("?")
    query = parse_qsl(text, keep_blank_values=True)
    schema = dict(query).get("schema", "tenure")
    if not _NAME.fullmatch(schema):
        raise InvalidInput(
            "url", f"schema={schema} must be small letters, digits and _, and no digit first"
        )
    rest = [(name, value) for name, value in query if name != "schema"]
    try:
        given = conninfo_to_dict(f"{base}?{urlencode(rest)}" if rest else base)
    except psycopg.ProgrammingError as error:
        raise InvalidInput("url", f"is not one that PostgreSQL knows: {error}") from None
    host, port, database = given.get("host", ""), given.get("port", ""), given.get("dbname", "")
    where = f"{host}:{port}" if port else str(host)
    return Address(f"postgresql://{where}/{database}", {**_DEFAULTS, **given}, schema)


def connect(address: Address) -> Connection:
    """A connection that leaves transactions to us and keeps nothing between them, so that a
    pooler may stand between."""
    return psycopg.connect(
        **address.parameters, autocommit=True, prepare_threshold=None
    )  # fmt: skip


def may_come_up(error: psycopg.Error) -> bool:
    """Whether a server that does not let us in says that it soon will."""
    return any(text in str(error) for text in _NOT_YET)


def meaning(error: psycopg.Error, address: Address) -> TenureError:
    """An error of the server as one of Tenure's."""
    where, why = address.shown, str(error).strip()
    if isinstance(error, pg.LockNotAvailable | pg.DeadlockDetected | pg.SerializationFailure):
        return Busy(f"{where}: another transaction stayed in the way; nothing was changed: {why}")
    if isinstance(error, pg.DiskFull):
        return StoreFull(f"{where}: the disk is full; nothing was changed: free some space")
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return StoreReadOnly(f"{where} cannot be written to: is it a standby?")
    if isinstance(error, pg.InsufficientPrivilege):
        return StoreReadOnly(f"{where}: the role lacks a right: {why}; nothing was changed")
    if isinstance(error, pg.UndefinedTable | pg.UndefinedFunction | pg.InvalidSchemaName):
        return NotAStore(f"{where}: schema {address.schema} is not Tenure's, or not whole: {why}")
    return StoreError(f"{where}: {why}")


def version_of(db: Db) -> tuple[int, str]:
    """The version of the schema, 0 where there is none yet, and what tells it from others."""
    if not db.value("has_schema"):
        return 0, ""
    row = db.one("version")
    if row is None:
        raise NotAStore("the schema has Tenure's tables, but not their version")
    return row[0], row[1]


def migrate(address: Address, connection: Connection) -> str:
    """Bring the schema to the newest version, in one transaction, one process at a time; answers
    with what tells the store from others."""
    schema, sql = address.statements
    db, newest = Db(connection, sql), max(schema)
    version, store = version_of(db)
    if version < newest:
        with connection.transaction():
            db.send("one_at_a_time")
            if not db.value("has_namespace"):
                db.send("make_schema")
            version, _ = version_of(db)
            for step in range(version + 1, newest + 1):
                connection.execute(schema[step].encode())
                db.send("set_version", step)
            version, store = version_of(db)
    if version > newest:
        raise WrongVersion(
            f"{address.shown} has schema version {version}; this Tenure knows up to {newest}: "
            "upgrade Tenure"
        )
    return store
