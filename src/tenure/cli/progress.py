"""A progress bar for commands that take long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, ProgressColumn, SpinnerColumn

from tenure.cli.context import App, console


@contextmanager
def progress_bar(app: App, *columns: ProgressColumn) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal, and otherwise nothing."""
    screen = console(stderr=True)
    with Progress(
        SpinnerColumn(),
        *columns,
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    ) as bar:
        app.bar = screen if screen.is_terminal else None
        try:
            yield bar
        finally:
            app.bar = None
