"""Commands for flow control: pause, resume, limit, limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.params import IntRange, duration, given, scope_options
from tenure.cli.queue_names import did_you_mean, exists, names_of, require
from tenure.cli.tables import limits_table, scope_words, words
from tenure.errors import NotFound
from tenure.model.fields import MAX_WEIGHT
from tenure.model.ops import Limit
from tenure.queue import Queue

create_option = click.option(
    "--create", is_flag=True, help="Create the queue if it does not exist."
)


@contextmanager
def _queue(app: App, name: str, create: bool) -> Iterator[Queue]:
    """Open the store. Raises NotFound if it has no such queue, which is likely a typo."""
    if create:
        with app.open() as store:
            yield store
        return
    with app.open_existing() as store:
        if not exists(store, name):
            hint = did_you_mean(name, names_of(store))
            meant = f": {hint}" if hint else "."
            raise NotFound(f"there is no queue {name!r}{meant} To create it, add --create")
        yield store


@click.command()
@click.argument("queue")
@scope_options
@create_option
@reason_option
@json_option
@pass_app
def pause(app: App, /, queue: str, tenant: str | None, group: str | None, create: bool) -> None:
    """Pause a queue, or one of its tenants or groups: its jobs are no longer claimed.

    Jobs that are already leased continue.

    \b
    Example:
      tenure pause emails
      tenure pause emails --tenant acme
    """
    with _queue(app, queue, create) as store:
        store.pause(queue, tenant=tenant, group=group)
    _paused(app, queue, tenant, group, True)


@click.command()
@click.argument("queue")
@scope_options
@reason_option
@json_option
@pass_app
def resume(app: App, /, queue: str, tenant: str | None, group: str | None) -> None:
    """End a pause.

    \b
    Example:
      tenure resume emails --tenant acme
    """
    with app.open_existing() as store:
        store.resume(queue, tenant=tenant, group=group)
    _paused(app, queue, tenant, group, False)


def _paused(app: App, queue: str, tenant: str | None, group: str | None, paused: bool) -> None:
    text = f"{'Paused' if paused else 'Resumed'}: {scope_words(queue, tenant, group)}."
    value = {"queue": queue, "tenant": tenant, "group": group, "paused": paused}
    app.answer(value, lambda: words(text))


@click.command()
@click.argument("queue")
@click.option("--tenant", help='Only this tenant; "*" sets the default for each.')
@click.option("--group", help='Only this group; "*" sets the default for each.')
@click.option("--concurrency", type=IntRange(1), help="Maximum number of leased jobs.")
@click.option("--rate", type=IntRange(1), help="Maximum number of claims in --per.")
@click.option("--per", type=duration, help="The time that --rate refers to: 1s, 60, 1h.")
@click.option("--weight", type=IntRange(1, MAX_WEIGHT), help="The tenant's share of turns.")
@click.option("--clear", is_flag=True, help="Remove the limits; a pause stays in place.")
@create_option
@reason_option
@json_option
@pass_app
def limit(
    app: App,
    /,
    queue: str,
    tenant: str | None,
    group: str | None,
    clear: bool,
    create: bool,
    **bounds: Any,
) -> None:
    """Set limits on a queue, a tenant or a group. Limits left out do not change.

    \b
    Example:
      tenure limit emails --concurrency 50 --rate 100 --per 1m
      tenure limit emails --tenant '*' --concurrency 5
      tenure limit emails --tenant acme --weight 3
      tenure limit emails --clear
    """
    wanted = given(bounds)
    if clear == bool(wanted):
        raise click.UsageError(
            "Give --concurrency, --rate with --per, or --weight; or --clear alone."
        )
    if ("rate" in wanted) != ("per" in wanted):
        raise click.UsageError("--rate and --per belong together: --rate 100 --per 1m.")
    with _queue(app, queue, create) as store:
        if clear:
            store.limits.clear(queue, tenant=tenant, group=group)
        else:
            store.limits.set(queue, tenant=tenant, group=group, **wanted)
        if group is not None and tenant is None:
            tenant = "*"  # how the store represents this group of every tenant
        now = next(
            (one for one in store.limits.list(queue) if (one.tenant, one.group) == (tenant, group)),
            Limit(queue, tenant, group),
        )
    none = words(f"No limit: {scope_words(queue, tenant, group)}.")
    app.answer(now, lambda: none if now.is_default else limits_table([now]))


@click.command()
@click.argument("queue", required=False)
@json_option
@pass_app
def limits(app: App, /, queue: str | None) -> None:
    """List the limits and pauses of one queue or of all.

    \b
    Example:
      tenure limits emails
    """
    with app.open_existing() as store:
        found = store.limits.list(queue)
        if not found:
            require(store, queue)
    app.answer(found, lambda: limits_table(found) if found else words("No limits."))
