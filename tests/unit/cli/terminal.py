"""A person, or a program, at the command line: over one store, with a hand-moved clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tenure import Job, Queue, connect
from tenure.cli import main
from tenure.cli.context import App
from tenure.testing import ManualClock


class Terminal:
    """Runs commands in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.clock = ManualClock()

    def run(
        self,
        *args: str,
        input: str | bytes | None = None,
        interactive: bool = False,
        env: dict[str, str] | None = None,
        url: str | None = "",
    ) -> Result:
        """One command; `interactive` as if a person sat there."""
        app = App(clock=self.clock, interactive=interactive)
        where = [] if url is None else ["--url", url or self.url]
        result = CliRunner().invoke(main, [*where, *args], input=input, obj=app, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def text(self, *args: str) -> str:
        """What a person sees of a command that goes well."""
        result = self.run(*args)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    def json(self, *args: str, input: str | bytes | None = None) -> Any:
        """What a program gets of it: one line with one document."""
        result = self.run(*args, "--json", input=input)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.count("\n") == 1
        return json.loads(result.stdout)

    def error(self, *args: str) -> str:
        """The one line of a command that goes wrong."""
        result = self.run(*args)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr.removeprefix("error: ").strip()

    def usage(self, *args: str) -> str:
        """What is said of a command that is written wrong."""
        result = self.run(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        return result.stderr

    def open(self) -> Queue:
        """The store itself."""
        return connect(self.url, clock=self.clock)

    def get(self, id: str) -> Job:
        with self.open() as queue:
            return queue.get(id)

    def write(self, *lines: str | bytes) -> str:
        """A file of lines; answers with its path."""
        path = self.folder / "jobs.jsonl"
        encoded = [line.encode() if isinstance(line, str) else line for line in lines]
        path.write_bytes(b"".join(line + b"\n" for line in encoded))
        return str(path)
