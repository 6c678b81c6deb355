"""An error belongs to the call that caused it: its neighbours in the batch are committed."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import tenure
from tenure import OutcomeUnknown, StoreError, StoreFull, StoreRejected
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.engines.postgres import fast_paths
from tenure.engines.sqlite import file
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Op
from tenure.queue import store_of
from tests.crash.watched import Watched, opened
from tests.support import fdb, postgres


def a_long_name(seed: int) -> str:
    """512 characters of three bytes each, which no compression makes shorter."""
    chance = random.Random(seed)
    return "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(512))


def enqueue(id: str) -> ops.Enqueue:
    return ops.Enqueue((JobSpec(id, "mail", NULL),))


def together(queue: tenure.Queue, *batches: Sequence[Op]) -> list[Any]:
    """What calls that share one batch are answered, or meet."""

    async def main() -> list[Any]:
        calls = [store_of(queue).committer.arun(batch) for batch in batches]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main())


def faulty(fault: Callable[[Sequence[Op]], object], n: int) -> tuple[list[Any], Watched]:
    """What `n` calls that share one batch of a store with a fault are answered."""
    engine = Watched(MemoryEngine(SystemClock(), 1000))
    engine.before = fault
    with opened(engine) as queue:
        return together(queue, *[[enqueue(f"{n}")] for n in range(n)]), engine


def has(batch: Sequence[Op], id: str) -> bool:
    return any(isinstance(op, ops.Enqueue) and op.jobs[0].id == id for op in batch)


@pytest.mark.parametrize(
    "error", [StoreRejected("not that"), tenure.InvalidInput("a", "b"), ZeroDivisionError("a bug")]
)
def test_one_call_of_64_that_the_engine_rejects_is_found_in_few_batches(error: Exception) -> None:
    asked = []

    def fault(batch: Sequence[Op]) -> None:
        asked.append(len(batch))
        if has(batch, "5"):
            raise error

    found, engine = faulty(fault, 64)
    assert [n for n, one in enumerate(found) if isinstance(one, Exception)] == [5]
    assert type(found[5]) is type(error)
    assert sorted(engine.enqueued(), key=int) == [f"{n}" for n in range(64) if n != 5]
    assert len(asked) == 1 + 2 * 6  # by halves


@pytest.mark.parametrize(
    "error", [StoreError("lost"), StoreFull("full"), OutcomeUnknown("?"), tenure.Busy("busy")]
)
def test_what_is_wrong_with_the_store_concerns_all_and_is_not_tried_again(error: Exception) -> None:
    asked = []

    def fault(batch: Sequence[Op]) -> None:
        asked.append(len(batch))
        raise error

    found, _ = faulty(fault, 8)
    assert found == [error] * 8
    assert asked == [8]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        yield queue
    postgres.give_back(tmp_path)


def test_a_name_that_postgresql_cannot_index_fails_its_caller_alone(store: tenure.Queue) -> None:
    slot = ops.TakeSlot(a_long_name(1), a_long_name(2), a_long_name(3), 60_000)
    calls: list[Sequence[Op]] = [[enqueue(f"{n}")] for n in range(6)]
    found = together(store, *calls[:3], [slot], *calls[3:])
    assert isinstance(found.pop(3), StoreRejected)
    assert [type(one[0]) for one in found] == [ops.Enqueued] * 6
    assert store.stats("mail").ready == 6


def test_text_that_postgresql_cannot_store_fails_its_caller_alone(store: tenure.Queue) -> None:
    calls: list[Sequence[Op]] = [[enqueue(id)] for id in ("a", "b", "bad\0", "c")]
    found = together(store, *calls)
    assert isinstance(found.pop(2), tenure.InvalidInput)
    assert [type(one[0]) for one in found] == [ops.Enqueued] * 3


def test_a_batch_that_postgresql_committed_is_not_applied_again(
    store: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong with its answers."""
    right = fast_paths.fast_path_of

    def wrong(batch: Sequence[Op]) -> Any:
        way = right(batch)

        def then_fail(*args: Any) -> Any:
            assert way is not None
            way(*args)
            raise ZeroDivisionError("a bug")

        return then_fail

    monkeypatch.setattr(fast_paths, "fast_path_of", wrong)
    calls = [[op] for op in (_plain(store), _plain(store), _plain(store))]
    found = together(store, *calls)
    assert {type(one) for one in found} == {OutcomeUnknown}
    assert store.stats("mail").ready == 3


def _plain(store: tenure.Queue) -> ops.Enqueue:
    return ops.Enqueue(tuple(store_of(store).prepare([tenure.NewJob(queue="mail")])))


def test_a_value_that_sqlite_cannot_store_fails_its_caller_alone(tmp_path: Path) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        writer = store_of(queue).engine._writer  # type: ignore[attr-defined]
        writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        large = ops.Enqueue((JobSpec("bad", "mail", Raw(b'"%b"' % (b"x" * 200_000))),))
        found = together(queue, [enqueue("a")], [large], [enqueue("b")])
        assert isinstance(found.pop(1), StoreRejected)
        assert [type(one[0]) for one in found] == [ops.Enqueued] * 2


def test_a_disk_that_fails_is_no_operations_fault() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = 10
    assert type(file._meaning(error, Path("jobs.db"))) is StoreError


def test_a_key_that_foundationdb_cannot_store_fails_its_caller_alone(tmp_path: Path) -> None:
    engine = fdb.open_simulated(f"fdb-sim://{tmp_path}", tenure.Settings(), SystemClock())
    with tenure.Queue(engine, tenure.Settings(), SystemClock()) as queue:
        slot = ops.TakeSlot("s" * 5_000, "k" * 5_000, "h" * 5_000, 60_000)
        found = together(queue, [enqueue("a")], [slot], [enqueue("b")])
        assert isinstance(found.pop(1), StoreRejected)
        assert [type(one[0]) for one in found] == [ops.Enqueued] * 2
