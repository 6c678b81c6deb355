"""The context of every command: the store's URL, the clock, and how to print."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from rich.console import Console, RenderableType

from tenure.cli.queue_names import did_you_mean, names_of
from tenure.cli.text import as_json, one_line
from tenure.clock import Clock, SystemClock
from tenure.engines import exists
from tenure.errors import NotFound, QueueNotFound, StoreError, TenureError
from tenure.queue import Queue, connect
from tenure.settings import PREFIX, Settings, from_environment, without_secrets

F = TypeVar("F", bound=Callable[..., Any])
ANSWER_SECONDS = 1.0  # for a service to accept a connection
WAIT_SECONDS = f"{PREFIX}BUSY_TIMEOUT"
WIDE = 100_000  # columns if the output is not a terminal, so that nothing is cut or wrapped


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # None: it was closed


@dataclass
class App:
    """One run of the command line."""

    clock: Clock = field(default_factory=SystemClock)
    interactive: bool = field(default_factory=_at_a_terminal)
    url: str | None = None
    as_json: bool = False
    errors_as_json: bool = False
    bar: Console | None = None  # the terminal, while it shows a progress bar
    reason: str = ""  # of a change, for the audit log

    def open(self) -> Queue:
        """Open the store that the command works on. It is created if it does not exist."""
        settings = from_environment(os.environ, url=self.url)
        if WAIT_SECONDS not in os.environ:
            require_answer(settings)
        elif self.errors_as_json:
            logging.getLogger("tenure.remote").addHandler(logging.NullHandler())
        store = connect(settings=settings, clock=self.clock)
        store.sign(by=_who(), reason=self.reason)
        return store

    def open_existing(self) -> Queue:
        """Open the store, for a command that has no use for a new one. Raises NotFound."""
        settings = from_environment(os.environ, url=self.url)
        if not exists(settings):
            raise NotFound(
                f"there is no store at {without_secrets(settings.url)} yet: the first enqueue "
                f"creates it, or `tenure migrate`"
            )
        return self.open()

    def explain(self, error: TenureError) -> str:
        """The message of an error; for an unknown queue, also the name that was probably meant."""
        if isinstance(error, QueueNotFound):
            with suppress(TenureError), self.open_existing() as store:  # a hint is not essential
                if hint := did_you_mean(error.queue, names_of(store)):
                    return f"{error.message}: {hint}"
        return error.message

    def answer(self, value: Any, shown: Callable[[], RenderableType]) -> None:
        """Print the result of a command: as one line of JSON, or formatted for people."""
        if self.as_json:
            click.echo(as_json(value))
        else:
            display(shown())

    def complain(self, code: str, message: str, **more: Any) -> None:
        """Print an error as one line on stderr."""
        if self.errors_as_json:
            text = json.dumps({"error": {"code": code, "message": message}, **more})
        else:
            where = "".join(f"{name} {value}: " for name, value in more.items())
            text = f"error: {where}{one_line(' '.join(message.split()))}"
        if self.bar is not None:
            self.bar.print(text, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def confirm(self, question: str) -> bool:
        """Ask for confirmation on a terminal. Scripts are not asked."""
        return not self.interactive or click.confirm(question, err=True)


def _who() -> str:
    """The user and the machine, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for the user
        user = str(os.getuid()) if hasattr(os, "getuid") else ""
    return f"{user}@{socket.gethostname()}"


def require_answer(settings: Settings) -> None:
    """Raise StoreError if a service does not accept connections. Calls would wait for it for as
    long as the settings say, which is too long for a person at a terminal."""
    url = urlsplit(settings.url)
    host = url.hostname or ""
    if url.scheme not in ("http", "https"):
        return
    from urllib.request import getproxies, proxy_bypass  # slow to import, and seldom needed

    if url.scheme in getproxies() and not proxy_bypass(host):
        return
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        shown = without_secrets(settings.url)
        raise StoreError(
            f"{shown} does not answer ({error}): check that the service runs there, or set "
            f"{WAIT_SECONDS}=30 to wait for it"
        ) from None


def console(*, stderr: bool = False) -> Console:
    """A console for people to read."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = WIDE
    return made


def display(*shown: RenderableType) -> None:
    """Print for people. Files and pipes get lines without trailing spaces."""
    screen = console()
    if screen.is_terminal:
        screen.print(*shown)
        return
    with screen.capture() as captured:
        screen.print(*shown)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def json_option(command: F) -> F:
    """--json"""

    def remember(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            ctx.ensure_object(App).as_json = True

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Print one JSON document; errors are JSON on stderr.",
    )(command)


def take_url(command: click.Command) -> None:
    """Let a command and its subcommands take --url after their name, too."""

    def remember(ctx: click.Context, _: click.Parameter, given: str | None) -> None:
        if given is not None:
            ctx.ensure_object(App).url = given

    option = click.Option(
        ["--url"],
        expose_value=False,
        callback=remember,
        help="URL of the store. [default: TENURE_URL]",
    )
    command.params.append(option)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        take_url(below)


def reason_option(command: F) -> F:
    """--reason"""

    def remember(ctx: click.Context, _: click.Parameter, given: str) -> None:
        ctx.ensure_object(App).reason = given

    return click.option(
        "--reason",
        default="",
        expose_value=False,
        callback=remember,
        help="Why, for the audit log (`tenure audit`).",
    )(command)


pass_app = click.make_pass_decorator(App)
