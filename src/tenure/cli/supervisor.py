"""Running several processes of one command: dead ones are replaced, all are stopped together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from tenure.worker.marks import note_exit

log = logging.getLogger("tenure.worker")

LOOK_SECONDS = 0.2
RELOAD_LOOK_SECONDS = 1.0
NOT_ALLOWED = 77  # exit code of a process that the service does not let work
GAVE_UP = (1, 2)  # exit codes of a process that would fail again until the program changes
PAUSE_SECONDS = 1.0  # before a dead process is replaced


class Supervisor:
    """Keeps `count` processes of a command running until it is stopped.

    again: also restart a process that exited with code 0. The standard input of each child is a
    pipe, which closes when the supervisor is gone.
    """

    def __init__(
        self, command: Sequence[str], count: int, *, reload: bool = False, again: bool = False
    ) -> None:
        self._command = list(command)
        self._count = count
        self._reload = reload
        self._again = again
        self._children: list[subprocess.Popen[bytes]] = []
        self._signals: list[int] = []
        self._passed_on = 0
        self._seen = dict(_sources()) if reload else {}
        self._broken = 0  # processes to start again when a file changes
        self._outdated: set[int] = set()  # pids that were sent a signal because a file changed

    def run(self) -> int:
        """Run until all processes have ended, and return the highest of their exit codes."""
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._note)
        self._children = [self._start() for _ in range(self._count)]
        worst, look_at = 0, 0.0
        while self._children or (self._broken and not self._signals):
            time.sleep(LOOK_SECONDS)
            for _ in self._signals[self._passed_on :]:
                self._passed_on += 1
                self._send(signal.SIGTERM)  # not SIGINT: a child that is just starting ends quietly
            dead = [child for child in self._children if child.poll() is not None]
            died = [note_exit(child.pid, child.returncode) for child in dead]  # before one is new
            for child, in_the_midst in zip(dead, died, strict=True):
                worst = max(worst, self._ended(child, in_the_midst))
            if self._reload and time.monotonic() >= look_at:
                look_at = time.monotonic() + RELOAD_LOOK_SECONDS
                self._reload_if_changed()
        return worst

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _start(self) -> subprocess.Popen[bytes]:
        # A new session, so that Ctrl-C reaches only the supervisor, which passes it on once.
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)

    def _send(self, number: int) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    def _ended(self, child: subprocess.Popen[bytes], in_the_midst: bool) -> int:
        """Replace a process that is gone; if it is not replaced, return its exit code.
        in_the_midst: it has not stopped its worker, whatever its exit code says."""
        self._children.remove(child)
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        if self._signals and child.returncode == -signal.SIGTERM:
            code = 0  # it was stopped while it was starting
        if code == NOT_ALLOWED:
            return 1
        outdated = child.pid in self._outdated
        self._outdated.discard(child.pid)
        again = self._again or outdated or in_the_midst
        if self._signals or (code == 0 and not again):
            return 0 if outdated else code
        if self._reload and code in GAVE_UP and not outdated:
            self._broken += 1
            log.error("process %d failed; waiting for a file to change", child.pid)
            return 0
        if (code or in_the_midst) and not outdated:
            log.error("process %d ended with exit code %d; a new one is started", child.pid, code)
            time.sleep(PAUSE_SECONDS)
            if self._signals:  # received during the sleep
                return code
        self._children.append(self._start())
        return 0

    def _reload_if_changed(self) -> None:
        now = dict(_sources())
        if now == self._seen or self._signals:
            return
        changed = sorted(name for name, _ in set(now.items()) ^ set(self._seen.items()))
        self._seen = now
        log.info("%s changed: restarting", ", ".join(dict.fromkeys(changed)))
        self._children += [self._start() for _ in range(self._broken)]
        self._broken = 0
        for child in self._children:
            if child.pid not in self._outdated:  # a second signal would abort it
                self._outdated.add(child.pid)
                child.send_signal(signal.SIGTERM)


def _sources() -> Iterator[tuple[str, int]]:
    """The Python files below this folder, and when they were modified."""
    for folder, folders, files in os.walk("."):
        folders[:] = [one for one in folders if not one.startswith((".", "__")) and one != "venv"]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    yield str(path), path.stat().st_mtime_ns
                except OSError:
                    continue  # it was just deleted
