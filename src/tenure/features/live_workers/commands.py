"""The command that lists live workers."""

from __future__ import annotations

import click
from rich.table import Table

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.tables import cell, frame, number, words
from tenure.cli.text import relative
from tenure.features.live_workers.data import LiveWorker


@click.command()
@click.argument("queue", required=False)
@json_option
@pass_app
def workers(app: App, /, queue: str | None) -> None:
    """List the live workers, or those of one queue, and how many jobs they run.

    A worker that has died is no longer listed after 20 seconds.

    \b
    Example:
      tenure workers
      tenure workers emails --json
    """
    with app.open_existing() as store:
        found = store.workers(queue)
    none = words("No live workers." if queue is None else f"No live worker listens to {queue!r}.")
    app.answer(found, lambda: _table(found, app.clock.now_ms()) if found else none)


def _table(found: list[LiveWorker], now: int) -> Table:
    table = frame("worker", "host", ">pid", "queues", ">busy", ">of", "started", "seen", "version")
    for one in found:
        table.add_row(
            cell(one.name),
            cell(one.host),
            cell(one.pid or ""),
            cell(", ".join(one.queues)),
            number(one.busy),
            number(one.concurrency),
            cell(relative(one.started_at, now) if one.started_at else ""),
            cell(relative(one.seen_at, now)),
            cell(one.version),
        )
    return table


COMMANDS = {"Inspect": [workers]}
