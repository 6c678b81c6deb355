"""A handle that was opened before a fork works on both sides of it, and neither harms the other.

Each test is a story for a process of its own, so that the fork has no threads but the story's.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tenure
from tenure.testing import ManualClock
from tests.support.audit import audit

PATIENCE = 30


def told(story: Callable[[Path], None], folder: Path) -> None:
    """Run the story in a process of its own."""
    code = f"from pathlib import Path; from {__name__} import {story.__name__} as story; "
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error"),
            # Forking with threads is what this is about; newer Pythons warn of it.
            *("-W", "ignore:This process:DeprecationWarning"),
            *("-c", code + f"story(Path({str(folder)!r}))"),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Child:
    """A forked process that runs `work`, and is known to have done it well."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.alarm(PATIENCE)  # one that hangs is a failure, too
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def join(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


class Signal:
    """Something one process waits for until another has said it."""

    def __init__(self) -> None:
        self._ear, self._mouth = os.pipe()

    def give(self) -> None:
        os.write(self._mouth, b".")

    def wait(self) -> None:
        assert os.read(self._ear, 1) == b"."


def connected(folder: Path) -> tenure.Queue:
    return tenure.connect(f"sqlite:///{folder / 'jobs.db'}")


def ids(queue: tenure.Queue) -> set[str]:
    return {job.id for job in queue.jobs(limit=10_000).jobs}


def both_sides_work(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")
    assert queue.stats("mail").ready == 1  # there is a reader, too

    def child() -> None:
        queue.enqueue("mail", id="child")
        assert {"before", "child"} <= ids(queue)
        asyncio.run(_aenqueue(queue, "child-task"))
        queue.close()

    process = Child(child)
    queue.enqueue("mail", id="parent")
    asyncio.run(_aenqueue(queue, "parent-task"))
    process.join()
    queue.enqueue("mail", id="after")
    assert ids(queue) == {"before", "child", "child-task", "parent", "parent-task", "after"}
    queue.close()
    assert audit(folder / "jobs.db") == []


async def _aenqueue(queue: tenure.Queue, id: str) -> None:
    await queue.aenqueue("mail", id=id)
    await queue.aget(id)


def the_parent_closes_first(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")
    child_is_at_work, parent_is_gone = Signal(), Signal()

    def child() -> None:
        queue.enqueue("mail", id="child-1")
        child_is_at_work.give()
        parent_is_gone.wait()
        queue.enqueue("mail", id="child-2")  # answered, so it must be there
        assert ids(queue) == {"before", "child-1", "child-2"}
        queue.close()

    process = Child(child)
    child_is_at_work.wait()
    queue.close()
    parent_is_gone.give()
    process.join()
    with connected(folder) as queue:
        assert ids(queue) == {"before", "child-1", "child-2"}
    assert audit(folder / "jobs.db") == []


def the_child_closes_first(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")

    def child() -> None:
        queue.enqueue("mail", id="child")
        queue.close()

    Child(child).join()
    queue.enqueue("mail", id="parent")
    queue.close()
    with connected(folder) as queue:
        assert ids(queue) == {"before", "child", "parent"}
    assert audit(folder / "jobs.db") == []


def a_stranger_opens_the_file_when_the_parent_is_gone(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")
    child_is_at_work, go_on = Signal(), Signal()

    def child() -> None:
        queue.enqueue("mail", id="child-1")
        child_is_at_work.give()
        go_on.wait()
        for n in range(2, 200):
            queue.enqueue("mail", "x" * 2000, id=f"child-{n}")
        queue.close()

    process = Child(child)
    child_is_at_work.wait()
    queue.close()
    stranger = connected(folder)
    stranger.enqueue("mail", id="stranger-1")
    go_on.give()
    for n in range(2, 200):
        stranger.enqueue("mail", "x" * 2000, id=f"stranger-{n}")
    process.join()
    wanted = {f"{who}-{n}" for who in ("child", "stranger") for n in range(1, 200)} | {"before"}
    assert ids(stranger) == wanted
    stranger.close()
    assert audit(folder / "jobs.db") == []


def the_child_does_not_use_it(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")
    Child(lambda: None).join()
    Child(queue.close).join()
    queue.enqueue("mail", id="after")
    assert ids(queue) == {"before", "after"}
    queue.close()


def a_fork_in_the_middle_of_a_batch(folder: Path) -> None:
    queue = connected(folder)
    stop = threading.Event()
    answered: list[str] = []

    def produce(name: str) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            answered.append(queue.enqueue("mail", id=f"{name}-{n}").id)
            queue.stats("mail")

    threads = [threading.Thread(target=produce, args=(f"thread-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for n in range(20):
        until = len(answered) + 5
        while len(answered) < until and any(thread.is_alive() for thread in threads):
            time.sleep(0.001)

        def child(n: int = n) -> None:
            if n % 2:
                queue.enqueue("mail", id=f"child-{n}")
                assert queue.get(f"child-{n}").state == "pending"
            queue.close()

        children.append(Child(child))
    stop.set()
    for thread in threads:
        thread.join()
    for process in children:
        process.join()
    assert ids(queue) == {*answered, *(f"child-{n}" for n in range(1, 20, 2))}
    queue.close()
    assert audit(folder / "jobs.db") == []


def many_threads_of_a_child_begin_at_once(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")

    def child(name: str) -> None:
        barrier = threading.Barrier(16)
        failed: list[BaseException] = []

        def begin(n: int) -> None:
            barrier.wait()
            try:
                if n % 2:
                    asyncio.run(_aenqueue(queue, f"{name}-{n}"))
                else:
                    queue.enqueue("mail", id=f"{name}-{n}")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=begin, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        queue.close()

    for n in range(10):
        Child(lambda n=n: child(f"child-{n}")).join()  # type: ignore[misc]
    wanted = {f"child-{n}-{m}" for n in range(10) for m in range(16)}
    assert ids(queue) == {"before", *wanted}
    queue.close()
    assert audit(folder / "jobs.db") == []


def children_take_turns_with_their_parent(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue_many([tenure.NewJob(queue="mail", id=f"job-{n}") for n in range(300)])

    def work() -> None:
        while jobs := queue.claim("mail", limit=3):
            assert queue.ack_many(jobs) == [None] * len(jobs)

    children = [Child(work) for _ in range(4)]
    work()
    for process in children:
        process.join()
    assert queue.stats("mail").done == 300
    queue.close()
    assert audit(folder / "jobs.db") == []


def leave_one(queue: tenure.Queue, id: str) -> None:
    queue.enqueue("mail", id=id)


def several_threads_fork_at_once(folder: Path) -> None:
    queue = connected(folder)
    queue.enqueue("mail", id="before")
    barrier = threading.Barrier(4)
    failed: list[BaseException] = []

    def fork_a_few(name: str) -> None:
        try:
            for n in range(5):
                barrier.wait(PATIENCE)
                Child(partial(leave_one, queue, f"{name}-{n}")).join()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=fork_a_few, args=(f"thread-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    signal.alarm(PATIENCE)
    queue.enqueue("mail", id="after")
    wanted = {f"thread-{n}-{m}" for n in range(4) for m in range(5)}
    assert ids(queue) == {"before", "after", *wanted}
    queue.close()


def test_several_threads_can_fork_at_the_same_time(tmp_path: Path) -> None:
    told(several_threads_fork_at_once, tmp_path)


def children_that_seed_alike(folder: Path) -> None:
    queue = tenure.connect(f"sqlite:///{folder / 'jobs.db'}", clock=ManualClock())
    queue.enqueue("mail")

    def child() -> None:
        random.seed(7)  # as many programs do, to be reproducible
        for _ in range(20):
            queue.enqueue("mail")
        queue.close()

    children = [Child(child) for _ in range(3)]
    for process in children:
        process.join()
    assert queue.stats("mail").ready == 61
    queue.close()


def test_children_that_seed_their_chance_alike_make_different_ids(tmp_path: Path) -> None:
    told(children_that_seed_alike, tmp_path)


def test_a_handle_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    told(both_sides_work, tmp_path)


def test_a_child_loses_nothing_when_its_parent_closes_first(tmp_path: Path) -> None:
    told(the_parent_closes_first, tmp_path)


def test_a_parent_loses_nothing_when_its_child_closes_first(tmp_path: Path) -> None:
    told(the_child_closes_first, tmp_path)


def test_a_child_and_a_third_process_share_the_file_when_the_parent_is_gone(tmp_path: Path) -> None:
    told(a_stranger_opens_the_file_when_the_parent_is_gone, tmp_path)


def test_a_child_that_does_not_use_the_handle_does_no_harm(tmp_path: Path) -> None:
    told(the_child_does_not_use_it, tmp_path)


def test_a_fork_in_the_middle_of_a_batch_harms_neither_side(tmp_path: Path) -> None:
    told(a_fork_in_the_middle_of_a_batch, tmp_path)


def test_many_threads_of_a_child_can_begin_at_once(tmp_path: Path) -> None:
    told(many_threads_of_a_child_begin_at_once, tmp_path)


def test_children_and_parent_share_the_work(tmp_path: Path) -> None:
    told(children_take_turns_with_their_parent, tmp_path)


def test_the_memory_engine_is_copied_by_a_fork(tmp_path: Path) -> None:
    """It belongs to one process: what a child does stays with the child."""
    told(memory_is_copied, tmp_path)


def memory_is_copied(_folder: Path) -> None:
    queue = tenure.connect("memory://")
    queue.enqueue("mail", id="before")

    def child() -> None:
        queue.enqueue("mail", id="child")
        assert ids(queue) == {"before", "child"}

    Child(child).join()
    assert ids(queue) == {"before"}
    queue.close()
