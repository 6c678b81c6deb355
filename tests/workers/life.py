"""Worker processes, as a test starts, signals and outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tenure
from tests.crash.journal import Event, read
from tests.crash.watched import PATIENCE
from tests.workers.errands import FOLDER

ROOT = Path(__file__).parents[2]
ERRANDS = "tests.workers.errands:app"


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something that another process does; looking costs more than a glance."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started; none, if it is gone."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Place:
    """A folder with a store, and with the journals of those who work on it."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'jobs.db'}"
        self.workers: list[WorkerProcess] = []
        self.settings: dict[str, str] = {}  # what the environment of the processes says besides

    def queue(self) -> tenure.Queue:
        return tenure.connect(self.url)

    def give(self, sign: str = "go") -> None:
        """What a task waits for."""
        (self.folder / sign).touch()

    def events(self, kind: str | None = None, id: str | None = None) -> list[Event]:
        return [
            event
            for event in read(self.folder)
            if kind in (None, event.kind) and id in (None, event.id)
        ]

    def wait_for(self, kind: str, count: int = 1, id: str | None = None) -> list[Event]:
        """Until so many events of a kind are in the journals."""
        until(lambda: len(self.events(kind, id)) >= count)
        return self.events(kind, id)

    def clean_up(self) -> None:
        """End whoever was started for this place and is still there."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait(PATIENCE)

    def pids(self) -> list[int]:
        """The processes that were started for this place, by what stands in their environment."""
        sign = f"{FOLDER}={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                    continue
                if sign in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


class WorkerProcess:
    """A `tenure worker`, seen from outside."""

    def __init__(
        self, place: Place, *options: str, app: str = ERRANDS, url: str | None = None, **more: Path
    ) -> None:
        self.log_file = place.folder / f"worker-{len(place.workers)}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "TENURE_URL": url or place.url,
            **place.settings,
            FOLDER: str(place.folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tenure", "worker", app, *options],
                cwd=more.get("cwd", ROOT),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        place.workers.append(self)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def ready(self, processes: int = 1) -> WorkerProcess:
        """Until it says that it works."""
        until(lambda: self.log.count(" works on ") >= processes or self.ended())
        assert not self.ended(), self.log
        return self

    def ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stopping(self) -> None:
        """Until it says that it stops."""
        until(lambda: "stopping: " in self.log or self.ended())

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not end:\n{self.log}") from None


@contextmanager
def a_place(folder: Path) -> Iterator[Place]:
    place = Place(folder)
    try:
        yield place
    finally:
        place.clean_up()
