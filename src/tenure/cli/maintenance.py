"""Commands that keep a store in order: maintain, reconcile."""

from __future__ import annotations

import click
import msgspec

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import scope_options
from tenure.cli.tables import words
from tenure.model.ops import Maintained

PASS = 1_000  # of each kind in each queue, in one transaction


@click.command()
@json_option
@pass_app
def maintain(app: App) -> None:
    """Do what time asks for, until nothing is left to do.

    Due jobs become ready, leases that ended are taken back, expired jobs die, ended slots go,
    and finished jobs are removed after their retention (TENURE_KEEP_DONE, TENURE_KEEP_CANCELLED
    and TENURE_KEEP_DEAD, in seconds).

    \b
    Example:
      tenure maintain
    """
    sums = dict.fromkeys((field.name for field in msgspec.structs.fields(Maintained)), 0)
    with app.open() as store:
        while True:
            done = store.maintain(limit=PASS)
            for name in sums:
                sums[name] += getattr(done, name)
            if done.total < PASS:  # no kind was cut short
                break
    text = (
        f"{sums['promoted']:,} due, {sums['leases']:,} leases ended, {sums['expired']:,} expired, "
        f"{sums['slots']:,} slots ended, {sums['purged']:,} removed."
    )
    app.answer(sums, lambda: words(text))


@click.command()
@click.argument("queue")
@scope_options
@json_option
@pass_app
def reconcile(app: App, queue: str, tenant: str | None, group: str | None) -> None:
    """Recount the counters of a queue from its jobs.

    Says which were wrong, and by how much.

    \b
    Example:
      tenure reconcile emails
    """
    with app.open() as store:
        by = store.reconcile(queue, tenant=tenant, group=group)
    off = ", ".join(f"{name} by {n:+,}" for name, n in by.items())
    text = f"Corrected: {off}." if by else "Every counter was right."
    app.answer({"corrected": by}, lambda: words(text))
