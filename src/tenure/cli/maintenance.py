"""Commands that maintain a store: maintain, reconcile."""

from __future__ import annotations

import click
import msgspec

from tenure.cli.context import App, json_option, pass_app, reason_option
from tenure.cli.params import scope_options
from tenure.cli.tables import words
from tenure.model.ops import Maintained
from tenure.observe.logs import counted

PASS = 1_000  # of each kind per queue, in one transaction


@click.command()
@json_option
@pass_app
def maintain(app: App) -> None:
    """Run due maintenance until nothing is left to do.

    Due jobs become ready, jobs with expired leases are retried, expired jobs become dead, expired
    slots are dropped, and finished jobs are removed after their retention (TENURE_KEEP_DONE,
    TENURE_KEEP_CANCELLED and TENURE_KEEP_DEAD, in seconds).

    \b
    Example:
      tenure maintain
    """
    counts = (field.name for field in msgspec.structs.fields(Maintained) if field.type is int)
    sums = dict.fromkeys(counts, 0)
    with app.open_existing() as store:
        while True:
            done = store.maintain(limit=PASS)
            for name in sums:
                sums[name] += getattr(done, name)
            if done.total < PASS:  # no kind reached its limit
                break
    text = (
        f"{sums['promoted']:,} due, {counted(sums['leases'], 'lease')} expired, "
        f"{counted(sums['expired'], 'job')} expired, {counted(sums['slots'], 'slot')} expired, "
        f"{sums['purged']:,} removed."
    )
    app.answer(sums, lambda: words(text))


@click.command()
@click.argument("queue")
@scope_options
@reason_option
@json_option
@pass_app
def reconcile(app: App, queue: str, tenant: str | None, group: str | None) -> None:
    """Recount the counters of a queue from its jobs.

    Reports which counters were wrong, and by how much.

    \b
    Example:
      tenure reconcile emails
    """
    with app.open_existing() as store:
        by = store.reconcile(queue, tenant=tenant, group=group)
    off = ", ".join(f"{name} by {n:+,}" for name, n in by.items())
    text = f"Corrected: {off}." if by else "All counters were correct."
    app.answer({"corrected": by}, lambda: words(text))
