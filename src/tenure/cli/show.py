"""Commands that show counts, lists of jobs, or one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.held_back import every_name
from tenure.cli.ids import full_id
from tenure.cli.overview import Overview, overview
from tenure.cli.params import STATE, IntRange, filter_options, page_options, time_options
from tenure.cli.tables import (
    cell,
    counts_table,
    dead_list,
    job_in_full,
    jobs_table,
    named,
    stats_table,
    totals_table,
    words,
)
from tenure.cli.text import absolute
from tenure.model.job import State
from tenure.model.queries import GroupTotal, Page
from tenure.queue import Queue
from tenure.settings import without_secrets

F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@click.argument("queue", required=False)
@json_option
@pass_app
def stats(app: App, /, queue: str | None) -> None:
    """Count jobs by state, per queue, and show how long the oldest ready job has waited.

    Pending jobs are "delayed" until they are due, then "ready". Ready jobs that cannot run now,
    because of a pause or a concurrency limit, have columns of their own.

    \b
    Example:
      tenure stats
      tenure stats emails --json
    """
    with app.open_existing() as store:
        found = overview(store, queue)
        shown = shown_stats(found, store, app.clock.now_ms())
    app.answer(found.as_document(), lambda: shown)


def shown_stats(found: Overview, store: Queue, now: int) -> RenderableType:
    """The counts of queues as a table, and the store that has them."""
    url = without_secrets(store.settings.url)
    if not found.stats.queues:
        return words(f"There is no queue yet in {url}.")
    return Group(stats_table(found.stats, found.more, now), cell(f"in {url}", "dim"))


def _queue_argument(command: F) -> F:
    """QUEUE, the same as --queue: the commands beside these take it, too."""
    return click.argument("argument", metavar="[QUEUE]", required=False)(command)


@click.command()
@_queue_argument
@filter_options
@click.option(
    "--state", type=STATE, multiple=True, help="Only jobs in this state; can be repeated."
)
@time_options
@page_options
@json_option
@pass_app
def jobs(app: App, /, state: tuple[str, ...], **options: Any) -> None:
    """List jobs, newest first.

    With a single final state (done, dead or cancelled), the last finished comes first.

    \b
    Example:
      tenure jobs emails --state pending --state leased --limit 20
      tenure jobs emails --state dead --finished-after 2h
      tenure jobs --json | jq -r '.jobs[].id'
    """
    _list(app, state=state or None, **options)


@click.command()
@_queue_argument
@filter_options
@time_options
@page_options
@json_option
@pass_app
def dead(app: App, /, **options: Any) -> None:
    """List dead jobs with their last error, latest first.

    \b
    Example:
      tenure dead emails
      tenure replay --queue emails
    """
    _list(app, errors=True, state=State.DEAD, **options)


def _list(app: App, *, argument: str | None, errors: bool = False, **options: Any) -> None:
    if argument is not None:
        if options["queue"] is not None:
            raise click.UsageError("Give QUEUE or --queue, not both.")
        options["queue"] = argument
    with app.open_existing() as store:
        page = store.jobs(**options)
    app.answer(page, lambda: _page(page, app.clock.now_ms(), errors))


def _page(page: Page, now: int, errors: bool) -> RenderableType:
    if not page.jobs:
        return words("No jobs." if page.cursor is None else f"None so far. {_how_far(page)}")
    table = (dead_list if errors else jobs_table)(page.jobs, now)
    if page.cursor is None:
        return table
    return Group(table, words(f"There may be more. {_how_far(page)}", "dim"))


def _how_far(page: Page) -> str:
    back = "" if page.scanned_to is None else f", back to {absolute(page.scanned_to)}"
    return f"Looked at {page.scanned:,} jobs{back}; continue with --cursor {page.cursor}"


@click.command()
@click.argument("id")
@json_option
@pass_app
def show(app: App, /, id: str) -> None:
    """Show one job in full: its payload, result, and failed attempts.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure show 0190b5a4-7a3c-7000-8000-000000000000
    """
    with app.open_existing() as store:
        job = store.get(full_id(store, id))
    app.answer(job, lambda: job_in_full(job, app.clock.now_ms()))


def name_page_options(command: F) -> F:
    """--limit, --sort and --after, for lists of names."""
    command = click.option("--after", help="Only names after this one; sorts by name.")(command)
    command = click.option(
        "--sort",
        type=click.Choice(["backlog", "name"]),
        default="backlog",
        show_default=True,
        help="Most unfinished jobs first, or by name.",
    )(command)
    return click.option(
        "--limit",
        type=IntRange(1, 10_000),
        default=100,
        show_default=True,
        help="Maximum number of names.",
    )(command)


@click.command()
@click.argument("queue")
@name_page_options
@json_option
@pass_app
def tenants(app: App, /, queue: str, **page: Any) -> None:
    """Count jobs by state, per tenant of a queue, largest backlog first.

    \b
    Example:
      tenure tenants emails --limit 20
    """
    with app.open_existing() as store:
        _list_names(app, store.tenants, "tenant", queue, **page)


@click.command()
@click.argument("queue")
@click.option("--tenant", help="The tenant; '' for jobs without one. [default: all together]")
@name_page_options
@json_option
@pass_app
def groups(app: App, /, queue: str, tenant: str | None, **page: Any) -> None:
    """Count jobs per group of a queue, largest backlog first. With a tenant, by state.

    \b
    Example:
      tenure groups crawls
      tenure groups crawls --tenant acme
    """
    with app.open_existing() as store:
        if tenant is None:
            _list_names(app, store.group_totals, "group", queue, **page)
        else:
            _list_names(app, store.groups, "group", queue, tenant=tenant, **page)


def _list_names(
    app: App,
    call: Callable[..., list[Any]],
    label: str,
    queue: str,
    *,
    limit: int,
    after: str | None,
    sort: str,
    **options: Any,
) -> None:
    if sort == "name" or after is not None:
        found = call(queue, limit=limit, after=after, **options)
        hint = f"--after {getattr(found[-1], label)!r}" if len(found) == limit else ""
    else:
        every = every_name(call, label, queue, **options)
        found = nsmallest(limit + 1, every, key=lambda one: (-one.unfinished, getattr(one, label)))
        hint = f"--limit {limit * 10}" if len(found) > limit else ""
        del found[limit:]
    rows = [(named(getattr(one, label)), one) for one in found]
    app.answer(found, lambda: _names(label, rows, hint))


def _names(label: str, rows: Sequence[tuple[Any, Any]], hint: str) -> RenderableType:
    if not rows:
        return words(f"No {label}s.")
    whole = isinstance(rows[0][1], GroupTotal)
    table = totals_table(label, rows) if whole else counts_table(label, rows, None)
    return Group(table, cell(f"There may be more: {hint}", "dim")) if hint else table
