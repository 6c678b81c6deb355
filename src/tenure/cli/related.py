"""Commands that find jobs by their relation to another job, or by a unique key."""

from __future__ import annotations

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.ids import full_id
from tenure.cli.params import IntRange
from tenure.cli.tables import cell, jobs_table, words
from tenure.model.queries import Related, RelatedJob


@click.command()
@click.argument("id")
@click.option(
    "--limit",
    type=IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of jobs on each side.",
)
@json_option
@pass_app
def related(app: App, /, id: str, limit: int) -> None:
    """List the jobs that a job runs after, and the unfinished jobs that wait for it.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure related 0190b5a4-7a3c-7000-8000-000000000000
    """
    with app.open_existing() as store:
        found = store.related(full_id(store, id), limit=limit)
    app.answer(found, lambda: _shown(found))


def _shown(found: Related) -> RenderableType:
    if not found.after and not found.before:
        return words("It waits for no job, and no job waits for it.")
    lines: list[RenderableType] = []
    for title, jobs in (("Runs after", found.after), ("Is waited for by", found.before)):
        if jobs:
            lines += [cell(f"{title}:"), *map(_line, jobs)]
    if found.more:
        lines.append(cell("  and more: see --limit", "dim"))
    return Group(*lines)


def _line(one: RelatedJob) -> RenderableType:
    kind = f" {one.kind}" if one.kind else ""
    return cell(f"  {one.id}  {one.state.value}  {one.queue}{kind}")


@click.command()
@click.argument("unique-key")
@click.option("--queue", help="Only in this queue.")
@click.option("--tenant", help="Only of this tenant.")
@json_option
@pass_app
def find(app: App, /, unique_key: str, queue: str | None, tenant: str | None) -> None:
    """Find the unfinished jobs that hold a unique key, in all queues and tenants.

    \b
    Example:
      tenure find order-4711
      tenure find order-4711 --queue emails --json
    """
    with app.open_existing() as store:
        ids = store.find_by_key(unique_key, queue=queue, tenant=tenant)
        jobs = [job for job in store.get_many(ids) if job is not None]
    none = words("No unfinished job holds this unique key.")
    app.answer(jobs, lambda: jobs_table(jobs, app.clock.now_ms()) if jobs else none)
