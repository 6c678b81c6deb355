"""Notifications are sent by one thread of each process."""

from __future__ import annotations

import os
import select
import threading

from tenure.engines.postgres.notify import Teller
from tests.crash.watched import PATIENCE, until


def test_a_process_that_was_forked_tells_for_itself() -> None:
    ear, mouth = os.pipe()

    def send() -> None:
        os.write(mouth, f"{os.getpid()} ".encode())

    teller = Teller(send)
    os.set_blocking(ear, False)
    teller.tell()
    until(lambda: bool(select.select([ear], [], [], 0)[0]))
    assert os.read(ear, 100).split() == [f"{os.getpid()}".encode()]
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            teller.tell()
            teller.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
    assert set(os.read(ear, 100).split()) == {f"{child}".encode()}
    teller.close()


def test_all_that_a_process_tells_is_told_by_one_thread() -> None:
    threads: list[threading.Thread] = []
    teller = Teller(lambda: threads.append(threading.current_thread()))
    teller.tell()
    until(lambda: len(threads) == 1)
    teller.tell()
    until(lambda: len(threads) == 2)
    teller.close()
    assert len(set(threads)) == 1
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


def test_nothing_is_begun_once_it_is_closed() -> None:
    teller = Teller(lambda: None)
    teller.close()
    teller.tell()
    assert teller._thread is None
