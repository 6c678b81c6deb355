"""Calls to several shards at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Threads:
    """Threads that are started when they are needed, again in each process after a fork."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call with each item at once, the first in the caller's thread."""
        if len(items) == 1:
            return [call(items[0])]
        others: list[Future[R]] = [self._started().submit(call, item) for item in items[1:]]
        first = [call(item) for item in items[:1]]
        return first + [other.result() for other in others]

    def submit(self, call: Callable[[T], R], item: T) -> Future[R]:
        return self._started().submit(call, item)

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool[0] != os.getpid():
            pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            self._pool = (os.getpid(), pool)
        return self._pool[1]

    def close(self) -> None:
        if self._pool is not None and self._pool[0] == os.getpid():
            self._pool[1].shutdown()
