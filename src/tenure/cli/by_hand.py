"""Commands for working on jobs by hand: claim, ack, fail, extend, release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.ids import full_id
from tenure.cli.params import IntRange, duration, json, token_option
from tenure.cli.tables import claimed_table, words
from tenure.cli.text import relative
from tenure.model.fields import MAX_CLAIM
from tenure.model.job import Job, Lease, State


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--limit",
    type=IntRange(1, MAX_CLAIM),
    default=1,
    show_default=True,
    help="Maximum number of jobs.",
)
@click.option("--lease", type=duration, help="Length of the lease: 90, 5m. [default: 60s]")
@click.option("--worker", help="Name of the worker. [default: host and process]")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option(
    "--not-group", "not_groups", multiple=True, help="Skip jobs of this group; can be repeated."
)
@json_option
@pass_app
def claim(app: App, /, queues: tuple[str, ...], **options: Any) -> None:
    """Lease ready jobs of one or more queues, in the order given.

    Each job comes with a token, which ack, fail, extend and release need. If a job is not finished
    before its lease expires, another worker can claim it.

    \b
    Example:
      tenure claim emails --limit 10 --lease 5m --json
    """
    with app.open() as store:
        jobs = store.claim(queues, **options)
    app.answer(jobs, lambda: _claimed(jobs, app.clock.now_ms()))


def _claimed(jobs: Sequence[Job], now: int) -> RenderableType:
    if not jobs:
        return words("Nothing is ready.")
    until = relative(jobs[0].lease_until or now, now)
    return Group(claimed_table(jobs), words(f"The lease expires {until}.", "dim"))


@click.command()
@click.argument("id")
@token_option
@click.option("--result", type=json, help="The result, as JSON.")
@json_option
@pass_app
def ack(app: App, /, id: str, token: int, result: Any) -> None:
    """Mark a claimed job as done.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure ack 0190b5a4-... --token 7 --result '{"sent": true}'
    """
    with app.open_existing() as store:
        id = full_id(store, id)
        store.ack(Lease(id, token), result)
    _moved(app, id, State.DONE)


@click.command()
@click.argument("id")
@token_option
@click.option("--error", default="", help="What went wrong.")
@click.option("--retry-in", type=duration, help="Retry after: 90, 5m. [default: its backoff]")
@click.option("--fatal", is_flag=True, help="Do not retry: the job is dead.")
@json_option
@pass_app
def fail(app: App, /, id: str, token: int, error: str, **options: Any) -> None:
    """Report a failed attempt: the job is retried later, or is dead.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure fail 0190b5a4-... --token 7 --error "timed out" --retry-in 5m
    """
    with app.open_existing() as store:
        id = full_id(store, id)
        state = store.fail(Lease(id, token), error, **options)
    _moved(app, id, state)


@click.command()
@click.argument("id")
@token_option
@click.option("--lease", type=duration, help="New length, from now: 90, 5m. [default: 60s]")
@json_option
@pass_app
def extend(app: App, /, id: str, token: int, lease: float | None) -> None:
    """Extend the lease of a claimed job, counted from now.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure extend 0190b5a4-... --token 7 --lease 10m
    """
    with app.open_existing() as store:
        id = full_id(store, id)
        store.extend(Lease(id, token), lease)
    _moved(app, id, State.LEASED)


@click.command()
@click.argument("id")
@token_option
@click.option("--delay", type=duration, default="0s", help="Run after: 90, 5m. [default: now]")
@json_option
@pass_app
def release(app: App, /, id: str, token: int, delay: float) -> None:
    """Give a claimed job back; the attempt does not count.

    ID is the id of a job, or its first characters (at least 4).

    \b
    Example:
      tenure release 0190b5a4-... --token 7 --delay 30s
    """
    with app.open_existing() as store:
        id = full_id(store, id)
        store.release(Lease(id, token), delay=delay)
    _moved(app, id, State.PENDING)


def _moved(app: App, id: str, state: State) -> None:
    app.answer({"id": id, "state": state}, lambda: words(f"Job {id} is {state}."))
