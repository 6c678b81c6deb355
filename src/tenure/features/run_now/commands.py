"""The command."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.change import all_of, dry_run_option, one_by_one, show_count, which_jobs
from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.params import filter_options
from tenure.model.job import State


@click.command(name="run-now")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@filter_options
@dry_run_option
@reason_option
@json_option
@pass_app
def run_now(app: App, /, ids: tuple[str, ...], dry_run: bool, **filters: Any) -> None:
    """Run delayed jobs now, and failed ones that wait for their next attempt.

    Their attempts are not reset.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure run-now 0190b5a4-...
      tenure run-now --queue emails --tenant acme
    """
    where = which_jobs(ids, filters, dry_run)
    with app.open_existing() as store:
        if dry_run:
            show_count(app, store, where | {"state": State.PENDING})
        elif ids:
            one_by_one(app, store, "made ready", ids, store.run_now)
        else:
            all_of(app, "made ready", store.run_now(**where))


COMMANDS = {"Operate": [run_now]}
