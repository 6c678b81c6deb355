"""Commands about error groups."""

from __future__ import annotations

from functools import partial

import click
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.params import page_options
from tenure.cli.queue_names import require
from tenure.cli.tables import cell, frame, number, words
from tenure.cli.text import relative
from tenure.features.errors.data import ErrorGroup

_LONGEST = 80  # characters of a message


@click.command()
@click.argument("queue", required=False)
@partial(page_options, of="error groups")
@json_option
@pass_app
def errors(app: App, /, queue: str | None, limit: int, cursor: str | None) -> None:
    """List failures by cause: how many, when, and a sample job.

    To run the dead jobs of a group again, use `tenure replay --error GROUP`.

    \b
    Example:
      tenure errors
      tenure errors emails --limit 10
    """
    with app.open_existing() as store:
        found = store.errors.list(queue, limit=limit, cursor=cursor)
        if not found.errors:
            require(store, queue)
    now = app.clock.now_ms()
    app.answer(found, lambda: _table(found.errors, now) if found.errors else words("No errors."))
    if found.cursor is not None and not app.as_json:
        click.echo(f"There are more: --cursor {found.cursor}", err=True)


def _table(groups: list[ErrorGroup], now: int) -> RenderableType:
    table = frame("group", "queue", "kind", ">count", ">died", "last", "first", "error", "sample")
    for one in groups:
        text = f"{one.type}: {one.message}" if one.type else one.message
        table.add_row(
            cell(one.group, "dim" if one.muted else "bold"),
            cell(one.queue),
            cell(one.kind),
            number(one.count),
            number(one.dead, "red"),
            cell(relative(one.last_at, now)),
            cell(relative(one.first_at, now)),
            cell(f"(muted) {text}" if one.muted else text, longest=_LONGEST),
            cell(one.sample),
        )
    return table


@click.command(name="mute-error")
@click.argument("group")
@click.option("--undo", is_flag=True, help="Unmute it.")
@reason_option
@json_option
@pass_app
def mute_error(app: App, /, group: str, undo: bool) -> None:
    """Mute an error group. It is still counted and listed, but not shown as a problem.

    \b
    Example:
      tenure mute-error 1f0c9a2b7d3e
      tenure mute-error 1f0c9a2b7d3e --undo
    """
    with app.open_existing() as store:
        if undo:
            store.errors.unmute(group)
        else:
            store.errors.mute(group)
    text = f"{'Unmuted' if undo else 'Muted'}: {group}."
    app.answer({"group": group, "muted": not undo}, lambda: words(text))


COMMANDS = {"Inspect": [errors], "Operate": [mute_error]}
