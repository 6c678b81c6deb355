"""Commands that show counts, lists of jobs, or one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import STATE, filter_options, page_options
from tenure.cli.tables import (
    cell,
    counts_table,
    dead_list,
    job_in_full,
    jobs_table,
    named,
    stats_table,
    words,
)
from tenure.model.job import State
from tenure.model.queries import Page
from tenure.settings import without_secrets

F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@click.argument("queue", required=False)
@json_option
@pass_app
def stats(app: App, /, queue: str | None) -> None:
    """Count jobs by state, per queue.

    Pending jobs are "delayed" until they are due, then "ready".

    \b
    Example:
      tenure stats
      tenure stats emails --json
    """
    with app.open() as store:
        found = store.stats(queue)
        url = without_secrets(store.settings.url)
    empty = words(f"There is no queue yet in {url}.")
    app.answer(found, lambda: stats_table(found) if found.queues else empty)


@click.command()
@filter_options
@click.option(
    "--state", type=STATE, multiple=True, help="Only jobs in this state; can be repeated."
)
@page_options
@json_option
@pass_app
def jobs(app: App, /, state: tuple[str, ...], **options: Any) -> None:
    """List jobs, newest first.

    With a single final state (done, dead or cancelled), the last finished comes first.

    \b
    Example:
      tenure jobs --queue emails --state pending --state leased --limit 20
      tenure jobs --json | jq -r '.jobs[].id'
    """
    _list(app, state=state or None, **options)


@click.command()
@filter_options
@page_options
@json_option
@pass_app
def dead(app: App, /, **options: Any) -> None:
    """List dead jobs with their last error, latest first.

    \b
    Example:
      tenure dead --queue emails
      tenure replay --queue emails
    """
    _list(app, errors=True, state=State.DEAD, **options)


def _list(app: App, *, errors: bool = False, **options: Any) -> None:
    with app.open() as store:
        page = store.jobs(**options)
    app.answer(page, lambda: _page(page, app.clock.now_ms(), errors))


def _page(page: Page, now: int, errors: bool) -> RenderableType:
    if not page.jobs:
        return words("No jobs.")
    table = (dead_list if errors else jobs_table)(page.jobs, now)
    if page.cursor is None:
        return table
    return Group(table, words(f"There are more: --cursor {page.cursor}", "dim"))


@click.command()
@click.argument("id")
@json_option
@pass_app
def show(app: App, /, id: str) -> None:
    """Show one job in full: its payload, result, and failed attempts.

    \b
    Example:
      tenure show 0190b5a4-7a3c-7000-8000-000000000000
    """
    with app.open() as store:
        job = store.get(id)
    app.answer(job, lambda: job_in_full(job, app.clock.now_ms()))


def name_page_options(command: F) -> F:
    """--limit and --after, for lists ordered by name."""
    command = click.option("--after", help="Only names after this one.")(command)
    return click.option(
        "--limit",
        type=click.IntRange(1, 10_000),
        default=100,
        show_default=True,
        help="Maximum number of names.",
    )(command)


@click.command()
@click.argument("queue")
@name_page_options
@json_option
@pass_app
def tenants(app: App, /, queue: str, limit: int, after: str | None) -> None:
    """Count jobs by state, per tenant of a queue.

    \b
    Example:
      tenure tenants emails --limit 20
    """
    with app.open() as store:
        found = store.tenants(queue, limit=limit, after=after)
    rows = [(named(one.tenant), one) for one in found]
    app.answer(found, lambda: _names("tenant", rows, limit))


@click.command()
@click.argument("queue")
@click.option("--tenant", default="", help="The tenant. [default: the one without a name]")
@name_page_options
@json_option
@pass_app
def groups(app: App, /, queue: str, tenant: str, limit: int, after: str | None) -> None:
    """Count jobs by state, per group of a tenant.

    \b
    Example:
      tenure groups crawls --tenant acme
    """
    with app.open() as store:
        found = store.groups(queue, tenant=tenant, limit=limit, after=after)
    rows = [(named(one.group), one) for one in found]
    app.answer(found, lambda: _names("group", rows, limit))


def _names(label: str, rows: Sequence[tuple[Any, Any]], limit: int) -> RenderableType:
    if not rows:
        return words(f"No {label}s.")
    table = counts_table(label, rows, None)
    if len(rows) < limit:
        return table
    last = getattr(rows[-1][1], label)
    return Group(table, cell(f"There may be more: --after {last!r}", "dim"))
