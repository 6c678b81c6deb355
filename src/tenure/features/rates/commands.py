"""Rates: what happened in each queue."""

from __future__ import annotations

import click
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.queue_names import require
from tenure.cli.tables import cell, frame, number, words
from tenure.cli.text import span
from tenure.features.rates.data import Per, RatePoint, Rates

_SHOWN: dict[Per, int] = {"minute": 30, "hour": 48}
_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("queue", required=False)
@click.option("--hours", is_flag=True, help="The last 48 hours, instead of the last 30 minutes.")
@json_option
@pass_app
def rates(app: App, /, queue: str | None, hours: bool) -> None:
    """Show what happened in one queue or in all: jobs enqueued, done and failed, and how long they
    waited and ran.

    \b
    Example:
      tenure rates
      tenure rates emails --hours
    """
    per: Per = "hour" if hours else "minute"
    with app.open_existing() as store:
        found = store.rates(queue, per=per)
        if not found.queues:
            require(store, queue)
    nothing = words("Nothing happened.")
    app.answer(found, lambda: _table(found, _SHOWN[per]) if found.queues else nothing)


def _table(found: Rates, shown: int) -> RenderableType:
    names = ("enqueued", "done", "failed", "dead", "wait p50", "wait p99", "run p50", "run p99")
    table = frame("queue", "done over time", *(f">{name}" for name in names))
    last = found.now - found.now % found.per_ms
    times = [last - n * found.per_ms for n in reversed(range(shown))]
    for name, queue in found.queues.items():
        points = {point.at: point for point in queue.points if point.at >= times[0]}
        if not points:
            continue
        newest = points[max(points)]
        table.add_row(
            cell(name),
            cell(sparkline([points[at].done if at in points else 0 for at in times])),
            *(number(_sum(points, what)) for what in ("enqueued", "done", "failed", "dead")),
            *(
                cell("" if ms is None else span(ms))
                for ms in (newest.wait_p50, newest.wait_p99, newest.run_p50, newest.run_p99)
            ),
        )
    return table


def _sum(points: dict[int, RatePoint], what: str) -> int:
    return sum(getattr(point, what) for point in points.values())


def sparkline(counts: list[int]) -> str:
    """A bar for each count; the highest one is full."""
    most = max(counts, default=0)
    if not most:
        return _BARS[0] * len(counts)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)


COMMANDS = {"Inspect": [rates]}
