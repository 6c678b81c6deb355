"""Starts several processes at the same moment, and collects their results."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

PATIENCE = 120  # seconds


def together(n: int, act: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of `n` processes that call act(number, *args) at the same moment."""
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(n)
    pipes = [spawn.Pipe(duplex=False) for _ in range(n)]
    processes = [
        spawn.Process(target=_take_part, args=(start, pipe[1], act, number, *args))
        for number, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    answers = []
    for process, (ear, mouth) in zip(processes, pipes, strict=True):
        assert ear.poll(PATIENCE), "a process does not end"
        answers.append(ear.recv())
        process.join()
        process.close()
        ear.close()
        mouth.close()
    failures = [answer for good, answer in answers if not good]
    assert not failures, "\n".join(failures)
    return [answer for _, answer in answers]


def _take_part(
    start: Barrier, mouth: Connection, act: Callable[..., Any], number: int, *args: Any
) -> None:
    start.wait(PATIENCE)
    try:
        mouth.send((True, act(number, *args)))
    except BaseException:
        mouth.send((False, traceback.format_exc()))
