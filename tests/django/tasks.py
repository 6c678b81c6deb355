"""The tasks of the project."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import Any, NoReturn

from asgiref.sync import sync_to_async
from django.db import connection, connections

import tenure
from tenure.django.framework import TaskContext, task


class Refused(Exception):
    """An error that has a module of its own."""


@task()
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def add_async(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


@task()
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs}


@task(queue_name="mail", priority=7)
def send(to: str) -> str:
    return to


@task()
def fail() -> NoReturn:
    raise ValueError("this cannot be")


@task()
async def fail_async() -> NoReturn:
    raise Refused("not today")


@task()
def leave() -> NoReturn:
    raise SystemExit("it left")


@task()
def returns_what_is_not_json() -> datetime:
    return datetime.now(UTC)


@task()
def returns_too_much() -> str:
    return "x" * 2_000_000


@task(takes_context=True)
def describe(context: TaskContext, word: str) -> list[Any]:
    result = context.task_result
    return [word, context.attempt, result.id, str(result.status), result.worker_ids]


@task(takes_context=True)
async def fail_until(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise Refused(f"attempt {context.attempt}")
    return int(context.attempt)


@task()
def ask_for(outcome: str) -> Any:
    """What a task of Tenure may raise or return."""
    if outcome == "snooze":
        raise tenure.Snooze(3600)
    if outcome == "cancel":
        raise tenure.Cancel("no need")
    if outcome == "dead":
        return tenure.Dead("never")
    return tenure.Retry(reason="once more")


def _count() -> int:
    return 1


@task()
async def wait_for_approval() -> list[Any]:
    run = tenure.current_job()
    return [await run.step(_count), await run.wait_for("approval")]


@task()
def wait_for_approval_in_a_thread() -> list[Any]:
    run = tenure.current_job()
    return [run.step(_count), run.wait_for("approval")]


@task()
async def wait_for_ever() -> None:
    await asyncio.sleep(3600)


@task()
def where() -> str:
    return threading.current_thread().name


@task()
async def where_async() -> str:
    return threading.current_thread().name


@task()
def progress() -> int:
    job = tenure.current_job()
    job.progress(50, "halfway")
    return job.job.attempts


@task()
def count_orders() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return int(cursor.fetchone()[0])


@task()
def connection_is_open() -> bool:
    return connection.connection is not None


@task()
def is_in_transaction() -> bool:
    return bool(connection.in_atomic_block)


@task()
def hang_in_a_transaction() -> NoReturn:
    """As if it were interrupted where Django has begun one and does not know it yet."""
    connection.ensure_connection()
    try:
        while True:
            time.sleep(0.01)
    finally:
        connection.in_atomic_block = True


@task()
async def count_orders_async() -> int:
    return int(await sync_to_async(count_orders.func)())


used: list[Any] = []  # connections that the task below has had


@task()
async def keep_connection(then: str) -> None:
    def use() -> None:
        connection.ensure_connection()
        used.append(connections["default"])

    await sync_to_async(use)()
    if then == "fail":
        raise Refused(then)


def undecorated() -> None:
    """Not a task."""


hidden = task()(undecorated)  # a task, but not under the name of its function
