"""Commands for whole stores: migrate, copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import click
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tenure import engines
from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import duration
from tenure.cli.progress import progress_bar
from tenure.cli.tables import words
from tenure.engines import Engine, open_engine
from tenure.engines.sqlite.file import path_of
from tenure.errors import InvalidInput, TenureError
from tenure.observe.logs import counted
from tenure.queue.store_copy import Copy, Leased
from tenure.settings import from_environment, without_secrets


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements without executing them.")
@json_option
@pass_app
def migrate(app: App, sql: bool) -> None:
    """Create the schema of the store, or bring it up to date.

    Opening a store does the same, if the database role is allowed to. Use this command to migrate
    separately, with another role. It is safe to run several at once. With --sql, it prints the
    statements for `psql` or `sqlite3`.

    \b
    Example:
      export TENURE_URL=postgresql://owner@db.example/shop
      tenure migrate
      tenure migrate --sql | psql -v ON_ERROR_STOP=1 shop
    """
    settings = from_environment(os.environ, url=app.url)
    if sql:
        text = engines.migration_sql(settings) or "-- This store has no schema."
        app.answer({"sql": text}, lambda: words(text))
        return
    versions = engines.migrate(settings, app.clock)
    if versions is None:
        app.answer(
            {"from": None, "to": None}, lambda: words(_no_schema(without_secrets(settings.url)))
        )
        return
    before, after = versions
    said = f"The schema has version {after}: nothing to do."
    if before == 0:
        said = f"Created the schema, version {after}."
    elif before < after:
        said = f"Migrated the schema from version {before} to {after}."
    app.answer({"from": before, "to": after}, lambda: words(said))


def _no_schema(url: str) -> str:
    if _is_service(url):
        return "A service migrates its own store: nothing to do."
    return "This store has no schema: nothing to do."


def _is_service(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


@click.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--wait",
    type=duration,
    default="30s",
    show_default=True,
    help="How long to wait for running jobs to finish once the source is paused.",
)
@click.option(
    "--leased",
    type=click.Choice(["refuse", "requeue"]),
    default="refuse",
    show_default=True,
    help="What to do with jobs that are still running then: copy nothing, or take them from their "
    "workers, so that they run again in the target. The attempt does not count.",
)
@json_option
@pass_app
def copy(app: App, source: str, target: str, wait: float, leased: Leased) -> None:
    """Copy a whole store into another, which must be empty.

    Every job is copied unchanged, in any state, with its attempts, results, errors and times.
    Limits, pauses and schedules are copied, too; slots are not. SOURCE and TARGET are URLs. Either
    may be shards. To change only their number, use `tenure reshard`.

    The queues of the source are paused first, and stay paused: from then on the jobs run from the
    target. If the copy is interrupted, the same command continues it. Once it has finished, the
    same command copies jobs that were enqueued in the source since.

    \b
    Example:
      tenure copy sqlite:///jobs.db postgresql://owner@db.example/shop
      tenure copy sqlite:///jobs.db postgresql:///shop --wait 10m --leased requeue
      tenure copy 'sqlite:///jobs-{0..1}.db' 'sqlite:///more-{0..3}.db'
    """
    for name, url in (("source", source), ("target", target)):
        if _is_service(url):
            raise InvalidInput(
                name, f"{without_secrets(url)} is a service: give the URL of the store behind it"
            )
    began = app.clock.monotonic()
    with closing(_open(app, source, "source")) as old, closing(_open(app, target, "target")) as new:
        work = Copy(old, new, app.clock)
        try:
            with _progress(app, work) as bar:
                work.run(leased, wait, **bar)
        except (TenureError, KeyboardInterrupt):
            if work.copied:
                said = (
                    f"Stopped after {counted(work.copied, 'job')}; the same command continues "
                    f"from there."
                )
                click.echo(said, err=True)
            raise
    seconds = app.clock.monotonic() - began
    value = {
        "copied": work.copied,
        "there": work.passed_over,
        "limits": work.limits,
        "schedules": work.schedules,
        "resumed": work.resumed,
        "seconds": round(seconds, 1),
    }
    app.answer(value, lambda: words(_summary(work, seconds)))


def _open(app: App, url: str, name: str) -> Engine:
    try:
        if name == "source":
            _check_source_exists(url)
        return open_engine(from_environment(os.environ, url=url), app.clock)
    except InvalidInput as error:
        raise InvalidInput(name, error.reason) from None


def _check_source_exists(url: str) -> None:
    """Raise an error if the source does not exist, instead of creating it: it is a typo."""
    for one in engines.stores_of(from_environment(os.environ, url=url)):
        if urlsplit(one.url).scheme == "sqlite" and not path_of(one.url).exists():
            raise InvalidInput("url", f"there is no file {path_of(one.url)}")


def _summary(work: Copy, seconds: float) -> str:
    text = f"Copied {counted(work.copied, 'job')} in {seconds:.1f} s"
    if work.passed_over:
        text += f"; {work.passed_over:,} were already there"
    if work.over:
        return f"{text}."
    return (
        f"{text}; {counted(work.limits, 'limit')} and {counted(work.schedules, 'schedule')}. "
        "The queues of the "
        "source are paused, and stay paused."
    )


@contextmanager
def _progress(app: App, work: Copy) -> Iterator[dict[str, Any]]:
    """A progress bar on stderr if that is a terminal; yields callbacks that update it."""
    with progress_bar(
        app,
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    ) as bar:
        task = bar.add_task("starting", total=None)

        def on_wait(running: int) -> None:
            bar.update(task, description=f"waiting for {counted(running, 'running job')}")

        def on_page() -> None:
            brought = work.copied + work.passed_over
            rate = brought / (bar.tasks[0].elapsed or 1)
            done = min(work.before + brought, work.total)
            said = f"{done:,} of {work.total:,} jobs, {rate:,.0f} a second"
            bar.update(task, total=work.total, completed=done, description=said)

        yield {"on_wait": on_wait, "on_page": on_page}
