"""OPTIONS = {"database": ...}: a call is part of the transaction of Django's that it is made in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import override_settings

from tenure.django.framework import InvalidTaskBackend, TaskResultDoesNotExist
from tests.django import tasks
from tests.django.project import Project


class Undo(Exception):
    """Rolls a transaction back."""


@contextmanager
def undone() -> Iterator[None]:
    """A transaction that comes to nothing."""
    with suppress(Undo), transaction.atomic():
        yield
        raise Undo


@pytest.fixture
def backends(database: Path) -> dict[str, Any]:
    options = {"database": "default", "max_attempts": 1}
    return {"default": {"BACKEND": "tenure.django.TenureBackend", "OPTIONS": options}}


@pytest.fixture
def shop(project: Project) -> Project:
    """A project whose database has been migrated."""
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id TEXT)")
    return project


def order(id: str = "order-1") -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [id])


def orders() -> int:
    return int(tasks.count_orders.func())


def jobs(project: Project) -> list[str]:
    return [job.id for job in project.queue.jobs().jobs]


def test_a_commit_brings_both(shop: Project) -> None:
    with transaction.atomic():
        order()
        result = tasks.count_orders.enqueue()
        assert jobs(shop) == []
    assert jobs(shop) == [result.id]
    shop.work()
    result.refresh()
    assert result.return_value == 1


def test_a_rollback_takes_both_back(shop: Project) -> None:
    with undone():
        order()
        result = tasks.add.enqueue(1)
    assert (orders(), jobs(shop)) == (0, [])
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_the_call_may_come_first(shop: Project) -> None:
    with undone():
        tasks.add.enqueue(1)
        order()
    assert (orders(), jobs(shop)) == (0, [])


def test_an_inner_block_is_taken_back_alone(shop: Project) -> None:
    with transaction.atomic():
        kept = tasks.add.enqueue(1)
        with undone():
            tasks.add.enqueue(2)
    assert jobs(shop) == [kept.id]


def test_without_a_transaction_it_is_there_at_once(shop: Project) -> None:
    result = tasks.add.enqueue(1)
    assert jobs(shop) == [result.id]


def test_a_transaction_begun_by_hand_counts(shop: Project) -> None:
    transaction.set_autocommit(False)
    try:
        order()
        tasks.add.enqueue(1)
        transaction.rollback()
        assert (orders(), jobs(shop)) == (0, [])
        transaction.rollback()
        order()
        tasks.add.enqueue(1)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert (orders(), len(jobs(shop))) == (1, 1)


def test_an_awaited_call_in_a_transaction_is_part_of_it(shop: Project) -> None:
    with undone():
        order()
        async_to_sync(tasks.add.aenqueue)(1)
    assert (orders(), jobs(shop)) == (0, [])


def test_an_awaited_call_outside_is_there_at_once(shop: Project) -> None:
    result = asyncio.run(tasks.add.aenqueue(1))
    assert jobs(shop) == [result.id]
    assert asyncio.run(tasks.add.aget_result(result.id)) == result


def test_a_broken_transaction_takes_no_calls(shop: Project) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            tasks.add.enqueue(1)
    assert jobs(shop) == []


def test_a_process_that_begins_with_a_transaction_can_enqueue(shop: Project) -> None:
    with shop.options(max_attempts=2), transaction.atomic():  # the store is closed here
        order()
        tasks.add.enqueue(1)
    assert len(jobs(shop)) == 1


def test_without_the_tables_a_transaction_is_told_how_to_make_them(project: Project) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id TEXT)")
    with transaction.atomic():
        order()
        with pytest.raises(InvalidTaskBackend, match=r"run `manage\.py migrate`"):
            tasks.add.enqueue(1)
    tasks.add.enqueue(1)  # outside of one they are made
    assert len(jobs(project)) == 1


def test_a_database_in_memory_cannot_be_shared(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", ":memory:")
    with pytest.raises(InvalidTaskBackend, match="is in memory"):
        tasks.add.enqueue(1)
    call_command("migrate", verbosity=0)  # as a test run does, whose tests may not even enqueue


def test_an_unknown_database_is_refused(project: Project) -> None:
    with (
        project.options(database="other"),
        pytest.raises(InvalidTaskBackend, match="no 'other' in DATABASES"),
    ):
        tasks.add.enqueue(1)


def test_another_database_than_sqlite_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "vendor", "postgresql")
    with pytest.raises(InvalidTaskBackend, match="is not SQLite"):
        tasks.add.enqueue(1)


def test_a_name_that_a_url_would_change_is_found(project: Project, tmp_path: Path) -> None:
    connection.close()
    connection.settings_dict["NAME"] = tmp_path / "50%25 & more?.db"
    tasks.add.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tenure_jobs")
        assert cursor.fetchone() == (1,)


def test_the_check_warns_of_a_file_that_is_shared_without_saying_so(
    project: Project, database: Path
) -> None:
    assert project.backend().check() == []
    shared = {
        "default": {
            "BACKEND": "tenure.django.TenureBackend",
            "OPTIONS": {"url": f"sqlite:///{database}"},
        }
    }
    with override_settings(TASKS=shared):
        (warning,) = project.backend().check()
        assert warning.id == "tenure.W001"
        assert "DATABASES['default']" in warning.msg
        assert "{'database': 'default'}" in warning.hint
