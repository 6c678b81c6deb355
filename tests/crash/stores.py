"""The stores of workers that are killed. Some of the stores can be killed, too."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.crash.kill_postgres import Schema
from tests.crash.watched import until
from tests.server.process import ServiceProcess
from tests.support.audit import audit
from tests.support.postgres import Server

_WRITER = "120"  # the byte of the shared file that the writer locks, in WAL mode


class Store(Protocol):
    """What the workers share."""

    url: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def audit(self) -> list[str]:
        """What is wrong with the store."""

    def strike(self, chance: random.Random) -> bool:
        """Kill and restart the store under its workers. Returns whether that is possible."""

    def is_locked_by(self, process: int) -> bool:
        """Whether nobody else can commit as long as this stopped process does not go on."""


class FileStore:
    """A SQLite file, which cannot be killed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "jobs.db"
        self.url = f"sqlite:///{self._path}"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def audit(self) -> list[str]:
        return audit(self._path)

    def strike(self, chance: random.Random) -> bool:
        return False

    def is_locked_by(self, process: int) -> bool:
        until(partial(_is_stopped, process))
        shared = Path(f"{self._path}-shm").stat()
        where = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
        held = [line.split()[3:] for line in Path("/proc/locks").read_text().splitlines()]
        return ["WRITE", str(process), where, _WRITER, _WRITER] in held


class ServiceStore:
    """A service on a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "jobs.db"
        self._service = ServiceProcess(folder)
        self.url = ""

    def start(self) -> None:
        self.url = self._service.start().url

    def stop(self) -> None:
        self._service.kill()

    def audit(self) -> list[str]:
        return audit(self._path)

    def strike(self, chance: random.Random) -> bool:
        self._service.kill()
        time.sleep(chance.random() * 0.5)
        self._service.start()
        return True

    def is_locked_by(self, process: int) -> bool:
        return False


class ServerStore:
    """A PostgreSQL server."""

    def __init__(self, folder: Path) -> None:
        self.url = ""

    def start(self) -> None:
        self._server = Server()
        self._schema = Schema(self._server, "workers")
        self.url = self._schema.url

    def stop(self) -> None:
        self._server.stop()

    def audit(self) -> list[str]:
        return self._schema.audit()

    def strike(self, chance: random.Random) -> bool:
        self._server.kill()
        time.sleep(chance.random() * 0.5)
        self._server.start()
        return True

    def is_locked_by(self, process: int) -> bool:
        return False


def _is_stopped(process: int) -> bool:
    """Whether a process is stopped, or has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("T", "Z")


STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": FileStore,
    "http": ServiceStore,
    "postgresql": ServerStore,
}
