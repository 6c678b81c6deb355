"""The command that adds a job from the command line, or many from a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, get_args

import click
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.json_lines import Lines, Loader
from tenure.cli.params import IntRange, duration, given, json, point_in_time, target
from tenure.cli.progress import progress_bar
from tenure.cli.queue_names import did_you_mean, exists, names_of
from tenure.cli.tables import words
from tenure.cli.text import relative
from tenure.cli.workers import check_store
from tenure.errors import NotFound, TenureError
from tenure.model.fields import MAX_ATTEMPTS, MAX_PRIORITY, MIN_PRIORITY
from tenure.model.job import IfParentFails, Job, State
from tenure.model.ops import IfExists
from tenure.tasks.app import Tenure


@click.command()
@click.argument("queue", metavar="[QUEUE]", required=False)
@click.argument("text", metavar="[JSON]", required=False)
@click.option("--kind", help="The kind of job, such as the name of a task.")
@click.option(
    "--app",
    "tasks",
    metavar="MODULE:APP",
    type=target,
    help="The app of --task. Its store is used, unless --url is given.",
)
@click.option(
    "--task",
    help="Call this task of --app: the JSON must fit its arguments, and its options apply.",
)
@click.option("--tenant", help="The tenant that the job belongs to; tenants take turns.")
@click.option("--group", help="A group of the tenant's jobs, which can have its own limits.")
@click.option(
    "--priority",
    type=IntRange(MIN_PRIORITY, MAX_PRIORITY),
    help="Lower runs first. [default: 0]",
)
@click.option("--delay", type=duration, help="Run after this time: 90, 5m, 2h, 7d. [default: now]")
@click.option(
    "--run-at", type=point_in_time, metavar="TIME", help="Run at this time: 2026-11-17T09:30."
)
@click.option("--id", help="The id of the job. [default: a UUIDv7]")
@click.option("--unique-key", help="At most one unfinished job per queue and tenant can have it.")
@click.option("--after", multiple=True, help="The id of a job to wait for; can be repeated.")
@click.option(
    "--if-parent-fails",
    type=click.Choice(get_args(IfParentFails)),
    help="What to do if one of those is dead or cancelled. [default: wait]",
)
@click.option(
    "--max-attempts",
    type=IntRange(1, MAX_ATTEMPTS),
    help="Attempts before the job is dead. [default: 3]",
)
@click.option(
    "--expires-in", type=duration, help="Dead if not started within this time: 90, 5m, 2h, 7d."
)
@click.option("--timeout", type=duration, help="How long an attempt can take: 90, 5m, 2h.")
@click.option(
    "--if-exists",
    type=click.Choice(get_args(IfExists)),
    help="What to do if another job has the id or the unique key. [default: error]",
)
@click.option(
    "--file", type=click.File("rb"), help="Load many jobs from JSON lines; - is standard input."
)
@click.option("--queue", "default_queue", help="Same as QUEUE, with --file.")
@json_option
@pass_app
def enqueue(
    app: App,
    /,
    queue: str | None,
    text: str | None,
    tasks: Tenure | None,
    task: str | None,
    if_exists: IfExists | None,
    file: BinaryIO | None,
    default_queue: str | None,
    **options: Any,
) -> None:
    """Add a job with a JSON payload, or many from a file.

    With --kind, the job has the options of this command (3 attempts, no timeout), even if a task of
    that name has others. With --app and --task, it has the options of the task.

    With --file, every line is an object with some of these fields: queue, payload, kind, tenant,
    group, priority, id, unique_key, after, if_parent_fails, max_attempts, backoff, run_at, and, in
    seconds, delay, expires_in and timeout. QUEUE and the options are defaults for lines that do
    not set them. Jobs must come after the jobs they wait for. Bad lines are reported, and the
    others are loaded. With ids in the lines and --if-exists skip, an interrupted load can be
    repeated.

    \b
    Example:
      tenure enqueue emails '{"to": "ann@example.com"}' --tenant acme --delay 5m
      tenure enqueue --app tasks:app --task send '{"to": "ann@example.com"}'
      tenure enqueue emails --file jobs.jsonl --if-exists skip
      generate-jobs | tenure enqueue --file -
    """
    wanted = given(options)
    if tasks is not None or task is not None:
        if tasks is None or task is None:
            raise click.UsageError("--app and --task belong together.")
        if file is not None or default_queue is not None or "kind" in wanted:
            raise click.UsageError("--task cannot be combined with --kind, --file or --queue.")
        if text is None:
            queue, text = None, queue  # a task has a queue
        wanted |= given({"queue": queue, "if_exists": if_exists})
        _call(app, tasks, task, None if text is None else json(text), wanted)
        return
    if_exists = if_exists or "error"
    if file is None:
        if queue is None or text is None or default_queue is not None:
            raise click.UsageError("Give QUEUE and JSON, or --file.")
        _add_one(app, queue, json(text), if_exists, wanted)
        return
    if text is not None or not wanted.keys().isdisjoint({"id", "unique_key"}):
        raise click.UsageError("With --file the payload, id and unique_key are in the lines.")
    if queue is not None and default_queue is not None:
        raise click.UsageError("Give QUEUE or --queue, not both.")
    _add_many(app, file, if_exists, wanted | given({"queue": queue or default_queue}))


def _add_one(
    app: App, queue: str, payload: Any, if_exists: IfExists, options: dict[str, Any]
) -> None:
    with app.open() as store:
        new = not app.as_json and not exists(store, queue)
        job = store.enqueue(queue, payload, if_exists=if_exists, **options)
        hint = did_you_mean(queue, names_of(store)) if new else ""
    told = f"Job {job.id} is {_described(job, app.clock.now_ms())}."
    if new:
        told += f" Created queue {queue!r}" + (f": {hint}" if hint else ".")
    app.answer(job, lambda: words(told))


def _call(app: App, tasks: Tenure, name: str, payload: Any, options: dict[str, Any]) -> None:
    tasks.move_to(app.url, clock=app.clock)
    check_store(tasks)
    tasks.load()
    task = tasks.tasks.get(name)
    if task is None:
        hint = did_you_mean(name, tasks.tasks)
        raise NotFound(f"the app has no task named {name!r}" + (f": {hint}" if hint else ""))
    with tasks:
        job = task.using(**options).enqueue_payload(payload).job()
    app.answer(job, lambda: words(f"Job {job.id} is {_described(job, app.clock.now_ms())}."))


def _described(job: Job, now: int) -> str:
    if job.state is State.PENDING:
        return "ready" if job.run_at <= now else f"pending, ready {relative(job.run_at, now)}"
    return job.state.value


def _add_many(app: App, file: BinaryIO, if_exists: IfExists, defaults: dict[str, Any]) -> None:
    def complain(number: int, code: str, reason: str) -> None:
        app.complain(code, reason, line=number)

    with app.open() as store:
        loader = Loader(store, defaults, if_exists, complain)
        lines = Lines(file, loader.longest_line)
        try:
            with _progress(app, lines, loader, _size(file)) as advance:
                loader.load(lines, advance)
        except (TenureError, KeyboardInterrupt):
            click.echo(f"Stopped at line {lines.number:,}: at least {_summary(loader)}.", err=True)
            raise
    value = {"loaded": loader.loaded, "skipped": loader.skipped, "bad": loader.bad}
    app.answer(value, lambda: words(_summary(loader)))
    if loader.bad:
        raise click.exceptions.Exit(1)


def _summary(loader: Loader) -> str:
    return f"loaded {loader.loaded:,}, skipped {loader.skipped:,} existing, {loader.bad:,} bad"


def _size(file: BinaryIO) -> int | None:
    """The size of a file in bytes, or None for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _progress(
    app: App, lines: Lines, loader: Loader, size: int | None
) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr if that is a terminal; yields a function that updates it."""
    known = [BarColumn(), TaskProgressColumn(), TimeRemainingColumn()] if size else []
    with progress_bar(
        app,
        *known,
        TextColumn("{task.fields[loaded]:,} jobs, {task.fields[rate]:,.0f} a second"),
    ) as bar:
        task = bar.add_task("", total=size, loaded=0, rate=0.0)

        def advance() -> None:
            rate = loader.loaded / (bar.tasks[0].elapsed or 1)
            bar.update(task, completed=lines.bytes_read, loaded=loader.loaded, rate=rate)

        yield advance
