"""The command that says why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.ids import full_id
from tenure.cli.tables import cell
from tenure.cli.text import relative
from tenure.model.job import Failure, State
from tenure.model.ops import UNKNOWN_KIND
from tenure.model.why import Explained, Limited, WaitsFor

_MAY_HAVE_FAILED = (State.PENDING, State.DEAD)
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
        errors = store.get(found.id).errors if found.state in _MAY_HAVE_FAILED else []
    app.answer(msgspec.to_builtins(found), lambda: _shown(found, errors))


def _shown(found: Explained, errors: Sequence[Failure]) -> RenderableType:
    lines = _last_error(errors[-1], found.now) if errors else []
    for reason in found.reasons:
        lines.append(cell(reason.text))
        if isinstance(reason, WaitsFor) and reason.count > 1:
            for parent in reason.parents:
                state = "" if parent.state is None else f" ({parent.state.value})"
                lines.append(cell(f"  {parent.id}{state}", "dim"))
        if isinstance(reason, Limited) and reason.holders:
            lines.append(cell(f"  running: {', '.join(reason.holders)}", "dim"))
        if reason.fix:
            lines.append(cell(f"  -> {reason.fix}", "green"))
    return Group(*lines)


def _last_error(last: Failure, now: int) -> list[RenderableType]:
    where = f" on {last.worker}" if last.worker else ""
    ago = f"{relative(last.at, now)}{where}"
    if last.type == UNKNOWN_KIND:
        fix = "Start a worker whose app has this task, or rename the task back."
        noticed = f"{last.message[:1].upper()}{last.message[1:]}: first noticed {ago}."
        return [cell(noticed), cell(f"  -> {fix}", "green")]
    what = ": ".join(part for part in (last.type, last.message) if part)
    return [cell(f"Attempt {last.attempt} failed {ago}: {what}", longest=_LONGEST)]
