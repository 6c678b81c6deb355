"""The demo command."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import quote

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tenure.cli.context import App, console, display, json_option, pass_app
from tenure.cli.held_back import HeldBack
from tenure.cli.tables import QueueNow, counts_table, named, stats_table, words
from tenure.demo import QUEUE, demo_jobs, work
from tenure.model.job import Job
from tenure.queue import Queue

STYLES = {"done": "green", "dead": "bold red", "failed, will be tried again": "yellow"}


@click.command()
@click.option(
    "--path",
    type=click.Path(dir_okay=False),
    help="The SQLite file to use. [default: a temporary one]",
)
@json_option
@pass_app
def demo(app: App, path: str | None) -> None:
    """Watch a worker run the jobs of three tenants; some fail, and one ends up dead.

    It takes a few seconds, and uses its own SQLite file, whatever --url says.

    \b
    Example:
      tenure demo --path demo.db
    """
    file = Path(path) if path else Path(tempfile.mkdtemp(prefix="tenure-demo-")) / "demo.db"
    app.url = f"sqlite:///{quote(str(file.absolute()))}"
    with app.open() as store:
        count = len(store.enqueue_many(demo_jobs()))
        if app.as_json:
            work(store, app.clock, lambda job, outcome: None)
        else:
            display(words(f"{count} jobs of three tenants are in {file}\n"))
            _work_visibly(app, store)
        stats = store.stats()
    value = {"url": app.url, "stats": stats}
    table = stats_table(stats, dict.fromkeys(stats.queues, QueueNow(HeldBack(), None)), 0)
    app.answer(value, lambda: Group("", table, "", _next_steps(app.url or "")))


def _work_visibly(app: App, store: Queue) -> None:
    """Print a line per attempt; on a terminal, also a live table below them."""
    screen = console()
    with Live(console=screen, transient=True, auto_refresh=False) as live:

        def tell(job: Job, outcome: str) -> None:
            if outcome != "claimed":
                screen.print(_line(job, outcome))
            if screen.is_terminal:
                live.update(_tenants(store), refresh=True)

        work(store, app.clock, tell)


def _line(job: Job, outcome: str) -> Text:
    line = words(f"{job.tenant:<5} {job.payload['to']:<15} attempt {job.attempts}  ")
    return line.append(outcome, STYLES[outcome])


def _tenants(store: Queue) -> Table:
    return counts_table("tenant", [(named(one.tenant), one) for one in store.tenants(QUEUE)], None)


def _next_steps(url: str) -> Text:
    return words(
        "One job used up its attempts and is dead. Try next:\n"
        f"  export TENURE_URL={url}\n"
        f"  tenure dead\n"
        f"  tenure jobs --queue {QUEUE} --tenant bolt\n"
        f"  tenure replay --queue {QUEUE}\n"
        f"""  tenure enqueue {QUEUE} '{{"to": "you@example.com"}}' --delay 5m\n"""
        f"  tenure stats"
    )
