"""Connections to PostgreSQL that stores use again when earlier ones have closed them, as a pooler
would do it. A server plans the statements of a new connection anew, which costs it several times
what a short test does."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from tenure.engines.postgres import server
from tenure.engines.postgres.server import Address


class Reused(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is kept when it is closed."""

    kept_for: tuple[int, str] | None = None  # the process and the server

    def close(self) -> None:
        is_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        if is_idle and self.kept_for is not None and self.kept_for[0] == os.getpid():
            _FREE[self.kept_for].append(self)
        else:
            super().close()


_FREE: defaultdict[tuple[int, str], list[Reused]] = defaultdict(list)


def connect(address: Address) -> Reused:
    kept_for = os.getpid(), make_conninfo(**address.parameters)
    if _FREE[kept_for]:
        return _FREE[kept_for].pop()
    connection = Reused.connect(**address.parameters, autocommit=True, prepare_threshold=None)
    connection.kept_for = kept_for
    return connection


@pytest.fixture
def reused_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the stores of a test use the connections of earlier ones."""
    monkeypatch.setattr(server, "connect", connect)
