"""A store applies a batch only if it has the mark that the caller knows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.clock import SystemClock
from tenure.core.fencing import Fence, Fenced
from tenure.engines import open_shard
from tenure.errors import Busy
from tenure.model import ops, queries
from tenure.model.job import JobSpec, null
from tenure.settings import Settings
from tests.support import postgres
from tests.support.sizes import let


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    url = (
        f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else postgres.url_of(tmp_path)
    )
    opened = open_shard(Settings(url=url), SystemClock())
    yield opened
    opened.close()
    postgres.give_back(tmp_path)


def spec_of(job_id: str) -> JobSpec:
    return JobSpec(id=job_id, queue="q", payload=null())


def add(store: Any, fence: Fence | None, *ids: str) -> None:
    store.apply([ops.Enqueue((spec_of(one),)) for one in ids], fence)


def ready(store: Any) -> int:
    return sum(one.ready for one in store.read(queries.GetStats()))


def test_a_mark_is_set_changed_and_compared_in_the_same_transaction(store: Any) -> None:
    add(store, Fence("", "one"), "a")
    add(store, Fence("one"), "b", "c")
    for wrong in ("", "two", "on"):
        with pytest.raises(Fenced):
            add(store, Fence(wrong), "d")
        with pytest.raises(Fenced):
            add(store, Fence(wrong, "three"), "d")
    assert ready(store) == 3
    add(store, Fence("one", "two"), "d")
    with pytest.raises(Fenced):
        add(store, Fence("one"), "e")
    add(store, Fence("two"), "e")
    add(store, None, "f")  # who opens a shard alone has no fence
    assert ready(store) == 6


@pytest.mark.parametrize("count", [1, 5])
def test_only_one_of_several_who_change_a_mark_succeeds(store: Any, count: int) -> None:
    store.apply([], Fence("", "0"))
    for n in range(5):
        done: list[int] = []

        def change(who: int, n: int = n, done: list[int] = done) -> None:
            try:
                store.apply([], Fence(str(n), str(n + 1)))
                done.append(who)
            except Fenced:
                pass

        threads = [threading.Thread(target=change, args=(who,)) for who in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 1


def test_on_postgresql_a_mark_does_not_change_under_an_open_transaction(tmp_path: Path) -> None:
    store = open_shard(Settings(url=postgres.url_of(tmp_path)), SystemClock())
    try:
        store.apply([], Fence("", "one"))
        changed = threading.Event()

        def change() -> None:
            while True:
                try:
                    store.apply([], Fence("one", "two"))
                    return changed.set()
                except Busy:  # it waited for too long
                    continue

        with psycopg.connect(postgres.shared_url()) as connection:
            spec = spec_of("a")
            store.apply_within(connection, [ops.Enqueue((spec,))], Fence("one"))
            thread = threading.Thread(target=change)
            thread.start()
            assert not changed.wait(0.3)
        thread.join(10)
        assert changed.is_set()
        assert ready(store) == 1
        with (
            psycopg.connect(postgres.shared_url()) as connection,
            pytest.raises(Fenced),
        ):
            store.apply_within(connection, [ops.Enqueue((spec,))], Fence("one"))
    finally:
        store.close()
        postgres.give_back(tmp_path)


def test_on_postgresql_who_waits_for_an_open_transaction_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that an application has left open, for example."""
    let(monkeypatch, tries_to_wait_for_a_lock=1)
    store = open_shard(Settings(url=postgres.url_of(tmp_path)), SystemClock())
    try:
        store.apply([], Fence("", "one"))
        store.apply([ops.Enqueue((spec_of("0"),))], Fence("one"))
        with psycopg.connect(postgres.shared_url()) as connection:
            store.apply_within(connection, [ops.Enqueue((spec_of("a"),))], Fence("one"))
            with pytest.raises(Busy):
                store.apply([], Fence("one", "two"))
            store.apply([ops.Enqueue((spec_of("b"),))], Fence("one"))
            assert ready(store) == 2
        store.apply([], Fence("one", "two"))
        assert ready(store) == 3
    finally:
        store.close()
        postgres.give_back(tmp_path)


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
def test_on_postgresql_a_mark_that_the_callers_snapshot_does_not_show_is_noticed(
    tmp_path: Path, level: psycopg.IsolationLevel
) -> None:
    store = open_shard(Settings(url=postgres.url_of(tmp_path)), SystemClock())
    try:
        add(store, Fence("", "one"), "first")
        with psycopg.connect(postgres.shared_url()) as connection:
            connection.isolation_level = level
            connection.execute("SELECT 1 FROM pg_class LIMIT 1")  # the snapshot is fixed now
            store.apply([], Fence("one", "two"))
            with pytest.raises(Fenced):
                store.apply_within(connection, [ops.Enqueue((spec_of("late"),))], Fence("one"))
            store.apply_within(connection, [ops.Enqueue((spec_of("known"),))], Fence("two"))
        assert ready(store) == 2
    finally:
        store.close()
        postgres.give_back(tmp_path)


def test_on_postgresql_a_mark_is_noticed_whatever_the_default_level(tmp_path: Path) -> None:
    """The transaction waits for the one that changes the mark, and must not see it as it was."""
    level = "-c%20default_transaction_isolation=serializable"
    url = postgres.url_of(tmp_path)
    store = open_shard(Settings(url=url), SystemClock())
    other = open_shard(
        Settings(url=f"{url}{'&' if '?' in url else '?'}options={level}"), SystemClock()
    )
    refused = threading.Event()

    def late() -> None:
        try:
            add(other, Fence("one"), "late")
        except Fenced:
            refused.set()

    try:
        add(store, Fence("", "one"), "first")
        thread = threading.Thread(target=late)
        with psycopg.connect(postgres.shared_url()) as connection:
            store.apply_within(connection, [], Fence("one", "two"))
            thread.start()
            assert not refused.wait(0.3)
        thread.join(10)
        assert refused.is_set()
        assert ready(store) == 1
    finally:
        store.close()
        other.close()
        postgres.give_back(tmp_path)
