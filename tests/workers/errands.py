"""Tasks for workers that are processes of their own, which tell what they do in journals.

A test names the folder of the journals in the environment; each process appends to one of its own.
Where a task is to wait for the test, it waits for a file.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import signal
import threading
import time
from pathlib import Path

import tenure
from tests.crash.journal import Journal

FOLDER = "TENURE_TEST_FOLDER"
LOOK_SECONDS = 0.005
NOW = tenure.fixed(0.02)  # a backoff that keeps nobody waiting

app = tenure.Tenure()


@functools.cache
def _journal(pid: int) -> Journal:
    return Journal(Path(os.environ[FOLDER], f"{pid}.journal"))


def note(kind: str) -> None:
    """Say what becomes of the job that runs here."""
    job = tenure.current_job().job
    _journal(os.getpid()).note(
        kind, job.id, job.token, attempt=job.attempts, pid=os.getpid(), worker=job.worker
    )


def there(name: str) -> bool:
    """Whether the test has given this sign."""
    return Path(os.environ[FOLDER], name).exists()


@app.task(backoff=NOW)
async def quick(seconds: float = 0.0) -> str:
    note("began")
    await asyncio.sleep(seconds)
    note("did")
    return "well"


@app.task(backoff=NOW)
def quick_in_a_thread(seconds: float = 0.0) -> None:
    note("began")
    time.sleep(seconds)
    note("did")


@app.task(process=True, backoff=NOW)
def quick_in_a_process(seconds: float = 0.0) -> None:
    note("began")
    time.sleep(seconds)
    note("did")


@app.task(backoff=NOW)
async def until_told(name: str = "go") -> None:
    """Let others run meanwhile."""
    note("began")
    try:
        while not there(name):
            await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("did")


@app.task(backoff=NOW)
async def block_until_told(name: str = "go") -> None:
    """Block the event loop."""
    note("began")
    while not there(name):
        time.sleep(LOOK_SECONDS)
    note("did")


@app.task(backoff=NOW)
def compute_until_told(name: str = "go") -> None:
    note("began")
    try:
        while not there(name):
            time.sleep(LOOK_SECONDS)
    except BaseException as error:
        note(type(error).__name__)
        raise
    note("did")


@app.task(backoff=NOW)
def compute_without_rest(seconds: float) -> None:
    """Never lets go of the interpreter by itself."""
    note("began")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note("did")


@app.task(backoff=NOW)
async def compute_in_the_loop(seconds: float) -> None:
    note("began")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note("did")


@app.task(process=True, backoff=NOW)
def process_until_told(name: str = "go") -> None:
    note("began")
    while not there(name):
        time.sleep(LOOK_SECONDS)
    note("did")


@app.task(max_attempts=2, backoff=NOW)
async def kill_the_worker() -> None:
    note("did")
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_attempts=2, backoff=NOW)
def kill_the_worker_from_a_thread() -> None:
    note("did")
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(backoff=NOW)
async def exit_the_worker(code: int) -> None:
    """Ends the process without a word, as an extension in C may."""
    note("killed")
    os._exit(code)


@app.task(backoff=NOW)
async def kill_the_worker_when_told(name: str = "kill") -> None:
    """Lets others run meanwhile."""
    note("began")
    while not there(name):
        await asyncio.sleep(LOOK_SECONDS)
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_attempts=2, backoff=NOW)
async def fail() -> None:
    note("did")
    raise RuntimeError("as told")


@app.task(backoff=NOW)
async def never_mind_cancelling() -> None:
    """Does not end, whatever it is told."""
    note("began")
    while True:
        try:
            await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            note("cancelled")


@app.task(backoff=NOW)
async def hold_a_thread_of_the_loop() -> None:
    """The thread of asyncio.to_thread cannot be cancelled, and does not end by itself."""
    note("began")
    await asyncio.to_thread(threading.Event().wait)


remembered: contextvars.ContextVar[str] = contextvars.ContextVar("remembered", default="nothing")


def _remember() -> str:
    before = remembered.get()
    remembered.set("something")
    return before


@app.task(process=True)
def remember_in_a_process() -> str:
    return _remember()


@app.task
def remember_in_a_thread() -> str:
    return _remember()
