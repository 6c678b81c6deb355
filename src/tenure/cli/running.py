"""Commands that run until they are stopped: a worker, a scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from tenure.app import Tenure
from tenure.cli.app import App, json_option, pass_app
from tenure.cli.params import duration, target
from tenure.cli.supervisor import Supervisor
from tenure.cli.tables import words
from tenure.queue import default_worker
from tenure.runner import Runner
from tenure.scheduler import Scheduler

ABORTED = 130
SAME_SIGNAL_SECONDS = 0.5  # a shell or a `timeout` may pass on what the terminal sent as well
LAST_WORDS_SECONDS = 5.0  # that an abort may take before the process ends anyway
LEAVING_SECONDS = 2.0  # that a process may take to end once its runner has stopped

log = logging.getLogger("tenure.worker")


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )


log_level = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is written to stderr.",
)


@click.command()
@click.argument("tasks", metavar="MODULE:APP", type=target)
@click.option("--queues", help="Only these queues, the first one's jobs first: high,low.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    help="How many jobs run at once, in each process.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="How many processes work; one that dies is replaced.",
)
@click.option(
    "--lease",
    type=duration,
    default="30s",
    show_default=True,
    help="After how long the jobs of a worker that died are taken over.",
)
@click.option(
    "--grace",
    type=duration,
    default="30s",
    show_default=True,
    help="What running jobs get to end when the worker is stopped.",
)
@click.option("--burst", is_flag=True, help="End when nothing is ready.")
@click.option("--max-jobs", type=click.IntRange(1), help="End after so many jobs.")
@click.option(
    "--reload", is_flag=True, help="Start anew when a .py file below this folder changes."
)
@click.option(
    "--schedule/--no-schedule",
    default=True,
    show_default=True,
    help="Fire schedules and look after the store, too.",
)
@click.option("--supervised", is_flag=True, hidden=True, help="Started by a supervisor.")
@log_level
@json_option
@pass_app
def worker(
    app: App,
    /,
    tasks: Tenure,
    queues: str | None,
    processes: int,
    reload: bool,
    supervised: bool,
    log_level: str,
    **options: Any,
) -> None:
    """Run the tasks of an app.

    MODULE:APP names the Tenure object: `tasks:app` is `app` in tasks.py. The first Ctrl-C or
    SIGTERM stops it gracefully: it claims no more, lets running jobs end and gives the rest back.
    The second one gives them back at once.

    \b
    Example:
      tenure worker tasks:app --queues high,low --concurrency 50 --processes 2
    """
    _log_to_stderr(log_level)
    if processes > 1 or reload:
        again = options["max_jobs"] is not None and not options["burst"]
        code = Supervisor(_own_command(), processes, reload=reload, again=again).run()
        app.answer({"exit_code": code}, lambda: words("All processes have ended."))
        sys.exit(code)
    named = None if queues is None else [name.strip() for name in queues.split(",")]
    tasks.move_to(app.url)
    with tasks:
        runner = tasks.runner(queues=named, **options)
        work_until_told(runner, supervised=supervised)
    value = {"worker": runner.name, "handled": runner.handled}
    if not supervised:
        app.answer(value, lambda: words(f"{runner.handled:,} jobs were handled."))


def _own_command() -> list[str]:
    """This command, as a supervisor starts it."""
    arguments = list(sys.argv[1:])
    for name, takes in (("--processes", True), ("--reload", False), ("--json", False)):
        while name in arguments:
            at = arguments.index(name)
            del arguments[at : at + 1 + takes]
    arguments = [one for one in arguments if not one.startswith("--processes=")]
    return [sys.executable, "-m", "tenure", *arguments, "--supervised"]


def work_until_told(runner: Runner, *, supervised: bool = False) -> None:
    """Work until a signal comes, or nothing is left to do; a second signal ends the process."""
    left = threading.Event()
    try:
        asyncio.run(_work(runner, supervised, left))
    finally:
        left.set()


async def _work(runner: Runner, supervised: bool, left: threading.Event) -> None:
    loop, ends, stopped = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    told_at: list[float] = []

    def stop(number: int, frame: FrameType | None = None) -> None:
        told_at.append(time.monotonic())
        if len(told_at) > 1 and told_at[-1] - told_at[0] < SAME_SIGNAL_SECONDS:
            return
        # The loop may be blocked by what runs in it: only what is graceful depends on it. And a
        # signal may come while something is written to the log: that is left to the threads.
        if len(told_at) == 1:
            loop.call_soon_threadsafe(ends.set)
            watch = (runner, stopped, left)
            threading.Thread(target=_see_to_the_end, args=watch, daemon=True).start()
        else:
            threading.Thread(target=_abort, args=(runner,), daemon=True).start()

    with _on_signals(stop):  # from before the first claim on
        await runner.start()
        if supervised:
            threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
        worked = asyncio.create_task(runner.wait())
        ended = asyncio.create_task(ends.wait())
        try:
            await asyncio.wait([worked, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            await runner.stop()
            stopped.set()
        await worked


def _see_to_the_end(runner: Runner, stopped: threading.Event, left: threading.Event) -> None:
    """A task that blocks the loop, or takes no notice when it is cancelled, or leaves a thread
    behind, would keep the process alive for as long as it likes."""
    running = len(runner.running())
    log.info("stopping: %d jobs are running; once more gives them back at once", running)
    if not stopped.wait(runner.patience + 1):
        log.warning("the event loop is blocked: %d jobs are given back", len(runner.running()))
        runner.give_up()
    elif left.wait(LEAVING_SECONDS):
        return
    else:
        log.warning("tasks that were given up keep the process from ending: it ends now")
    os._exit(0)


def _abort(runner: Runner) -> None:
    threading.Timer(LAST_WORDS_SECONDS, os._exit, args=(ABORTED,)).start()
    log.warning("aborting: %d running jobs are given back", len(runner.running()))
    runner.give_up()
    os._exit(ABORTED)


def _stop_with_parent(stop: Callable[[int], None]) -> None:
    """A supervisor that is gone, however it went, closes our standard input."""
    while os.read(0, 1):
        pass
    stop(signal.SIGTERM)


@contextmanager
def _on_signals(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@click.command()
@click.argument("tasks", metavar="[MODULE:APP]", type=target, required=False)
@log_level
@json_option
@pass_app
def scheduler(app: App, tasks: Tenure | None, log_level: str) -> None:
    """Fire schedules, and look after the store, without working on jobs.

    With MODULE:APP, the schedules that the app declares with @app.cron are put into the store
    first. Workers and services do all this as well; each time is fired once, however many run.

    \b
    Example:
      tenure scheduler tasks:app
    """
    _log_to_stderr(log_level)
    stopped = threading.Event()
    found = tasks or Tenure()
    found.move_to(app.url)
    with found, _on_signals(lambda number, frame: stopped.set()):
        found.load()
        found.put_schedules()
        works = Scheduler(found.queue, default_worker())
        works.start()
        log.info("scheduler %s fires %d schedules", default_worker(), len(found.queue.schedules()))
        while not stopped.wait(1):
            pass
        works.stop()
    app.answer({"scheduler": default_worker()}, lambda: words("The scheduler has stopped."))
