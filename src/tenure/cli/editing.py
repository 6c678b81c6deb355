"""Commands that change one job, and list its history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
from msgspec import UNSET
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.ids import full_id
from tenure.cli.params import duration, given, json
from tenure.cli.tables import cell, frame, words
from tenure.cli.text import absolute
from tenure.model.history import JobMove

F = TypeVar("F", bound=Callable[..., Any])


def moment(text: str) -> datetime:
    """Parse a time such as 2026-11-17T09:30, in the zone of this machine unless it has one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-17T09:30.") from None
    return found.astimezone() if found.tzinfo is None else found


def edit_options(command: F) -> F:
    """--priority and --payload."""
    payload = click.option("--payload", help="The new payload, as JSON. [default: unchanged]")
    return click.option("--priority", type=int, help="Lower values run first.")(payload(command))


def payload_of(text: str | None) -> Any:
    """The value of --payload; UNSET if it was not given."""
    return UNSET if text is None else json(text)


@click.command()
@click.argument("id")
@edit_options
@click.option("--in", "delay", type=duration, help="Run it after this time: 90, 5m, 2h.")
@click.option("--at", "run_at", type=moment, help="Run it at this time: 2026-11-17T09:30.")
@reason_option
@json_option
@pass_app
def update(app: App, /, id: str, payload: str | None, **options: Any) -> None:
    """Change a job that waits: its priority, when it may run, its payload.

    A job that is running or has finished cannot be changed. See `tenure replay --payload`.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure update 0190b5a4-... --priority -5
      tenure update 0190b5a4-... --in 2h --payload '{"to": "ann@example.com"}'
    """
    new = payload_of(payload)
    with app.open_existing() as store:
        job = store.update(full_id(store, id), payload=new, **given(options))
    app.answer(job, lambda: words(f"Updated {job.id}."))


@click.command()
@click.argument("id")
@json_option
@pass_app
def history(app: App, /, id: str) -> None:
    """List the last moves of a job: attempts, failures, and what operators did.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure history 0190b5a4-...
    """
    with app.open_existing() as store:
        moves = store.history(full_id(store, id))
    app.answer(moves, lambda: _table(moves))


def _table(moves: list[JobMove]) -> RenderableType:
    table = frame("when", "what", ">attempt", "by", "message")
    for move in moves:
        attempt = str(move.attempt) if move.attempt else ""
        message = cell(move.message, longest=100)
        table.add_row(absolute(move.at), move.what, attempt, cell(move.by), message)
    return table
