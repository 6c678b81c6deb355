"""Commands of flow control: pause, resume, limits."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import duration, given, scope_options
from tenure.cli.tables import limits_table, scope_words, words
from tenure.model.fields import MAX_WEIGHT
from tenure.model.ops import Limit


@click.command()
@click.argument("queue")
@scope_options
@json_option
@pass_app
def pause(app: App, /, queue: str, tenant: str | None, group: str | None) -> None:
    """Give out no more jobs of a queue, or of one tenant or group of it.

    Jobs that are leased already go on.

    \b
    Example:
      tenure pause emails
      tenure pause emails --tenant acme
    """
    with app.open() as store:
        store.pause(queue, tenant=tenant, group=group)
    _paused(app, queue, tenant, group, True)


@click.command()
@click.argument("queue")
@scope_options
@json_option
@pass_app
def resume(app: App, /, queue: str, tenant: str | None, group: str | None) -> None:
    """End a pause.

    \b
    Example:
      tenure resume emails --tenant acme
    """
    with app.open() as store:
        store.resume(queue, tenant=tenant, group=group)
    _paused(app, queue, tenant, group, False)


def _paused(app: App, queue: str, tenant: str | None, group: str | None, paused: bool) -> None:
    text = f"{'Paused' if paused else 'Resumed'}: {scope_words(queue, tenant, group)}."
    value = {"queue": queue, "tenant": tenant, "group": group, "paused": paused}
    app.answer(value, lambda: words(text))


@click.command()
@click.argument("queue")
@click.option("--tenant", help='This tenant; "*" is the default for each tenant.')
@click.option("--group", help='This group; "*" is the default for each group.')
@click.option("--concurrency", type=click.IntRange(1), help="How many jobs are leased at once.")
@click.option("--rate", type=click.IntRange(1), help="How many jobs of the queue are claimed ...")
@click.option("--per", type=duration, help="... in this time: 1s, 60, 1h.")
@click.option(
    "--weight", type=click.IntRange(1, MAX_WEIGHT), help="How many turns the tenant gets."
)
@click.option("--clear", is_flag=True, help="Remove the limits; a pause stays.")
@json_option
@pass_app
def limit(
    app: App, /, queue: str, tenant: str | None, group: str | None, clear: bool, **bounds: Any
) -> None:
    """Bound a queue, a tenant of it, or a group. What is left out stays as it was.

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
            "Say what: --concurrency, --rate with --per, or --weight; or --clear alone."
        )
    if ("rate" in wanted) != ("per" in wanted):
        raise click.UsageError("--rate and --per belong together: --rate 100 --per 1m.")
    with app.open() as store:
        if clear:
            store.clear_limit(queue, tenant=tenant, group=group)
        else:
            store.set_limit(queue, tenant=tenant, group=group, **wanted)
        if group is not None and tenant is None:
            tenant = "*"  # as the store has it: this group of every tenant
        now = next(
            (one for one in store.limits(queue) if (one.tenant, one.group) == (tenant, group)),
            Limit(queue, tenant, group),
        )
    none = words(f"No limit: {scope_words(queue, tenant, group)}.")
    app.answer(now, lambda: none if now == Limit(queue, tenant, group) else limits_table([now]))


@click.command()
@click.argument("queue", required=False)
@json_option
@pass_app
def limits(app: App, /, queue: str | None) -> None:
    """List every limit and pause, of one queue or of all.

    \b
    Example:
      tenure limits emails
    """
    with app.open() as store:
        found = store.limits(queue)
    app.answer(found, lambda: limits_table(found) if found else words("No limits."))
