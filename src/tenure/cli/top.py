"""The command that shows all queues live in a terminal."""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import termios
import threading
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from types import TracebackType

import click
from rich.live import Live

from tenure.cli.context import App, console, json_option, pass_app
from tenure.cli.held_back import every_name
from tenure.cli.overview import overview
from tenure.cli.params import duration
from tenure.cli.show import shown_stats
from tenure.cli.tables import scope_words
from tenure.cli.top_screen import Picture, Row, Screen
from tenure.core.limits import Rules
from tenure.errors import InvalidInput, NotAllowed, TenureError
from tenure.queue import Queue
from tenure.settings import without_secrets

LOOK_SECONDS = 0.1  # between two checks for keys and for something new to show
MOST_TENANTS = 200  # listed, with the largest backlogs
_KEY = re.compile(r"\x1b[\[O][A-D]|[\s\S]")
_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "enter",
    "\x1b[D": "esc",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "enter",
    "\x1bOD": "esc",
    "k": "up",
    "j": "down",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "esc",
    "\x7f": "esc",
}


@click.command()
@click.option(
    "--interval", type=duration, default="1s", show_default=True, help="Time between refreshes."
)
@json_option
@pass_app
def top(app: App, interval: float) -> None:
    """Watch all queues live, and pause or resume them.

    Up and down (or j and k) select a queue, enter lists its tenants, p pauses and r resumes what
    is selected, esc goes back, q quits. Without a terminal, it prints the counts once.

    \b
    Example:
      tenure top
      tenure --url http://queue.example:3100 top --interval 5s
    """
    with app.open_existing() as store:
        if app.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            found = overview(store)
            shown = shown_stats(found, store, app.clock.now_ms())
            app.answer(found.as_document(), lambda: shown)
            return
        watch(store, interval)


class Collector:
    """Reads the store repeatedly, in a thread, so that the keys work even while a service is
    away."""

    def __init__(self, store: Queue, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._queue: str | None = None
        self._before: dict[str, tuple[int, int]] = {}  # when, and how many were done
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="tenure-top", daemon=True)
        self.picture: Picture | None = None
        self.error: str = ""

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout=2)

    def look(self, queue: str | None) -> None:
        """Read at once: the tenants of a queue, or all queues."""
        if queue != self._queue:
            self._before = {}
        self._queue = queue
        self._wake.set()

    def _work(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                self.picture = self._read(self._queue)
                self.error = ""
            except TenureError as error:
                self.error = str(error)
            self._wake.wait(self._interval)

    def _read(self, queue: str | None) -> Picture:
        rows = self._queues() if queue is None else self._tenants(queue)
        now = self._store.clock.now_ms()
        rows = [row._replace(done_per_second=self._rate(row, now)) for row in rows]
        self._before = {row.name: (now, row.counts.done) for row in rows}
        return Picture(now, queue, rows)

    def _rate(self, row: Row, now: int) -> float | None:
        at, done = self._before.get(row.name, (now, 0))
        if now <= at:
            return None
        return max(0, row.counts.done - done) * 1000 / (now - at)  # old ones may be removed

    def _queues(self) -> list[Row]:
        limits = {one.queue: one for one in self._store.limits.list() if one.tenant is None}
        workers = self._workers()
        rows = []
        for name, counts in self._store.stats().queues.items():
            limit = limits.get(name)
            oldest = self._store.oldest_ready(name) if counts.ready else None
            bound = None if limit is None else limit.concurrency
            count = None if workers is None else workers[name]
            rows.append(Row(name, counts, counts.paused, bound, oldest, workers=count))
        return rows

    def _workers(self) -> Counter[str] | None:
        """How many workers each queue has; None if the caller may not know."""
        try:
            return Counter(queue for one in self._store.workers() for queue in one.queues)
        except (InvalidInput, NotAllowed):  # of a service, which may also be older
            return None

    def _tenants(self, queue: str) -> list[Row]:
        found = self._store.limits.list(queue)
        rules = Rules(queue, {(one.tenant, one.group): one for one in found})
        every = every_name(self._store.tenants, "tenant", queue)
        most = nsmallest(MOST_TENANTS, every, key=lambda one: (-one.unfinished, one.tenant))
        return [
            Row(
                one.tenant,
                one,
                rules.tenant_paused(one.tenant),
                rules.tenant_concurrency(one.tenant),
            )
            for one in most
        ]


class Top:
    """Handles keys."""

    def __init__(self, store: Queue, screen: Screen, look: Callable[[str | None], None]) -> None:
        """look: reads the list that the screen shows."""
        self._store = store
        self._screen = screen
        self._look = look

    def press(self, key: str) -> bool:
        """Handle a key. Returns whether to go on."""
        screen = self._screen
        if key == "q":
            return False
        if key in ("up", "down"):
            screen.move(-1 if key == "up" else 1)
        elif key in ("p", "r"):
            self._pause(key == "p")
        elif key == "enter" and screen.queue is None and screen.selected is not None:
            self._open(screen.selected)
        elif key == "esc" and screen.queue is not None:
            self._open(None)
        return True

    def _open(self, queue: str | None) -> None:
        self._screen.open(queue)
        self._look(queue)

    def _pause(self, paused: bool) -> None:
        screen = self._screen
        if screen.selected is None:
            return
        tenant = None if screen.queue is None else screen.selected
        queue = screen.selected if screen.queue is None else screen.queue
        try:
            (self._store.pause if paused else self._store.resume)(queue, tenant=tenant)
        except TenureError as error:
            screen.message = str(error)
        else:
            done = "Paused" if paused else "Resumed"
            screen.message = f"{done}: {scope_words(queue, tenant, None)}."
        self._look(screen.queue)


def watch(store: Queue, interval: float) -> None:
    """Show the store until the user quits."""
    screen, display = Screen(without_secrets(store.settings.url)), console()
    with (
        suppress(KeyboardInterrupt),
        _quiet(),
        _keys_at_once(sys.stdin.fileno()) as read,
        Collector(store, interval) as collector,
        Live(console=display, screen=True, auto_refresh=False) as live,
    ):
        top = Top(store, screen, collector.look)
        drawn: object = None
        keys: list[str] = []
        while all(top.press(key) for key in keys):
            if collector.picture is not None:
                screen.show(collector.picture)
            if collector.error:
                screen.message = collector.error
            state = (screen.picture, screen.queue, screen.selected, screen.message, display.size)
            if state != drawn:
                drawn = state
                live.update(screen.render(display.size.height), refresh=True)
            keys = read()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep log lines from being printed over the screen, which shows errors itself."""
    silent, log = logging.NullHandler(), logging.getLogger("tenure")
    before, log.propagate = log.propagate, False
    log.addHandler(silent)
    try:
        yield
    finally:
        log.removeHandler(silent)
        log.propagate = before


@contextmanager
def _keys_at_once(terminal: int) -> Iterator[Callable[[], list[str]]]:
    """Read keys as they are pressed, without echoing them. Yields a function that returns those
    pressed since its last call."""
    before = termios.tcgetattr(terminal)

    def read() -> list[str]:
        ready, _, _ = select.select([terminal], [], [], LOOK_SECONDS)
        return keys_of(os.read(terminal, 1024).decode(errors="replace")) if ready else []

    tty.setcbreak(terminal)
    try:
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def keys_of(text: str) -> list[str]:
    """The keys that a terminal sends as this text, by name."""
    if not text:
        return ["q"]  # the terminal was closed
    return [_NAMES.get(key, key) for key in _KEY.findall(text)]
