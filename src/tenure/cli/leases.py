"""Commands of a worker: claim a job, keep it, end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import duration, json, token_option
from tenure.cli.tables import claimed_table, words
from tenure.cli.text import relative
from tenure.model.fields import MAX_CLAIM
from tenure.model.job import Job, Lease, State


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_CLAIM),
    default=1,
    show_default=True,
    help="How many jobs at most.",
)
@click.option("--lease", type=duration, help="How long they are ours: 90, 5m. [default: 60s]")
@click.option("--worker", help="Who claims them. [default: the host and process]")
@click.option("--tenant", help="Jobs of this tenant only.")
@click.option("--not-group", "not_groups", multiple=True, help="None of this group; repeatable.")
@json_option
@pass_app
def claim(app: App, /, queues: tuple[str, ...], **options: Any) -> None:
    """Lease ready jobs of one or several queues, in that order.

    Each job comes with a token, which ack, fail, extend and release ask for. A job that is not
    ended before its lease is over goes to another worker.

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
    return Group(claimed_table(jobs), words(f"The lease ends {until}.", "dim"))


@click.command()
@click.argument("id")
@token_option
@click.option("--result", type=json, help="What came of it, as JSON.")
@json_option
@pass_app
def ack(app: App, /, id: str, token: int, result: Any) -> None:
    """A claimed job is done.

    \b
    Example:
      tenure ack 0190b5a4-... --token 7 --result '{"sent": true}'
    """
    with app.open() as store:
        store.ack(Lease(id, token), result)
    _moved(app, id, State.DONE)


@click.command()
@click.argument("id")
@token_option
@click.option("--error", default="", help="What went wrong.")
@click.option("--retry-in", type=duration, help="Try again after: 90, 5m. [default: its backoff]")
@click.option("--fatal", is_flag=True, help="Do not try again: it is dead.")
@json_option
@pass_app
def fail(app: App, /, id: str, token: int, error: str, **options: Any) -> None:
    """An attempt failed: the job is tried again later, or is dead.

    \b
    Example:
      tenure fail 0190b5a4-... --token 7 --error "timed out" --retry-in 5m
    """
    with app.open() as store:
        state = store.fail(Lease(id, token), error, **options)
    _moved(app, id, state)


@click.command()
@click.argument("id")
@token_option
@click.option("--lease", type=duration, help="How long from now: 90, 5m. [default: 60s]")
@json_option
@pass_app
def extend(app: App, /, id: str, token: int, lease: float | None) -> None:
    """Keep a claimed job for longer, counted from now.

    \b
    Example:
      tenure extend 0190b5a4-... --token 7 --lease 10m
    """
    with app.open() as store:
        store.extend(Lease(id, token), lease)
    _moved(app, id, State.LEASED)


@click.command()
@click.argument("id")
@token_option
@click.option("--delay", type=duration, default="0s", help="Ready after: 90, 5m. [default: now]")
@json_option
@pass_app
def release(app: App, /, id: str, token: int, delay: float) -> None:
    """Give a claimed job back unused; the attempt is not counted.

    \b
    Example:
      tenure release 0190b5a4-... --token 7 --delay 30s
    """
    with app.open() as store:
        store.release(Lease(id, token), delay=delay)
    _moved(app, id, State.PENDING)


def _moved(app: App, id: str, state: State) -> None:
    app.answer({"id": id, "state": state}, lambda: words(f"Job {id} is {state}."))
