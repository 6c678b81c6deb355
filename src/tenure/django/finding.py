"""Finding a task by its module path, which is all that a job knows of it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.utils.module_loading import import_string

from tenure.django.framework import InvalidTask, Task


class NotATask(ImportError):
    """There is something under this path, but it is not a Django task."""


def find_task(path: str) -> Any:
    """The task with this module path; raises ImportError, or what its module raises."""
    found = import_string(path)
    if not isinstance(found, Task):  # a store may name anything; only what was declared is run
        raise NotATask(f"{path} is not a Django task: decorate it with @task")
    return found


def find_task_from_loop(path: str) -> Any:
    """The same in an event loop, where a module that is imported could not use the ORM."""
    if path.rpartition(".")[0] in sys.modules:
        return find_task(path)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(find_task, path).result()


def check_can_be_found(task: Any) -> None:
    """Refuse a task here that no worker could find; raises InvalidTask."""
    path = task.module_path
    if task.func.__module__ == "__main__":
        raise InvalidTask(f"{path}: a worker cannot import __main__; move the task to a module.")
    try:
        found = find_task(path)
    except ImportError as error:
        raise InvalidTask(f"A worker could not find the task: {error}") from None
    if found.func is not task.func:
        raise InvalidTask(f"A worker would find another task under {path}.")
