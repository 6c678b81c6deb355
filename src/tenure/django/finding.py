"""Finding a task by its module path, which is all that a job stores."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.utils.module_loading import import_string

from tenure.django.framework import InvalidTask, Task


class NotATask(ImportError):
    """The object at this path is not a Django task."""


class NoSuchTask(ImportError):
    """There is nothing at this path: another release of the project, or another program on the same
    queue, may have a task of this name."""


def find_task(path: str) -> Any:
    """Return the task with this module path. Raises NoSuchTask, ImportError, or what its module
    raises."""
    if "." not in path:
        raise NoSuchTask(f"{path} is not a module path")
    try:
        found = import_string(path)
    except ImportError as error:
        if _is_missing(path, error):
            raise NoSuchTask(str(error)) from None
        raise
    if not isinstance(found, Task):  # a job can name any object; only run declared tasks
        raise NotATask(f"{path} is not a Django task: decorate it with @task")
    return found


def _is_missing(path: str, error: ImportError) -> bool:
    """Whether the module or its attribute does not exist, rather than something that the module
    imports."""
    if isinstance(error, ModuleNotFoundError):
        return error.name is not None and f"{path}.".startswith(f"{error.name}.")
    return isinstance(error.__cause__, AttributeError)


def find_task_from_loop(path: str) -> Any:
    """Like `find_task`, for use in an event loop: imports the module in a thread, so that it can
    use the ORM."""
    if path.rpartition(".")[0] in sys.modules:
        return find_task(path)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(find_task, path).result()


def check_can_be_found(task: Any) -> None:
    """Raise InvalidTask if a worker could not find the task."""
    path = task.module_path
    if task.func.__module__ == "__main__":
        raise InvalidTask(f"{path}: a worker cannot import __main__; move the task to a module.")
    try:
        found = find_task(path)
    except ImportError as error:
        raise InvalidTask(f"A worker could not find the task: {error}") from None
    if found.func is not task.func:
        raise InvalidTask(f"A worker would find another task under {path}.")
