"""The stores of workers that are killed. Some of the stores can be killed, too."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.crash.kill_postgres import Schema
from tests.server.process import ServiceProcess
from tests.support.audit import audit
from tests.support.postgres import Server


class Store(Protocol):
    """What the workers share."""

    url: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def audit(self) -> list[str]:
        """What is wrong with the store."""

    def strike(self, chance: random.Random) -> bool:
        """Kill and restart the store under its workers. Returns whether that is possible."""


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


STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": FileStore,
    "http": ServiceStore,
    "postgresql": ServerStore,
}
