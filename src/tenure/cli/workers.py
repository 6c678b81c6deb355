"""Commands that run until they are stopped: worker, scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import IntRange, duration, log_options, target
from tenure.cli.queue_names import did_you_mean, names_of
from tenure.cli.supervisor import NOT_ALLOWED, Supervisor
from tenure.cli.tables import words
from tenure.errors import InvalidInput, NotAllowed, TenureError
from tenure.observe.logs import counted, log_as
from tenure.queue import default_worker
from tenure.settings import PREFIX, from_environment, without_secrets
from tenure.tasks.app import Tenure
from tenure.worker.scheduler import Scheduler
from tenure.worker.shutdown import ensure_exit, give_back_at_once, on_signals, told_to_stop
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.worker")

# While a task computes in a thread, other threads get the GIL back only after Python's switch
# interval, by default 5 ms. With two such tasks, other jobs began after 2.7 s instead of 0.1 s.
# Half of this interval cost tasks in threads 5% more CPU time.
SWITCH_SECONDS = 0.001


@click.command()
@click.argument("tasks", metavar="MODULE:APP", type=target)
@click.option("--queues", help="Only work on these queues, in order of preference: high,low.")
@click.option(
    "--concurrency",
    type=IntRange(1, 100_000),
    default=10,
    show_default=True,
    help="How many jobs run at once, in each process.",
)
@click.option(
    "--processes",
    type=IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="Number of worker processes; one that dies is replaced.",
)
@click.option(
    "--lease",
    type=duration,
    default="30s",
    show_default=True,
    help="Time until the jobs of a dead worker are taken over.",
)
@click.option(
    "--grace",
    type=duration,
    default="30s",
    show_default=True,
    help="Time that running jobs get to finish when the worker is stopped.",
)
@click.option("--burst", is_flag=True, help="Exit when nothing is ready.")
@click.option("--max-jobs", type=IntRange(1), help="Exit after this many jobs.")
@click.option(
    "--reload", is_flag=True, help="Restart when a .py file below the current directory changes."
)
@click.option(
    "--schedule/--no-schedule",
    default=True,
    show_default=True,
    help="Also fire schedules and maintain the store.",
)
@click.option("--supervised", is_flag=True, hidden=True, help="Started by a supervisor.")
@log_options
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
    log_format: str,
    **options: Any,
) -> None:
    """Run the tasks of an app.

    MODULE:APP names the Tenure object: `tasks:app` is `app` in tasks.py. The first Ctrl-C or
    SIGTERM stops the worker gracefully: it claims no more jobs, lets running ones finish within the
    grace time, and gives the rest back. The second one gives them back at once.

    \b
    Example:
      tenure worker tasks:app --queues high,low --concurrency 50 --processes 2
    """
    log_as(log_format, log_level)
    tasks.move_to(app.url)
    check_store(tasks)
    if processes > 1 or reload:
        again = options["max_jobs"] is not None and not options["burst"]
        code = Supervisor(_own_command(), processes, reload=reload, again=again).run()
        app.answer({"exit_code": code}, lambda: words("All processes have ended."))
        sys.exit(code)
    named = None if queues is None else [name.strip() for name in queues.split(",")]
    with tasks:
        worker = tasks.worker(queues=named, **options)
        warn_of_typos(tasks, named or [])
        try:
            run_until_signal(worker, supervised=supervised)
        except NotAllowed as error:
            if not supervised:
                raise
            app.complain(error.code, error.message)
            sys.exit(NOT_ALLOWED)
    value = {"worker": worker.name, "handled": worker.handled}
    if not supervised and (app.as_json or not log.isEnabledFor(logging.INFO)):
        app.answer(value, lambda: words(f"Jobs handled: {worker.handled:,}."))  # else it is logged


def check_store(tasks: Tenure) -> None:
    """Reject a store that a worker cannot share with anybody, and warn if TENURE_URL, which the
    other commands use, names another store than the app."""
    if tasks.url.startswith("memory:"):
        raise InvalidInput(
            "url",
            "the jobs of memory:// exist only in the process that enqueues them, so this one would "
            "find none: use sqlite:///file.db, or app.worker() in your program",
        )
    for_others = from_environment(os.environ).url
    if PREFIX + "URL" in os.environ and for_others != tasks.url:
        log.warning(
            "the app uses %s, but TENURE_URL is %s, which other commands use: they need --url",
            without_secrets(tasks.url),
            without_secrets(for_others),
        )


def warn_of_typos(tasks: Tenure, queues: Sequence[str]) -> None:
    """Warn of queues that do not exist while one with a similar name does."""
    if not queues:
        return
    known = {str(task.options.get("queue")) for task in tasks.tasks.values()}
    if known.issuperset(queues):
        return
    try:
        known.update(names_of(tasks.queue))
    except TenureError:
        return  # the worker reports it
    for name in queues:
        if name not in known and (hint := did_you_mean(name, known)):
            log.warning("there is no queue %r yet: %s", name, hint)


def _own_command() -> list[str]:
    """This command line, as a supervisor runs it."""
    arguments = list(sys.argv[1:])
    for name, takes in (("--processes", True), ("--reload", False), ("--json", False)):
        while name in arguments:
            at = arguments.index(name)
            del arguments[at : at + 1 + takes]
    arguments = [one for one in arguments if not one.startswith("--processes=")]
    return [sys.executable, "-m", "tenure", *arguments, "--supervised"]


def run_until_signal(worker: Worker, *, supervised: bool = False) -> None:
    """Run until a signal arrives or nothing is left to do; a second signal ends the process."""
    sys.setswitchinterval(SWITCH_SECONDS)
    left = threading.Event()
    try:
        asyncio.run(_work(worker, supervised, left))
    finally:
        left.set()


async def _work(worker: Worker, supervised: bool, left: threading.Event) -> None:
    loop, ends, stopped = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def gracefully() -> None:
        loop.call_soon_threadsafe(ends.set)
        ensure_exit(worker, stopped, left)

    with told_to_stop(gracefully, partial(give_back_at_once, worker)) as stop:
        ended = asyncio.create_task(ends.wait())
        try:
            await _unless(ended, worker.start())
            if supervised:
                threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()
            await _unless(ended, worker.wait())
        finally:
            ended.cancel()
            await worker.stop()
            stopped.set()


async def _unless(ended: asyncio.Task[Any], wanted: Coroutine[Any, Any, None]) -> None:
    """Await something, until `ended` is done."""
    task = asyncio.create_task(wanted)
    await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _stop_with_parent(stop: Callable[[int], None]) -> None:
    """Stop when the supervisor is gone, which closes our standard input."""
    while os.read(0, 1):
        pass
    stop(signal.SIGTERM)


@click.command()
@click.argument("tasks", metavar="[MODULE:APP]", type=target, required=False)
@log_options
@json_option
@pass_app
def scheduler(app: App, tasks: Tenure | None, log_level: str, log_format: str) -> None:
    """Fire schedules and maintain the store, without running jobs.

    With MODULE:APP, the schedules declared with @app.cron are stored first. Workers and services
    do the same; each time fires once, no matter how many run.

    \b
    Example:
      tenure scheduler tasks:app
    """
    log_as(log_format, log_level)
    stopped = threading.Event()
    found = tasks or Tenure()
    found.move_to(app.url)
    check_store(found)
    with found, on_signals(lambda number, frame: stopped.set()):
        found.load()
        found.put_schedules()
        works = Scheduler(found.queue, default_worker())
        works.start()
        count = counted(len(found.queue.schedules.list()), "schedule")
        log.info("scheduler %s fires %s", default_worker(), count)
        while not stopped.wait(1):
            pass
        works.stop()
    app.answer({"scheduler": default_worker()}, lambda: words("The scheduler has stopped."))
