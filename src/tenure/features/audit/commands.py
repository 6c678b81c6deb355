"""The audit log."""

from __future__ import annotations

from functools import partial

import click
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import page_options
from tenure.cli.tables import cell, frame, words
from tenure.cli.text import absolute
from tenure.features.audit.data import AuditEntry

_LONGEST = 60  # characters of a target


@click.command()
@partial(page_options, of="entries")
@json_option
@pass_app
def audit(app: App, /, limit: int, cursor: str | None) -> None:
    """List what was changed by hand, by whom and why, newest first.

    \b
    Example:
      tenure audit
      tenure audit --limit 10 --json
    """
    with app.open_existing() as store:
        found = store.audit(limit=limit, cursor=cursor)
    app.answer(found, lambda: _table(found.entries) if found.entries else words("No entries."))
    if found.cursor is not None and not app.as_json:
        click.echo(f"There are more: --cursor {found.cursor}", err=True)


def _table(entries: list[AuditEntry]) -> RenderableType:
    table = frame("at", "by", "action", "queue", "target", ">jobs", "reason")
    for one in entries:
        table.add_row(
            cell(absolute(one.at)),
            cell(one.by),
            cell(one.action, "bold"),
            cell(one.queue),
            cell(_target(one), longest=_LONGEST),
            cell("" if one.count is None else f"{one.count:,}"),
            cell(one.reason),
        )
    return table


def _target(entry: AuditEntry) -> str:
    """What was changed: by which filter, if there was one, otherwise which jobs."""
    known = {name: value for name, value in (entry.filter or {}).items() if value not in (None, "")}
    return ", ".join(f"{name}: {value}" for name, value in known.items()) or entry.target


COMMANDS = {"Maintain": [audit]}
