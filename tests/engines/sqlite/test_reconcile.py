"""Counters that are wrong in the file, by a bug or by hand, are put right by reconcile, which says
by how much."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tests.support.audit import audit

STATES = ("waiting", "delayed", "ready", "leased", "done", "dead", "cancelled")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    """Two ready jobs in each group of each tenant."""
    with tenure.connect(f"sqlite:///{path}") as queue:
        names = [(tenant, group) for tenant in ("a", "b", "c") for group in ("", "g")]
        for tenant, group in names * 2:
            queue.enqueue("q", tenant=tenant, group=group)
        yield queue


def write(path: Path, statement: str) -> int:
    """Change the file past the engine. Returns how many rows were changed."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).rowcount


def count_one_more(path: Path) -> None:
    """Make all counters of a group, its tenant and its queue wrong."""
    more = ", ".join(f"{state} = {state} + 1" for state in STATES)
    assert write(path, f"UPDATE tenure_tenants SET {more} WHERE tenant = 'b'") == 1
    assert write(path, f"UPDATE tenure_queues SET {more}") == 1
    of_b = "(SELECT id FROM tenure_tenants WHERE tenant = 'b')"
    assert write(path, f"UPDATE tenure_lanes SET {more} WHERE tenant = {of_b} AND grp = 'g'") == 1


WRONG_BY_ONE = dict.fromkeys(STATES, -1)


@pytest.mark.parametrize("scope", [{}, {"tenant": "b"}, {"tenant": "b", "group": "g"}])
def test_every_counter_of_a_scope_is_put_right(
    queue: tenure.Queue, path: Path, scope: dict[str, str]
) -> None:
    count_one_more(path)
    assert queue.reconcile("q", **scope) == WRONG_BY_ONE
    assert audit(path) == []
    assert queue.reconcile("q", **scope) == {}


def test_a_recount_of_another_tenant_reports_nothing(queue: tenure.Queue, path: Path) -> None:
    count_one_more(path)
    for tenant in ("a", "c"):
        assert queue.reconcile("q", tenant=tenant) == {}
        assert queue.reconcile("q", tenant=tenant, group="g") == {}


def test_only_counters_that_were_wrong_are_reported(queue: tenure.Queue, path: Path) -> None:
    write(path, "UPDATE tenure_queues SET dead = dead + 3, ready = ready - 1")
    assert queue.reconcile("q") == {"dead": -3, "ready": 1}


def test_a_tenant_without_lanes_has_no_jobs(queue: tenure.Queue, path: Path) -> None:
    wrong = ", ".join(["5"] * len(STATES))
    write(
        path,
        f"INSERT INTO tenure_tenants (queue, tenant, stride, {', '.join(STATES)}) "
        f"SELECT id, 'nobody', 1, {wrong} FROM tenure_queues",
    )
    assert queue.reconcile("q", tenant="nobody") == dict.fromkeys(STATES, -5)
    assert audit(path) == []
