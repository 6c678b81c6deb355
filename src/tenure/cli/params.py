"""Parameter types, and options that several commands share."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tenure.model.job import State
from tenure.tasks.app import Tenure
from tenure.tasks.task import Task

F = TypeVar("F", bound=Callable[..., Any])

_NOT_OF_THE_PROGRAM = (
    "<frozen",
    f"{Path(__file__).parents[1]}/",
    f"{Path(click.__file__).parent}/",
    f"{Path(importlib.__file__).parent}/",
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class IntRange(click.IntRange):
    """An integer within bounds, which errors call an integer and not an "integer range"."""

    name = "integer"


def duration(text: str) -> float:
    """Parse a duration such as 90, 500ms, 90s, 5m, 2h or 7d to seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 90, 90s, 5m, 2h or 7d.")
    return float(found[1]) * _SECONDS[found[2]]


def log_options(command: F) -> F:
    """--log-level and --log-format."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        envvar="TENURE_LOG_LEVEL",
        help="Lowest level to log, on stderr.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        envvar="TENURE_LOG_FORMAT",
        help="Plain text, or one JSON object per line.",
    )
    return level(form(command))


def json(text: str) -> Any:
    """Parse a JSON value."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        hint = """ A string needs double quotes: '"hello"'.""" if text[:1].isalpha() else ""
        raise click.BadParameter(f"{text[:60]!r} is not JSON: {error}.{hint}") from None


class CannotImport(click.ClickException):
    """The module of an app raises an error. Shows the lines of the program, and not those of the
    command line and of the import system."""

    def __init__(self, module: str, error: Exception) -> None:
        told = traceback.TracebackException.from_exception(error)
        frames = [one for one in told.stack if not one.filename.startswith(_NOT_OF_THE_PROGRAM)]
        told.stack = traceback.StackSummary.from_list(frames)
        told.__cause__ = told.__context__ = None
        super().__init__(f"{module} cannot be imported:\n{''.join(told.format()).rstrip()}")


def target(name: str) -> Tenure:
    """Import the app that MODULE:APP names."""
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise CannotImport(module, error) from error  # something it imports does not exist
        hint = f" Write {module[:-3]}:app, without .py." if module.endswith(".py") else ""
        raise click.BadParameter(
            f"there is no module {module!r} here or on the path.{hint}"
        ) from None
    except Exception as error:
        if not module or module.startswith("."):
            raise click.BadParameter(f"{name!r} is not MODULE:APP, such as tasks:app.") from None
        raise CannotImport(module, error) from error
    for part in (attribute or "app").split("."):
        if not hasattr(found, part):
            apps = [name for name, value in vars(found).items() if isinstance(value, Tenure)]
            hint = f" Did you mean {module}:{apps[0]}?" if apps else ""
            raise click.BadParameter(f"{module} has no {attribute or 'app'!r}.{hint}")
        found = getattr(found, part)
    if not isinstance(found, Tenure):
        kind = "Task" if isinstance(found, Task) else type(found).__name__
        raise click.BadParameter(f"{name} is of type {kind}, not a Tenure app.")
    return found


STATE = click.Choice([state.value for state in State])


def scope_options(command: F) -> F:
    """--tenant and --group, which select a part of a queue."""
    command = click.option("--group", help="Only this group.")(command)
    return click.option("--tenant", help="Only this tenant.")(command)


def filter_options(command: F) -> F:
    """Options that select jobs."""
    command = click.option("--kind", help="Only jobs of this kind.")(command)
    command = click.option("--group", help="Only jobs of this group.")(command)
    command = click.option("--tenant", help="Only jobs of this tenant.")(command)
    return click.option("--queue", help="Only jobs of this queue.")(command)


def error_option(command: F) -> F:
    """--error"""
    text = "Only jobs whose last error belongs to this group (`tenure errors`)."
    return click.option("--error", metavar="GROUP", help=text)(command)


def point_in_time(text: str, or_else: str = "") -> datetime:
    """Parse a time: 2026-11-17, or 2026-11-17T09:30. Without an offset, it is local time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text!r} is not a time such as 2026-11-17T09:30{or_else}."
        raise click.BadParameter(reason) from None
    return found.astimezone() if found.tzinfo is None else found


def moment(text: str) -> datetime:
    """Parse a time, or how long ago it was, such as 2h."""
    if _DURATION.fullmatch(text):
        return datetime.now(UTC) - timedelta(seconds=duration(text))
    return point_in_time(text, ", nor how long ago, such as 2h")


def time_options(command: F) -> F:
    """Options that select jobs by when they were created and finished, and by their worker."""
    command = error_option(command)
    command = click.option("--worker", help="Only jobs that this worker has or had.")(command)
    for name, when in (
        ("finished-before", "that finished before this time"),
        ("finished-after", "that finished at this time or later"),
        ("created-before", "that were created before this time"),
        (
            "created-after",
            "that were created at this time or later: 2026-11-17T09:30, or 2h for two hours ago",
        ),
    ):
        command = click.option(f"--{name}", type=moment, help=f"Only jobs {when}.")(command)
    return command


def page_options(command: F, of: str = "jobs") -> F:
    """--limit and --cursor."""
    command = click.option("--cursor", help="Continue after an earlier page.")(command)
    return click.option(
        "--limit",
        type=IntRange(1, 10_000),
        default=50,
        show_default=True,
        help=f"Maximum number of {of}.",
    )(command)


def token_option(command: F) -> F:
    """--token"""
    return click.option(
        "--token", type=int, required=True, help="The token that `claim` returned with the job."
    )(command)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value not in (None, ())}
