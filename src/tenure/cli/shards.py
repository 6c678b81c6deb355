"""The command that moves tenants to more or fewer shards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.progress import progress_bar
from tenure.cli.tables import words
from tenure.engines import exists, open_shard
from tenure.engines.sharded.members import both, is_sharded, members_of
from tenure.errors import InvalidInput
from tenure.observe.logs import counted
from tenure.settings import from_environment, without_secrets

if TYPE_CHECKING:
    from tenure.engines.sharded.reshard import Plan, Reshard


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--dry-run", is_flag=True, help="Say how many tenants and jobs would move.")
@json_option
@pass_app
def reshard(app: App, old: str, new: str, dry_run: bool) -> None:
    """Move tenants to more or fewer shards, while the queue works.

    OLD is the URL of the shards that are used now, and NEW that of the shards to use from now on.
    A shard that both name keeps its tenants, except those that a new shard takes. Tenants move a
    few at a time; meanwhile, changes on their shards wait.

    Processes must know the shards of both URLs: if NEW has more, restart them with NEW first, and
    if it has fewer, restart them with NEW afterwards.

    Ctrl-C ends it after the current step. The same command continues it, even after a kill.

    \b
    Example:
      tenure reshard 'sqlite:///jobs-{0..1}.db' 'sqlite:///jobs-{0..3}.db' --dry-run
      tenure reshard 'sqlite:///jobs-{0..1}.db' 'sqlite:///jobs-{0..3}.db'
    """
    from tenure.engines.sharded.engine import ShardedEngine  # seldom needed
    from tenure.engines.sharded.reshard import Reshard

    for url in (old, new):
        if not is_sharded(url):
            raise InvalidInput(
                "url", f"{without_secrets(url)} does not name several shards: use `tenure copy`"
            )
    target = members_of(new)
    members = both(members_of(old), target)
    settings = from_environment(os.environ, url=old)
    if not exists(settings):
        raise InvalidInput("old", f"there is no store at {without_secrets(old)}")
    if dry_run:
        members = members._replace(urls=_existing(members.urls))
    with closing(ShardedEngine.of(members, settings, app.clock, open_shard)) as engine:
        work = Reshard(engine, target.urls, app.clock)
        plan = work.plan()
        if dry_run:
            app.answer(_as_json(plan), lambda: words(_planned(plan)))
            return
        began = app.clock.monotonic()
        with _stopping(work), _progress(app, work, plan) as on_step:
            finished = work.run(on_step)
        seconds = app.clock.monotonic() - began
    value = {
        "tenants": work.tenants,
        "jobs": work.jobs,
        "finished": finished,
        "resumed": work.resumed,
        "longest_pause": round(work.longest, 3),
        "seconds": round(seconds, 1),
    }
    app.answer(value, lambda: words(_summary(work, finished, seconds)))


@click.command()
@click.argument("url")
@click.argument("shard")
@json_option
@pass_app
def readmit(app: App, url: str, shard: str) -> None:
    """Use a shard again that was restored from an old backup.

    If the backup of SHARD is older than the last move of tenants, it has tenants that are on other
    shards by now, so no process uses it. This deletes them from SHARD, and then it is used again.
    Tenants that had moved to SHARD after the backup was made are lost. If there is a newer backup,
    restore that one instead.

    \b
    Example:
      tenure readmit 'sqlite:///jobs-{0..3}.db' 0
    """
    from tenure.engines.sharded.engine import ShardedEngine  # seldom needed
    from tenure.engines.sharded.restored import readmit as run

    if not is_sharded(url):
        raise InvalidInput("url", f"{without_secrets(url)} does not name several shards")
    settings = from_environment(os.environ, url=url)
    if not exists(settings):
        raise InvalidInput("url", f"there is no store at {without_secrets(url)}")
    with closing(ShardedEngine.open(settings, app.clock, open_shard)) as engine:
        tenants, jobs = run(engine, shard)
    app.answer(
        {"shard": shard, "deleted_tenants": tenants, "deleted_jobs": jobs},
        lambda: words(
            f"Shard {shard} is used again. Deleted {counted(jobs, 'job')} of "
            f"{counted(tenants, 'tenant')} that had moved to other shards."
        ),
    )


def _existing(urls: dict[str, str]) -> dict[str, str]:
    """The stores that are there, so that opening them creates none."""
    return {
        name: url for name, url in urls.items() if exists(from_environment(os.environ, url=url))
    }


def _as_json(plan: Plan) -> dict[str, object]:
    largest = plan.largest
    return {
        "tenants": plan.tenants,
        "jobs": plan.jobs,
        "of_tenants": plan.all_tenants,
        "of_jobs": plan.all_jobs,
        "largest": None if largest is None else {"tenant": largest[0], "jobs": largest[1]},
    }


def _planned(plan: Plan) -> str:
    text = (
        f"{plan.tenants:,} of {counted(plan.all_tenants, 'tenant')} would move, with {plan.jobs:,} "
        f"of {counted(plan.all_jobs, 'job')}."
    )
    if plan.largest is not None:
        text += f" The largest, {plan.largest[0]!r}, has {counted(plan.largest[1], 'job')}."
    return text


def _summary(work: Reshard, finished: bool, seconds: float) -> str:
    text = (
        f"Moved {counted(work.tenants, 'tenant')} with {counted(work.jobs, 'job')} in "
        f"{seconds:.1f} s; the longest pause was {work.longest:.2f} s."
    )
    return text if finished else f"{text} Stopped: the same command continues it."


@contextmanager
def _stopping(work: Reshard) -> Iterator[None]:
    """Ctrl-C ends the work after the current step; a second one at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if work.stop:
            raise KeyboardInterrupt
        work.stop = True
        click.echo("Stopping after the current step.", err=True)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(app: App, work: Reshard, plan: Plan) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr if that is a terminal; yields a callback that updates it."""
    with progress_bar(
        app,
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
    ) as bar:
        task = bar.add_task("reading what is there", total=plan.tenants)

        def on_step() -> None:
            said = f"{work.tenants:,} of {plan.tenants:,} tenants, {counted(work.jobs, 'job')}"
            bar.update(task, completed=work.tenants, description=said)

        yield on_step
