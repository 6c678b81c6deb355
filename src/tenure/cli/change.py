"""Commands that change many jobs: cancel, replay, delete, purge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.editing import edit_options, payload_of
from tenure.cli.ids import full_id
from tenure.cli.params import STATE, duration, error_option, filter_options, given
from tenure.cli.tables import jobs_table, words
from tenure.cli.text import one_line, span
from tenure.errors import Conflict, InvalidInput, NotFound
from tenure.model.job import FINAL, State
from tenure.model.states import Cancelled, sources
from tenure.observe.logs import counted
from tenure.queue import Queue

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only count the jobs that the filter matches."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@filter_options
@dry_run_option
@reason_option
@json_option
@pass_app
def cancel(app: App, /, ids: tuple[str, ...], dry_run: bool, **filters: Any) -> None:
    """Cancel unfinished jobs, by id or by filter.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure cancel 0190b5a4-...
      tenure cancel --queue emails --tenant acme
    """
    where = which_jobs(ids, filters, dry_run)
    with app.open_existing() as store:
        if dry_run:
            show_count(app, store, where | {"state": sorted(sources(Cancelled))})
        elif ids:
            one_by_one(app, store, "cancelled", ids, store.cancel)
        else:
            all_of(app, "cancelled", store.cancel(**where))


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@filter_options
@error_option
@click.option(
    "--state",
    type=click.Choice([State.DEAD.value, State.CANCELLED.value]),
    help="Only jobs in this state. [default: dead]",
)
@edit_options
@click.option("--in", "delay", type=duration, help="Run the changed job after this time: 90, 5m.")
@dry_run_option
@reason_option
@json_option
@pass_app
def replay(
    app: App,
    /,
    ids: tuple[str, ...],
    payload: str | None,
    priority: int | None,
    delay: float | None,
    dry_run: bool,
    **filters: Any,
) -> None:
    """Run dead or cancelled jobs again, by id or by filter.

    They start at attempt 0, and no longer expire. With --payload, --priority or --in, one finished
    job is enqueued again as a new one with these changes; the old one does not change.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure replay 0190b5a4-...
      tenure replay --queue emails
      tenure replay --error 1f0c9a2b7d3e        (a group that `tenure errors` lists)
      tenure replay --state dead        (every dead job of every queue)
      tenure replay 0190b5a4-... --payload '{"to": "ann@example.com"}'
    """
    where = which_jobs(ids, filters, dry_run)
    changes = given({"priority": priority, "delay": delay})
    if payload is not None:
        changes["payload"] = payload_of(payload)
    if changes and len(ids) != 1:
        raise click.UsageError("Changes are for one job: give its id.")
    with app.open_existing() as store:
        if dry_run:
            show_count(app, store, {"state": State.DEAD} | where)
        elif changes:
            new_id = store.replay_edited(full_id(store, ids[0]), **changes)
            app.answer({"id": new_id}, lambda: words(f"Enqueued {new_id}."))
        elif ids:
            one_by_one(app, store, "replayed", ids, store.replay)
        else:
            count = store.replay(**where)
            _require_group(store, count, where)
            all_of(app, "replayed", count)


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@filter_options
@error_option
@click.option(
    "--state", type=STATE, multiple=True, help="Only jobs in this state; can be repeated."
)
@yes_option
@dry_run_option
@reason_option
@json_option
@pass_app
def delete(app: App, /, ids: tuple[str, ...], yes: bool, dry_run: bool, **filters: Any) -> None:
    """Delete jobs permanently, by id or by filter.

    Jobs in any state are deleted, unless --state is given. With a filter, it asks for confirmation
    on a terminal.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure delete 0190b5a4-...
      tenure delete --queue emails --state cancelled --yes
    """
    where = which_jobs(ids, filters, dry_run)
    if not ids and not yes and not dry_run:
        _ask(app, f"Permanently delete all {_described(where)}?")
    with app.open_existing() as store:
        if dry_run:
            show_count(app, store, where)
        elif ids:
            one_by_one(app, store, "deleted", ids, store.delete)
        else:
            count = store.delete(**where)
            _require_group(store, count, where)
            all_of(app, "deleted", count)


@click.command()
@click.option(
    "--older-than",
    type=duration,
    required=True,
    help="Only jobs that finished longer ago than this: 90, 12h, 7d.",
)
@click.option("--queue", help="Only jobs of this queue.")
@click.option(
    "--state",
    type=click.Choice(sorted(state.value for state in FINAL)),
    multiple=True,
    help="Only jobs in this state; can be repeated. [default: done and cancelled]",
)
@yes_option
@dry_run_option
@reason_option
@json_option
@pass_app
def purge(app: App, /, older_than: float, yes: bool, dry_run: bool, **filters: Any) -> None:
    """Delete jobs that finished long ago. Dead jobs are kept unless --state dead is given.

    \b
    Example:
      tenure purge --older-than 7d
      tenure purge --older-than 90d --state dead --queue emails --yes
    """
    where = given(filters)
    shown = {"state": (State.DONE.value, State.CANCELLED.value)} | where
    if dry_run:
        before = datetime.now(UTC) - timedelta(seconds=older_than)
        with app.open_existing() as store:
            show_count(app, store, shown | {"finished_before": before})
        return
    if not yes:
        age = span(round(older_than * 1000))
        _ask(app, f"Permanently delete all {_described(shown)} that finished over {age} ago?")
    with app.open_existing() as store:
        all_of(app, "purged", store.purge(older_than, **where))


def which_jobs(
    ids: tuple[str, ...], filters: dict[str, Any], dry_run: bool = False
) -> dict[str, Any]:
    """The filter. Raises UsageError if the command would change every job in the store."""
    where = given(filters)
    if ids and dry_run:
        raise click.UsageError("--dry-run counts the jobs that a filter matches; give no ids.")
    if ids and where:
        raise click.UsageError("Give ids or a filter, not both.")
    if not ids and not where:
        raise click.UsageError(
            "Say which jobs: give ids, or a filter such as --queue emails. Without one, this "
            "would change every job of every queue."
        )
    return where


def _described(where: dict[str, Any]) -> str:
    names = {name: value for name, value in where.items() if name != "state"}
    of = ", ".join(f"{name} {value!r}" for name, value in names.items())
    states = " and ".join(where.get("state", ()))
    return one_line(f"{states} jobs".lstrip() + (f" of {of}" if of else " of every queue"))


def show_count(app: App, store: Queue, where: dict[str, Any]) -> None:
    """Say how many jobs match, with some of them."""
    found = store.count_matching(**where)

    def shown() -> RenderableType:
        least = "" if found.exact else "At least "
        text = words(f"{least}{counted(found.count, 'job')} would be changed; nothing was.")
        return Group(text, jobs_table(found.sample, app.clock.now_ms())) if found.sample else text

    app.answer(found, shown)


def _ask(app: App, question: str) -> None:
    if not app.confirm(question):
        click.echo("Nothing was deleted.", err=True)
        raise click.exceptions.Exit(1)


def _require_group(store: Queue, count: int, where: Mapping[str, Any]) -> None:
    """Raise NotFound if nothing was changed because there is no such error group."""
    if count or where.get("error") is None:
        return
    cursor: str | None = None
    while True:
        page = store.errors.list(limit=1_000, cursor=cursor)
        if any(one.group == where["error"] for one in page.errors):
            return
        cursor = page.cursor
        if cursor is None:
            raise NotFound(f"there is no error group {where['error']!r}: see `tenure errors`")


def all_of(app: App, done: str, count: int) -> None:
    _report(app, done, count, [], failed=0)


def one_by_one(
    app: App, store: Queue, done: str, ids: tuple[str, ...], change: Callable[[str], int]
) -> None:
    """Change the given jobs, and report those that could not be changed."""
    count, failed = 0, 0
    unchanged: list[str] = []
    for id in dict.fromkeys(ids):
        try:
            changed = change(full_id(store, id))
        except (NotFound, Conflict, InvalidInput) as error:
            app.complain(error.code, error.message)
            failed += 1
        else:
            count += changed
            if not changed:
                unchanged.append(id)
    _report(app, done, count, unchanged, failed)


def _report(app: App, done: str, count: int, unchanged: list[str], failed: int) -> None:
    text = f"{counted(count, 'job')} {done}."
    if unchanged:
        text += f" Not changed because of their state: {', '.join(unchanged)}."
    app.answer(
        {done.replace(" ", "_"): count, "unchanged": unchanged, "failed": failed},
        lambda: words(text),
    )
    if failed:
        raise click.exceptions.Exit(1)
