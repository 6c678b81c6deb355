"""A Django database whose file also holds Tenure's tables, so that a job can be part of a Django
transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from django.db import connections

from tenure.engines.sqlite.file import version_of
from tenure.engines.sqlite.sqlite_statements import SCHEMA


class SharedDatabase:
    """An entry of DATABASES, by its alias."""

    def __init__(self, alias: str, wrong: Callable[[str], Exception]) -> None:
        self.alias = alias
        self._wrong = wrong
        if alias not in connections:
            raise wrong(f"database: there is no {alias!r} in DATABASES")
        if connections[alias].vendor != "sqlite":
            raise wrong(f"database: {alias!r} is not SQLite; use 'url' instead")

    @property
    def in_memory(self) -> bool:
        return bool(connections[self.alias].is_in_memory_db())

    @property
    def url(self) -> str:
        """The URL of the store. Computed each time, because tests use another database."""
        if self.in_memory:
            raise self._wrong(
                f"database: {self.alias!r} is in memory, where only its own connection can see it. "
                "In tests use Django's ImmediateBackend or DummyBackend, or give the test database "
                "a file: DATABASES[...]['TEST'] = {'NAME': ...}"
            )
        return f"sqlite:///{quote(str(connections[self.alias].settings_dict['NAME']))}"

    def transaction(self) -> sqlite3.Connection | None:
        """The connection of this thread, if it is in a transaction."""
        database = connections[self.alias]
        if not database.in_atomic_block and database.get_autocommit():
            return None
        database.validate_no_broken_transaction()
        connection: sqlite3.Connection = database.connection
        return connection

    def check_tables(self, connection: sqlite3.Connection) -> None:
        """Raise an error if the tables are missing. They cannot be created inside the transaction,
        which would wait for itself."""
        path = Path(str(connections[self.alias].settings_dict["NAME"]))
        if version_of(path, connection) != max(SCHEMA):
            raise self._wrong(
                f"the tables of Tenure are not in the database {self.alias!r} yet: add "
                "'tenure.django' to INSTALLED_APPS and run `manage.py migrate`"
            )
