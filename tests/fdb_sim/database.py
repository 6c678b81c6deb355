"""Databases, with the names of the official binding, and running a function in a transaction."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any, TypeVar, overload

from tenure.clock import Clock
from tests.fdb_sim.attempt import Attempt
from tests.fdb_sim.client import Client, SkewedClock
from tests.fdb_sim.cluster import Cluster
from tests.fdb_sim.errors import FDBError
from tests.fdb_sim.faults import Faults
from tests.fdb_sim.futures import Future
from tests.fdb_sim.selectors import KeySelector, KeyValue, StreamingMode
from tests.fdb_sim.stats import Stats
from tests.fdb_sim.transaction import (
    KeyLike,
    Transaction,
    TransactionRead,
    ValueLike,
)

R = TypeVar("R")


@overload
def transactional(function: Callable[..., R], /) -> Callable[..., R]: ...


@overload
def transactional(*, parameter: str) -> Callable[[Callable[..., R]], Callable[..., R]]: ...


def transactional(
    function: Callable[..., Any] | None = None, /, *, parameter: str = "tr"
) -> Callable[..., Any]:
    """Let a function run in a transaction of its own when it is given a database, again until it is
    committed; in the caller's when it is given a transaction. `parameter` is which argument that
    is."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        place = inspect.getfullargspec(function).args.index(parameter)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(function):
                raise ValueError("Generators can not be wrapped with fdb.transactional")
            if isinstance(args[place], TransactionRead):
                return function(*args, **kwargs)
            tr = args[place].create_transaction()
            ours = [*args[:place], tr, *args[place + 1 :]]
            while True:
                try:
                    answer = function(*ours, **kwargs)
                    tr.commit().wait()
                except FDBError as error:
                    tr.on_error(error.code).wait()
                else:
                    return answer

        return run

    return decorate if function is None else decorate(function)


class Database:
    """A client's view of a cluster. Its own methods run in a transaction each."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self.options = client.options
        self.clock = clock  # that of the client's machine; not in the real binding

    @property
    def cluster(self) -> Cluster:
        """What it is connected to; not in the real binding."""
        return self._client.cluster

    @property
    def stats(self) -> Stats:
        """What this client did; not in the real binding."""
        return self._client.stats

    @property
    def chance(self) -> random.Random:
        """What this client draws by chance; not in the real binding."""
        return self._client.chance

    def create_transaction(self) -> Transaction:
        return Transaction(Attempt(self._client), self)

    def get(self, key: KeyLike) -> bytes | None:
        found: bytes | None = self._run(lambda tr: tr.get(key).value)
        return found

    def get_key(self, key_selector: KeySelector) -> bytes:
        found: bytes = self._run(lambda tr: tr.get_key(key_selector).value)
        return found

    def get_range(
        self,
        begin: KeyLike | KeySelector | None,
        end: KeyLike | KeySelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.want_all,
    ) -> list[KeyValue]:
        found: list[KeyValue] = self._run(
            lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list()
        )
        return found

    def get_range_startswith(self, prefix: KeyLike, *args: Any, **kwargs: Any) -> list[KeyValue]:
        found: list[KeyValue] = self._run(
            lambda tr: tr.get_range_startswith(prefix, *args, **kwargs).to_list()
        )
        return found

    def set(self, key: KeyLike, value: ValueLike) -> None:
        self._run(lambda tr: tr.set(key, value))

    def clear(self, key: KeyLike | KeySelector) -> None:
        self._run(lambda tr: tr.clear(key))

    def clear_range(
        self, begin: KeyLike | KeySelector | None, end: KeyLike | KeySelector | None
    ) -> None:
        self._run(lambda tr: tr.clear_range(begin, end))

    def clear_range_startswith(self, prefix: KeyLike) -> None:
        self._run(lambda tr: tr.clear_range_startswith(prefix))

    def add(self, key: KeyLike, param: ValueLike) -> None:
        self._run(lambda tr: tr.add(key, param))

    def get_and_watch(self, key: KeyLike) -> tuple[Any, Future[None]]:
        found: tuple[Any, Future[None]] = self._run(lambda tr: (tr.get(key), tr.watch(key)))
        return found

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def __setitem__(self, key: KeyLike, value: ValueLike) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    def _run(self, work: Callable[[Transaction], Any]) -> Any:
        @transactional
        def run(tr: Transaction) -> Any:
            return work(tr)

        return run(self)


def open(
    cluster: Cluster | None = None,
    *,
    clock: Clock | None = None,
    faults: Faults | None = None,
    skew_ms: int = 0,
) -> Database:
    """A client of a cluster, or of a new one of its own that keeps time by `clock`. Every client
    has faults of its own; its machine's clock is wrong by `skew_ms`."""
    if cluster is None:
        cluster = Cluster(clock)
    elif clock is not None:
        raise ValueError("a cluster keeps time by the clock that it was made with")
    client = Client(cluster, faults or Faults())
    return Database(client, SkewedClock(cluster.clock, skew_ms) if skew_ms else cluster.clock)
