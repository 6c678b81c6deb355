"""Tasks: functions that are run later, by a worker."""

from __future__ import annotations

import asyncio

try:
    from django.tasks import task
except ModuleNotFoundError:  # before Django 6: pip install django-tasks
    from django_tasks import task


@task(queue_name="mail")
def send_welcome(name: str) -> str:
    """A plain function runs in a thread, and may use the ORM."""
    return f"Welcome, {name}!"  # here you would send a mail


@task(priority=10)
async def count_visitors(pages: list[str]) -> int:
    """A coroutine runs in the worker's event loop."""
    await asyncio.sleep(0.01)  # here you would ask another service
    return sum(len(page) for page in pages)
