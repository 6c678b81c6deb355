"""A copy of the tree in which one file at a time is changed and tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.mutation import warm
from tests.mutation.mutation import Mutation
from tests.mutation.targets import ROOT, Selection
from tests.mutation.zygote import COLD
from tests.support import postgres

_OPTIONS = (
    "-x", "-q", "--tb=line", "-rfE", "--hypothesis-seed=0", "-p", "tests.mutation.plugin",
    "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_ALL_SECONDS = 1800  # limit for all tests of one selection
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?::.+?)(?: - .*)?$", re.MULTILINE)
# Messages of pytest when no test was run.
_MISUSED = ("file or directory not found", "unrecognized arguments")


class Outcome(NamedTuple):
    """The outcome of a mutation: "killed", "timeout" or "survived"."""

    what: str
    seconds: float
    test: str = ""  # the test that noticed, if known


class Change(NamedTuple):
    """The functions of a file that a mutation changes."""

    file: str
    functions: list[str]


class Misused(Exception):
    """The tests of a selection could not be run."""


class Copy:
    """Sources and tests in a separate folder, with a PostgreSQL server."""

    def __init__(self, *, prepared: bool = True) -> None:
        """prepared: without it, the copy starts sooner, is slower, and has no server."""
        self.root = Path(tempfile.mkdtemp(prefix="tenure-mutation-"))
        for name in ("src", "tests", "bench", "docs"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.root / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        # It ends with the thread that starts it, so start it here.
        self._server = postgres.Server(**postgres.CARELESS) if prepared else None
        self._databases = 0
        self._cold = _Forks(self.root, *(["prepare"] if prepared else []))
        self._warm = _Forks(self.root, "warm") if prepared else None

    def interrupt(self) -> None:
        """Stop the running tests, and start no more."""
        self._cold.interrupt()
        if self._warm is not None:
            self._warm.interrupt()

    def close(self) -> None:
        """Stop everything that was started, and remove the copy."""
        self._cold.close()
        if self._warm is not None:
            self._warm.close()
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def try_out(
        self,
        mutation: Mutation,
        selections: Sequence[Selection],
        unnoticed: Callable[[Selection, float], None] = lambda *_: None,
    ) -> Outcome:
        """Run the tests on the mutation until one fails. `unnoticed` is called after each selection
        that passes, with the seconds since the start.

        What survives in a process that had imported the code before is tried again in one that
        had not: a value that is computed during an import may depend on what was changed.
        """
        begun = time.monotonic()
        changed = self._changed(mutation)
        with self._mutated(mutation) as file, self._database() as database:
            for change in (None,) if changed is None else (Change(str(file), changed), None):
                for selection in selections:
                    what, test = self._run(selection, database, change)
                    if what == "cold":
                        break
                    if what != "survived":
                        return Outcome(what, time.monotonic() - begun, test)
                    if change is None:
                        unnoticed(selection, time.monotonic() - begun)
        return Outcome("survived", time.monotonic() - begun)

    def _changed(self, mutation: Mutation) -> list[str] | None:
        """The functions that a mutation changes, if it changes nothing else."""
        if self._warm is None or not mutation.path.endswith(".py"):
            return None
        self._warm.wait_until_ready()  # it must have imported the code before it is changed
        text = (self.root / mutation.path).read_text()
        return warm.changed(text, mutation.apply(text))

    def fail_unchanged(self, tests: Sequence[str]) -> list[str]:
        """The tests that fail without any mutation."""
        if not tests:
            return []
        with self._database() as database:
            code, output = self._pytest((*tests, "--maxfail=1000"), 300, database, all_of_them=True)
        return _FAILED.findall(output) or ([output] if code else [])

    @contextmanager
    def _mutated(self, mutation: Mutation) -> Iterator[Path]:
        file = self.root / mutation.path
        text = file.read_text()
        file.write_text(mutation.apply(text))
        try:
            self._forget_compiled(file)
            yield file
        finally:
            file.write_text(text)
            self._forget_compiled(file)

    @staticmethod
    def _forget_compiled(file: Path) -> None:
        """Remove compiled files: Python compares only the size of a source file and its time in
        whole seconds, and both may be unchanged."""
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()

    @contextmanager
    def _database(self) -> Iterator[str]:
        """A separate database, because the code under test creates schemas in it."""
        if self._server is None:
            yield ""
            return
        self._databases += 1
        name = f"mutated_{self._databases}"
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        url = urlsplit(self._server.url)
        try:
            yield urlunsplit(url._replace(path=f"/{name}"))
        finally:
            # A backend that a mutation keeps busy may not end in time; it ends with the server.
            with (
                psycopg.connect(self._server.url, autocommit=True) as connection,
                suppress(psycopg.errors.ObjectInUse),
            ):
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def _run(self, selection: Selection, database: str, change: Change | None) -> tuple[str, str]:
        code, output = self._pytest(selection.arguments, selection.seconds, database, change=change)
        if code == COLD:
            return "cold", ""
        if code == -signal.SIGKILL:  # by the watchdog
            return "timeout", selection.name
        if code == pytest.ExitCode.NO_TESTS_COLLECTED or any(said in output for said in _MISUSED):
            raise Misused(output)
        if code == pytest.ExitCode.OK:
            return "survived", ""
        if re.search(r"Timeout \(\d+:\d\d:\d\d\)!", output):
            return "timeout", selection.name
        failed = _FAILED.search(output)
        return "killed", failed.group(1) if failed else output.strip().rpartition("\n")[2]

    def _pytest(
        self,
        arguments: Sequence[str],
        seconds: int,
        database: str,
        *,
        all_of_them: bool = False,
        change: Change | None = None,
    ) -> tuple[int, str]:
        """Run pytest. Returns the exit code and the output."""
        output = self.root / "output"
        environment = {"TENURE_TEST_PG": database, "TENURE_TEST_SECONDS": str(seconds)}
        if all_of_them:
            environment["TENURE_TEST_ALL"] = "1"
        request = {
            "arguments": [*_OPTIONS, *arguments],
            "environment": environment,
            "output": str(output),
            "file": None if change is None else change.file,
            "changed": None if change is None else change.functions,
        }
        forks = self._cold if change is None or self._warm is None else self._warm
        return forks.run(request), output.read_text()


class _Forks:
    """A process that forks to run tests; see zygote.py."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self._running: int | None = None  # the process of a test run, leader of its group
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.zygote", *arguments],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root / "src"), "TENURE_MUTATED": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # only we handle Ctrl-C
        )

    def wait_until_ready(self) -> None:
        if not self._is_ready:
            self._reply()
            self._is_ready = True

    def run(self, request: Mapping[str, object]) -> int:
        """Run tests, and return the exit code. Processes that they left behind are ended."""
        self.wait_until_ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self._running = process = self._reply()
        watchdog = threading.Timer(_ALL_SECONDS, _kill_group, (process,))
        watchdog.start()
        try:
            code = self._reply()
        finally:
            watchdog.cancel()
        _kill_group(process)
        self._running = None
        return code

    def interrupt(self) -> None:
        """Stop the running tests, and start no more."""
        self._process.kill()
        if self._running is not None:
            _kill_group(self._running)

    def close(self) -> None:
        """Stop everything that was started."""
        self.interrupt()
        self._process.communicate()

    def _reply(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _kill_group(process: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
