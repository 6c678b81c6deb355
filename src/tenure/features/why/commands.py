"""The command that says why a job does not run."""

from __future__ import annotations

import click
import msgspec
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.ids import full_id
from tenure.cli.tables import cell
from tenure.features.why.data import Limited, WaitsFor, Why, with_last_error

_LONGEST = 200  # characters of an error


@click.command()
@click.argument("id")
@json_option
@pass_app
def why(app: App, /, id: str) -> None:
    """Say why a job does not run, or that it is next, and what to do about it.

    The first reason is the one to solve first.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure why 0190b5a4-7a3c-7000-8000-000000000000
    """
    with app.open_existing() as store:
        found = store.explain(full_id(store, id))
        told = with_last_error(found, store.get(found.id))
    app.answer(msgspec.to_builtins(told), lambda: _shown(told))


def _shown(found: Why) -> RenderableType:
    lines: list[RenderableType] = []
    if (last := found.last_error) is not None:
        lines.append(cell(last.text, longest=_LONGEST))
        if last.fix:
            lines.append(_fix(last.fix))
    for reason in found.reasons:
        lines.append(cell(reason.text))
        if isinstance(reason, WaitsFor) and reason.count > 1:
            for parent in reason.parents:
                state = "" if parent.state is None else f" ({parent.state.value})"
                lines.append(cell(f"  {parent.id}{state}", "dim"))
        if isinstance(reason, Limited) and reason.holders:
            lines.append(cell(f"  running: {', '.join(reason.holders)}", "dim"))
        if reason.fix:
            lines.append(_fix(reason.fix))
    return Group(*lines)


def _fix(text: str) -> RenderableType:
    return cell(f"  -> {text}", "green")


COMMANDS = {"Inspect": [why]}
