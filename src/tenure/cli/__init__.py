"""The command line. Every command uses the public calls of `tenure.Queue`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tenure import __version__
from tenure.cli.by_hand import ack, claim, extend, fail, release
from tenure.cli.change import cancel, delete, purge, replay
from tenure.cli.context import App, json_option, take_url
from tenure.cli.copying import copy, migrate
from tenure.cli.demo_command import demo
from tenure.cli.editing import history, update
from tenure.cli.limit_commands import limit, limits, pause, resume
from tenure.cli.maintenance import maintain, reconcile
from tenure.cli.produce import enqueue
from tenure.cli.related import find, related
from tenure.cli.schedule_commands import schedules
from tenure.cli.serve import serve, token
from tenure.cli.shards import readmit, reshard
from tenure.cli.show import dead, groups, jobs, show, stats, tenants
from tenure.cli.top import top
from tenure.cli.workers import scheduler, worker
from tenure.errors import TenureError
from tenure.features import parts

INTERRUPTED = 130  # the exit code that shells use for a program stopped with Ctrl-C

SECTIONS: dict[str, list[click.Command]] = {
    "Run": [worker, scheduler, schedules, serve, token],
    "Inspect": [
        stats,
        top,
        jobs,
        show,
        find,
        related,
        history,
        dead,
        tenants,
        groups,
        limits,
    ],
    "Produce": [enqueue],
    "Work": [claim, ack, fail, extend, release],
    "Operate": [cancel, replay, update, delete, purge, pause, resume, limit],
    "Maintain": [maintain, reconcile, migrate, copy, reshard, readmit],
    "Try": [demo],
}
for feature in parts("commands"):
    for title, commands in feature.COMMANDS.items():
        SECTIONS[title] += commands
WITHOUT_A_STORE = [token, copy, reshard, readmit, demo]  # or with two


class Root(click.Group):
    """The group of all commands: lists them by section, and reports errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name or "" for section in SECTIONS.values() for command in section]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(200)) for command in commands],
                    col_max=12,
                )

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        obj: App | None = None,
        **extra: Any,
    ) -> NoReturn:
        args = sys.argv[1:] if args is None else list(args)
        if isinstance(sys.stdout, io.TextIOWrapper):  # do not fail on unencodable characters
            sys.stdout.reconfigure(errors="backslashreplace")
        app = App() if obj is None else obj
        app.errors_as_json = "--json" in args  # even if the rest cannot be parsed
        try:
            code = super().main(args, prog_name, standalone_mode=False, obj=app, **extra)
        except TenureError as error:
            app.complain(error.code, app.explain(error))
            code = 1
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as error:
            if app.errors_as_json:
                app.complain("usage", error.format_message())
            else:
                error.show()
            code = error.exit_code
        sys.exit(code)


@click.group(
    cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--url",
    help="URL of the store: sqlite:///file.db, sqlite:////path/file.db, postgresql://..., "
    "fdb://..., http://... for a service, or 'sqlite:///jobs-{0..3}.db' (quoted) for shards. "
    "Defaults to TENURE_URL, then to sqlite:///tenure.db.",
)
@json_option
@click.version_option(__version__, prog_name="tenure")
@click.pass_obj
def main(app: App, url: str | None) -> None:
    """Tenure: a durable, multi-tenant job queue.

    Durations are in seconds (90), or have a unit: 500ms, 90s, 5m, 2h, 7d. With --json, every
    command prints one JSON document. The exit code is 0, 1 for an error, or 2 for wrong usage.

    \b
    Example:
      tenure enqueue emails '{"to": "ann@example.com"}' --tenant acme --delay 5m
      tenure stats
    """
    app.url = url


for section in SECTIONS.values():
    for command in section:
        main.add_command(command)
        if command not in WITHOUT_A_STORE:
            take_url(command)
