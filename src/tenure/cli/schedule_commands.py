"""Commands for schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec.structs import replace
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.params import json
from tenure.cli.tables import cell, frame, words
from tenure.cli.text import relative
from tenure.errors import InvalidInput, ScheduleNotFound
from tenure.model import ops
from tenure.model.job import NewJob
from tenure.model.ops import Schedule, good
from tenure.model.queries import Timetable
from tenure.queue import store_of


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """List schedules, or put, drop, pause, resume or fire one.

    \b
    Example:
      tenure schedules
      tenure schedules put nightly '0 3 * * *' reports '{"all": true}' --tz Europe/Copenhagen
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(App))


@schedules.command("list")
@json_option
@pass_app
def list_them(app: App) -> None:
    """List schedules. The same as `tenure schedules`."""
    _list(app)


def _list(app: App) -> None:
    with app.open_existing() as store:
        found = store.schedules.timetable()
    app.answer(found.schedules, lambda: _listed(found.schedules, found.now))


def _listed(found: Sequence[Schedule], now: int) -> RenderableType:
    if not found:
        return words("There are no schedules.")
    table = frame("name", "cron", "zone", "next", "last", "queue", "kind", "app")
    for one in found:
        last = "never" if one.last_at is None else relative(one.last_at, now)
        late = one.next_at < now - 60_000 and not one.disabled
        following = "paused" if one.disabled else relative(one.next_at, now)
        table.add_row(
            cell(one.name),
            cell(one.cron),
            cell(one.tz),
            cell(following, "red" if late else ""),
            cell(last),
            cell(one.job.queue),
            cell(one.job.kind),
            cell(one.owner),
        )
    return table


@schedules.command()
@click.argument("name")
@click.argument("cron")
@click.argument("queue")
@click.argument("payload", type=json, default="null")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of the expression.")
@click.option(
    "--catch-up",
    type=click.Choice(["last", "all", "none"]),
    default="last",
    show_default=True,
    help="Which times to fire that were missed while no scheduler ran.",
)
@click.option("--kind", default="", help="The kind of the job: the name of a task.")
@click.option("--tenant", default="", help="The tenant that the job belongs to.")
@click.option("--unique-key", help="Skip a time while the job of an earlier one is unfinished.")
@reason_option
@json_option
@pass_app
def put(app: App, /, name: str, cron: str, tz: str, catch_up: Any, **fields: Any) -> None:
    """Create or replace a schedule: enqueue a job at the times of a cron expression.

    \b
    Example:
      tenure schedules put nightly '0 3 * * *' reports '{"all": true}'
    """
    with app.open() as store:
        store.schedules.put(name, cron, NewJob(**fields), tz=tz, catch_up=catch_up)
        found = store.schedules.timetable()
    put = _named(found.schedules, name)
    app.answer(put, lambda: words(f"Schedule {name} fires {relative(put.next_at, found.now)}."))


@schedules.command()
@click.argument("name")
@reason_option
@json_option
@pass_app
def drop(app: App, name: str) -> None:
    """Delete a schedule; the jobs it has enqueued stay.

    \b
    Example:
      tenure schedules drop nightly
    """
    with app.open() as store:
        store.schedules.drop(name)
    app.answer({"dropped": name}, lambda: words(f"Schedule {name} is deleted."))


@schedules.command()
@click.argument("name")
@reason_option
@json_option
@pass_app
def pause(app: App, name: str) -> None:
    """Pause a schedule: it does not fire. An app that declares it resumes it when it starts.

    \b
    Example:
      tenure schedules pause nightly --reason "the warehouse is down"
    """
    _switch(app, name, disabled=True)
    app.answer({"name": name, "disabled": True}, lambda: words(f"Schedule {name} is paused."))


@schedules.command()
@click.argument("name")
@reason_option
@json_option
@pass_app
def resume(app: App, name: str) -> None:
    """Resume a paused schedule. The times that it missed are skipped.

    \b
    Example:
      tenure schedules resume nightly
    """
    found = _switch(app, name, disabled=False)
    fires = relative(_named(found.schedules, name).next_at, found.now)
    app.answer({"name": name, "disabled": False}, lambda: words(f"Schedule {name} fires {fires}."))


def _switch(app: App, name: str, *, disabled: bool) -> Timetable:
    with app.open_existing() as store:
        known = _named(store.schedules.list(), name)
        if b"[redacted]" in bytes(known.job.payload):  # it would replace what is hidden
            raise InvalidInput(
                "name", "the service hides fields of this schedule's job: use its dashboard"
            )
        (answer,) = store_of(store).do([ops.PutSchedule(replace(known, disabled=disabled))])
        good(answer, ops.Ok)
        found: Timetable = store.schedules.timetable()
    return found


@schedules.command()
@click.argument("name")
@json_option
@pass_app
def fire(app: App, name: str) -> None:
    """Enqueue the job of a schedule now; its next time does not change.

    \b
    Example:
      tenure schedules fire nightly
    """
    with app.open() as store:
        job = _named(store.schedules.list(), name).job
        ids = store.enqueue_many([job.again()], if_exists="skip")
    app.answer(
        {"id": ids[0], "created": ids.created[0]}, lambda: words(f"Job {ids[0]} is enqueued.")
    )


def _named(found: Sequence[Schedule], name: str) -> Schedule:
    for one in found:
        if one.name == name:
            return one
    raise ScheduleNotFound(name)
