"""`tenure top`: what it shows, what the keys do, and that it works in a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

import tenure
from tenure import Forbidden, NewJob, Queue, Settings
from tenure.cli.top import Collector, Top, keys_of
from tenure.cli.top_screen import Picture, Row, Screen
from tenure.model.queries import Counts
from tenure.testing import ManualClock
from tenure.worker.post import Post
from tests.server.process import ServiceProcess
from tests.unit.cli.terminal import Terminal
from tests.workers.conftest import PATIENCE
from tests.workers.life import ROOT

NOW = 1_000_000


def shown(screen: Screen, height: int = 40, width: int = 120) -> str:
    display = Console(width=width, height=height, record=True, file=io.StringIO())
    display.print(screen.render(height))
    return display.export_text()


def three(screen: Screen) -> Screen:
    rows = [Row(name, Counts(ready=n)) for n, name in enumerate(("api", "mail", "web"))]
    screen.show(Picture(NOW, None, rows))
    return screen


@pytest.fixture
def store() -> Iterator[Queue]:
    with tenure.connect("memory://", settings=Settings(), clock=ManualClock()) as queue:
        queue.enqueue_many([NewJob(queue="mail", tenant=one) for one in ("a", "b", "b")])
        queue.enqueue("web")
        yield queue


@pytest.fixture
def screen(store: Queue) -> Screen:
    return Screen("memory://")


@pytest.fixture
def top(store: Queue, screen: Screen) -> Top:
    """Keys that act at once: what they look at is read in this thread."""
    collector = Collector(store, 1)

    def look(queue: str | None) -> None:
        collector.look(queue)
        screen.show(collector._read(queue))

    look(None)
    return Top(store, screen, look)


# What it shows ------------------------------------------------------------------------------------


def test_the_first_row_is_selected_and_the_selection_stays_within_the_list() -> None:
    screen = three(Screen("memory://"))
    assert screen.selected == "api"
    screen.move(-1)
    assert screen.selected == "api"
    screen.move(5)
    assert screen.selected == "web"


def test_what_is_selected_stays_selected_when_the_list_changes() -> None:
    screen = three(Screen("memory://"))
    screen.move(1)
    screen.show(Picture(NOW, None, [Row("a new one", Counts()), Row("mail", Counts())]))
    assert screen.selected == "mail"
    screen.show(Picture(NOW, None, [Row("a new one", Counts())]))
    assert screen.selected == "a new one"


def test_a_picture_of_another_list_is_not_shown() -> None:
    screen = three(Screen("memory://"))
    screen.open("mail")
    three(screen)  # read before the tenants were asked for
    assert screen.picture is None
    assert "reading..." in shown(screen)


def test_a_row_shows_counts_pause_limit_rate_and_oldest_wait() -> None:
    screen = Screen("memory://")
    counts = Counts(ready=1_234, delayed=5, leased=7, dead=9)
    screen.show(Picture(NOW, None, [Row("mail", counts, True, 10, NOW - 90_000, 2.5)]))
    text = shown(screen)
    assert "memory://" in text
    assert re.search(r"> +\(paused\) mail +1,234 +5 +7 +10 +0 +2\.5 +9 +90s", text)
    assert "waiting" not in text  # nothing is


def test_a_long_name_is_cut_so_that_all_columns_stay() -> None:
    screen = Screen("memory://")
    long = Row("a-queue-with-a-name-" + "x" * 100, Counts(ready=1), True, workers=3)
    screen.show(Picture(NOW, None, [long, Row("mail", Counts(delayed=1, waiting=2))]))
    display = Console(width=100, height=20, record=True, file=io.StringIO())
    display.print(screen.render(20))
    head, first, second = display.export_text().splitlines()[2:5]
    assert head.rstrip().endswith("workers")
    assert re.match(r"> +\(paused\) a-queue-with-a-[a-z-]*…", first)
    assert first.rstrip().endswith(" 3")
    assert second.split()[:2] == ["mail", "0"]


def test_all_keys_are_named_in_a_terminal_of_80_columns() -> None:
    screen = Screen("memory://")
    screen.show(Picture(NOW, None, [Row("mail", Counts())]))
    assert shown(screen, width=80).rstrip().endswith("q: quit")


def test_a_long_list_is_shown_around_what_is_selected() -> None:
    screen = Screen("memory://")
    screen.show(Picture(NOW, None, [Row(f"queue-{n:03}", Counts()) for n in range(500)]))
    screen.move(250)
    lines = shown(screen, height=20).splitlines()
    assert len(lines) <= 20
    assert any("queue-250" in line for line in lines)
    assert not any("queue-000" in line for line in lines)


def test_names_cannot_control_the_terminal() -> None:
    screen = Screen("memory://")
    screen.show(Picture(NOW, None, [Row("a\x1b[2Jb", Counts())]))
    assert "\x1b[2J" not in shown(screen)


# The keys -----------------------------------------------------------------------------------------


def test_keys_are_told_apart() -> None:
    assert keys_of("jk\x1b[A\x1b[B\r\x1bq") == ["down", "up", "up", "down", "enter", "esc", "q"]
    assert keys_of("") == ["q"]


def test_p_pauses_and_r_resumes_the_selected_queue(top: Top, screen: Screen, store: Queue) -> None:
    assert top.press("down")
    assert top.press("p")
    assert [name for name, one in store.stats().queues.items() if one.paused] == ["web"]
    assert "Paused: queue 'web'." in shown(screen)
    assert "(paused) web" in shown(screen)
    top.press("r")
    assert not store.stats().queues["web"].paused
    assert not top.press("q")


def test_enter_lists_the_tenants_and_esc_goes_back(top: Top, screen: Screen, store: Queue) -> None:
    top.press("enter")
    assert screen.queue == "mail"
    assert [row.name for row in screen.picture.rows] == ["b", "a"] if screen.picture else False
    top.press("p")
    assert [(one.tenant, one.paused) for one in store.limits.list("mail")] == [("b", True)]
    assert "(paused) b" in shown(screen)
    top.press("esc")
    assert [screen.queue, screen.selected] == [None, "mail"]


def test_what_is_not_allowed_is_shown(
    top: Top, screen: Screen, store: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Forbidden("this token may not pause queues")

    monkeypatch.setattr(store, "pause", refuse)
    assert top.press("p")
    assert "this token may not pause queues" in shown(screen)


def test_the_workers_of_each_queue_are_counted(store: Queue, screen: Screen) -> None:
    worker = tenure.Worker(store, [Post(["mail"], 1, {})], schedule=False)

    async def main() -> Picture:
        await worker.start()
        try:
            while not await store.aworkers():
                await asyncio.sleep(0.01)
            return Collector(store, 1)._read(None)
        finally:
            await worker.stop()

    picture = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert [row.workers for row in picture.rows] == [1, 0]
    screen.show(picture)
    assert "workers" in shown(screen)


def test_the_rate_is_that_of_the_last_look(store: Queue) -> None:
    collector = Collector(store, 1)
    assert collector._read(None).rows[0].done_per_second is None
    store.ack(store.claim("mail")[0])
    assert isinstance(store.clock, ManualClock)
    store.clock.advance(2)
    assert collector._read(None).rows[0].done_per_second == 0.5


# A terminal ---------------------------------------------------------------------------------------


def _heed_ctrl_c() -> None:
    """A test run that was started in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Pty:
    """A `tenure top` in a terminal of its own."""

    def __init__(self, url: str, rows: int = 30, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {name: value for name, value in os.environ.items() if "TENURE_" not in name}
        env |= {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", "COLUMNS": str(columns)}
        command = [sys.executable, "-m", "tenure", "--url", url, "top", "--interval", "100ms"]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            preexec_fn=_heed_ctrl_c,
        )
        os.close(theirs)
        self.text = ""

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._ours, keys.encode())

    def sees(self, pattern: str) -> None:
        """Wait until the screen has shown something since the last key."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text)):
            assert time.monotonic() < deadline, f"never saw {pattern!r}: {self.text[-2000:]!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.text += os.read(self._ours, 65_536).decode()

    def ends(self) -> int:
        """Wait until it ends, and return its exit code. It is read meanwhile: a program waits for
        a terminal that does not read."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.05)[0]:
                with suppress(OSError):  # the other end was closed
                    os.read(self._ours, 65_536)
        return self.process.wait(0)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture(params=["sqlite", "http"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    service = ServiceProcess(tmp_path).start()
    yield service.url
    service.kill()


def test_it_is_used_with_keys_in_a_terminal(somewhere: str) -> None:
    with tenure.connect(somewhere) as queue:
        queue.enqueue_many([NewJob(queue="mail", tenant="acme"), NewJob(queue="web")])
        terminal = Pty(somewhere)
        try:
            terminal.sees(r"> +mail +1 ")
            terminal.press("j")
            terminal.sees(r"> +web +1 ")
            terminal.press("p")
            terminal.sees(r"\(paused\) web")
            assert queue.stats().queues["web"].paused
            terminal.press("r")
            terminal.sees(r"Resumed: queue 'web'")
            terminal.press("\x1b[A\r")
            terminal.sees(r"> +acme +1 ")
            queue.enqueue("mail", tenant="acme")
            terminal.sees(r"> +acme +2 ")
            terminal.press("q")
            assert terminal.ends() == 0
        finally:
            terminal.close()


def test_ctrl_c_ends_it_and_restores_the_terminal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with tenure.connect(url) as queue:
        queue.enqueue("mail")
    terminal = Pty(url)
    try:
        before = termios.tcgetattr(terminal._ours)[3]
        terminal.sees(r"> +mail +1 ")
        assert not termios.tcgetattr(terminal._ours)[3] & termios.ECHO
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 0
        assert termios.tcgetattr(terminal._ours)[3] == before
    finally:
        terminal.close()


def test_without_a_terminal_it_prints_the_counts_once(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")
    assert cli.text("top") == cli.text("stats")
    assert cli.json("top") == cli.json("stats")
