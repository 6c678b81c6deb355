"""The threads of plain functions: few for short calls, one each for calls that block."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tenure.worker.handler_threads import Threads
from tests.crash.watched import PATIENCE, until

start_really = threading.Thread.start


def ignore(value: object) -> None: ...


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads()
    yield pool
    pool.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Threads that the pool wants to start; the test starts them."""
    held: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: held.append(thread))
    return held


def test_calls_that_block_run_at_once(threads: Threads) -> None:
    everybody = threading.Barrier(21)
    for _ in range(2):  # with new threads, and with those that sleep
        for _ in range(20):
            threads.submit(lambda: ignore(everybody.wait(PATIENCE)))
        everybody.wait(PATIENCE)


def test_a_call_that_blocks_does_not_hold_up_those_after_it(threads: Threads) -> None:
    go_on, called = threading.Event(), list[int]()
    threads.submit(lambda: ignore(go_on.wait(PATIENCE)))
    for n in range(100):
        threads.submit(lambda n=n: called.append(n))  # type: ignore[misc]
    until(lambda: len(called) == 100)
    go_on.set()


def test_a_thread_takes_one_call_after_the_other_and_wakes_one_more(
    threads: Threads, begun: list[threading.Thread]
) -> None:
    called: list[tuple[int, int]] = []
    for n in range(10):
        threads.submit(lambda n=n: called.append((n, threading.get_ident())))  # type: ignore[misc]
    (first,) = begun
    start_really(first)
    until(lambda: len(called) == 10)
    assert called == [(n, first.ident) for n in range(10)]
    assert len(begun) == 2  # a second one, as the first call could have taken long


def test_a_thread_that_sleeps_is_woken_before_another_is_started(
    threads: Threads, begun: list[threading.Thread]
) -> None:
    called: list[int | None] = []
    for n in range(1, 21):
        threads.submit(lambda: called.append(threading.get_ident()))
        if n == 1:
            start_really(begun[0])
        until(lambda: len(called) == n and len(threads._asleep) == 1)  # noqa: B023
    assert called == [begun[0].ident] * 20
    assert len(begun) == 1


def test_threads_end_after_the_last_call(threads: Threads, begun: list[threading.Thread]) -> None:
    called: list[int] = []
    threads.submit(lambda: called.append(1))
    start_really(begun[0])
    until(lambda: len(threads._asleep) == 1)
    threads.close()
    begun[0].join(PATIENCE)
    assert not begun[0].is_alive()

    for n in (2, 3):  # late, but they are done
        threads.submit(lambda n=n: called.append(n))  # type: ignore[misc]
    start_really(begun[1])
    begun[1].join(PATIENCE)
    assert not begun[1].is_alive()
    assert called == [1, 2, 3]


def test_no_call_is_lost_or_done_twice(threads: Threads) -> None:
    called: list[int] = []

    def submit(first: int) -> None:
        for n in range(first, first + 2000):
            threads.submit(lambda n=n: called.append(n))  # type: ignore[misc]

    submitting = [threading.Thread(target=submit, args=(first,)) for first in (0, 2000, 4000)]
    for thread in submitting:
        thread.start()
    for thread in submitting:
        thread.join()
    until(lambda: len(called) >= 6000)
    assert sorted(called) == list(range(6000))
