"""The server: connecting, creating and migrating the schema, and translating its errors."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import Identifier

from tenure.engines.postgres.postgres_statements import Statements, statements
from tenure.engines.postgres.session import Db
from tenure.errors import (
    Busy,
    InvalidInput,
    NotAStore,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRejected,
    TenureError,
    WrongVersion,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Detect a connection whose other end is gone within a minute or two.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "fallback_application_name": "tenure",
    "client_encoding": "utf8",
}
LOCK_WAIT = "10s"  # of a migration
# CockroachDB says its own name, Aurora DSQL no more than "PostgreSQL 16".
_POSTGRESQL = re.compile(r"PostgreSQL \d.* on .*compiled by")
_OTHERS = re.compile(r"-YB-|Redshift|Greenplum|Materialize|RisingWave|QuestDB|openGauss")
_NOT_YET = ("starting up", "shutting down", "recovery mode", "not yet accepting")


class Address(NamedTuple):
    """The database and schema that a URL refers to."""

    shown: str  # without the password
    parameters: dict[str, Any]
    schema: str

    @property
    def statements(self) -> Statements:
        return statements(self.schema)


def address_of(url: str) -> Address:
    """Parse postgresql://user:password@host/database?schema=name."""
    base, _, text = url.partition("?")
    query = parse_qsl(text, keep_blank_values=True)
    schema = dict(query).get("schema", "tenure")
    if not _NAME.fullmatch(schema):
        raise InvalidInput(
            "url", f"schema={schema} must consist of a-z, 0-9 and _, and not start with a digit"
        )
    rest = [(name, value) for name, value in query if name != "schema"]
    try:
        given = conninfo_to_dict(f"{base}?{urlencode(rest, quote_via=quote)}" if rest else base)
    except psycopg.ProgrammingError as error:
        raise InvalidInput("url", f"is not a valid PostgreSQL URL: {error}") from None
    host, port, database = given.get("host", ""), given.get("port", ""), given.get("dbname", "")
    where = f"{host}:{port}" if port else str(host)
    return Address(f"postgresql://{where}/{database}", {**_DEFAULTS, **given}, schema)


def connect(address: Address) -> Connection:
    """A connection in autocommit mode that keeps no state between transactions, so that it works
    behind a pooler."""
    return psycopg.connect(
        **address.parameters, autocommit=True, prepare_threshold=None
    )  # fmt: skip


def may_come_up(error: psycopg.Error) -> bool:
    """Whether a server that rejects connections says that it will soon accept them."""
    return any(text in str(error) for text in _NOT_YET)


# Classes of errors caused by the parameters of a statement, not by the server.
_REJECTED = ("21", "22", "23", "54")


def meaning(error: psycopg.Error, address: Address) -> TenureError:
    """Translate a server error to one of Tenure's."""
    where, why = address.shown, error.diag.message_primary or str(error).strip()
    if isinstance(error, pg.LockNotAvailable | pg.DeadlockDetected | pg.SerializationFailure):
        return Busy(f"{where}: blocked by another transaction; nothing was changed: {why}")
    if isinstance(error, pg.DiskFull):
        return StoreFull(f"{where}: the disk is full; nothing was changed: free some space")
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return StoreReadOnly(f"{where} cannot be written to: is it a standby?")
    if isinstance(error, pg.InsufficientPrivilege):
        return StoreReadOnly(
            f"{where}: the role lacks a privilege: {why}; nothing was changed. It needs: "
            f"{grants(address)}"
        )
    if isinstance(error, pg.UndefinedTable | pg.UndefinedFunction | pg.InvalidSchemaName):
        return NotAStore(
            f"{where}: schema {address.schema} is not Tenure's or is incomplete: {why}"
        )
    if isinstance(error, psycopg.DataError) or (error.sqlstate or "").startswith(_REJECTED):
        return StoreRejected(f"{where}: {why}; nothing was changed")
    return StoreError(f"{where}: {why}")


def grants(address: Address) -> str:
    """The GRANT statements for a role that uses the schema."""
    schema, role = address.schema, Identifier(str(address.parameters.get("user", "app")))
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {{0}}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {{0}}; "
        f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {{0}};"
    ).format(role.as_string(None))


def is_postgresql(version: str) -> bool:
    """Whether a server whose version() is this text is PostgreSQL, or only speaks its protocol."""
    return _POSTGRESQL.match(version) is not None and not _OTHERS.search(version)


def _first_look(address: Address, connection: Connection) -> tuple[int, str]:
    """What `version_of` returns. Raises InvalidInput for a server that is not PostgreSQL: it may
    accept the schema, but its locks do nothing, so that two workers could get the same token."""
    row = connection.execute("SELECT version()").fetchone()
    version = "" if row is None else str(row[0])
    if not is_postgresql(version):
        raise InvalidInput(
            "url",
            f"{address.shown} is not PostgreSQL, but only speaks its protocol: its version() is "
            f"{version!r:.200}. Tenure needs the locks of PostgreSQL itself",
        )
    return version_of(address, Db(connection, address.statements.sql))


def version_of(address: Address, db: Db) -> tuple[int, str]:
    """The version of the schema (0 if there is none yet) and the store's unique id. Raises
    WrongVersion for a schema of the time before the first release."""
    if not db.value("has_schema"):
        return 0, ""
    row = db.one("version")
    if row is None:
        raise NotAStore("the schema has Tenure's tables, but no schema version")
    if row[0] is None:
        raise WrongVersion(
            f"{address.shown}: schema {address.schema} is of a Tenure before its first release, "
            "which this one cannot read; nothing was changed. Finish its jobs with the Tenure that "
            "made it, then use another schema (?schema=name), or delete this one: "
            f"DROP SCHEMA {address.schema} CASCADE"
        )
    return row[0], row[1]


class Opened(NamedTuple):
    """A schema of the newest version."""

    store: str  # the store's unique id
    before: int  # the version it had before
    after: int


def migrate(address: Address, connection: Connection) -> Opened:
    """Migrate the schema to the newest version in one transaction, one process at a time."""
    schema, sql = address.statements
    db, newest = Db(connection, sql), max(schema)
    version, store = _first_look(address, connection)
    before = version
    if version < newest:
        try:
            with connection.transaction():
                db.send("one_at_a_time")
                db.send("wait_at_most", LOCK_WAIT)  # DDL blocks everyone behind it
                if not db.value("has_namespace"):
                    db.send("make_schema")
                before, _ = version_of(address, db)
                for step in range(before + 1, newest + 1):
                    connection.execute(schema[step].encode())
                    db.send("set_version", step)
                version, store = version_of(address, db)
        except pg.InsufficientPrivilege as error:
            raise StoreReadOnly(_how_to_migrate(address, db, version, newest, error)) from error
    refuse_newer(address, version)
    return Opened(store, before, newest)


def refuse_newer(address: Address, version: int) -> None:
    newest = max(address.statements.schema)
    if version > newest:
        raise WrongVersion(
            f"{address.shown} has schema version {version}; this Tenure knows up to {newest}: "
            "upgrade Tenure"
        )


def _how_to_migrate(
    address: Address, db: Db, version: int, newest: int, error: psycopg.Error
) -> str:
    """What to do if the role is not allowed to migrate."""
    role, database, owner = db.all("who_is_who", address.schema)[0]
    if owner is None:
        command = f"GRANT CREATE ON DATABASE {Identifier(database).as_string(None)} TO "
        command += f"{Identifier(role).as_string(None)};"
        return (
            f"{address.shown}: role {role} may not create the schema {address.schema} ({error}). "
            f"Run {command} or run `tenure migrate` as a role that may"
        )
    return (
        f"{address.shown}: role {role} may not migrate the schema {address.schema} from version "
        f"{version} to {newest} ({error}). Run `tenure migrate` as its owner, {owner}, or run "
        "what `tenure migrate --sql` prints"
    )


def upgrade(url: str) -> tuple[int, int]:
    """Create or migrate the schema. Returns the versions before and after."""
    address = address_of(url)
    try:
        with connect(address) as connection:
            _, before, after = migrate(address, connection)
    except psycopg.Error as error:
        raise meaning(error, address) from error
    return before, after


def exists(url: str) -> bool:
    """Whether the database has the schema."""
    address = address_of(url)
    try:
        with connect(address) as connection:
            version, _ = _first_look(address, connection)
    except psycopg.Error as error:
        raise meaning(error, address) from error
    return version > 0


def upgrade_sql(url: str) -> str:
    """The SQL that `upgrade` would execute now, as one transaction for psql."""
    address = address_of(url)
    schema, sql = address.statements
    try:
        with connect(address) as connection:
            version, _ = _first_look(address, connection)
    except psycopg.Error as error:
        raise meaning(error, address) from error
    refuse_newer(address, version)
    newest = max(schema)
    parts = [f"-- {address.shown}, schema {address.schema}: from version {version} to {newest}"]
    if version < newest:
        parts += ["BEGIN;", f"{sql['one_at_a_time'].decode()};", f"{sql['make_schema'].decode()};"]
        parts.append(f"SET LOCAL lock_timeout = '{LOCK_WAIT}';")
    for step in range(version + 1, newest + 1):
        parts.append(schema[step].strip())
        parts.append(f"UPDATE {address.schema}.about SET schema_version = {step};")
    if version < newest:
        parts.append("COMMIT;")
    return "\n".join(parts)
