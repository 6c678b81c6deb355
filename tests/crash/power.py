"""Power loss under SQLite: writes that were not synced are lost, some or all of them.

A program runs with a library that records every write, truncation and sync of its files (power.c).
The record is then cut at many places. For each, a folder is filled with what a disk may hold:
everything that was synced, and none, some writes or some sectors of the rest. The store must open,
be sound, and contain every job whose enqueue had returned before the cut.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import tenure
from tests.crash.power_load import ADDED, DONE, LEAVING
from tests.support.audit import audit

HEAD = struct.Struct("<BBIqQ")
SECTOR = 512
SOURCE = Path(__file__).with_name("power.c")


class NoCompiler(RuntimeError):
    """The recorder cannot be built here."""


class Call(NamedTuple):
    """One line of the record."""

    op: str
    created: bool
    id: int
    offset: int
    length: int
    data: bytes


def record(folder: Path, *, steps: int = 40, synchronous: str = "FULL") -> list[Call]:
    """Run a program in a folder, and return everything that it did to its files."""
    library, written = folder / "power.so", folder / "record"
    data = folder / "data"
    data.mkdir()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        raise NoCompiler("a C compiler and Linux are needed to record what a program writes")
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(build, check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "POWER_FOLDER": str(data),
        "POWER_RECORD": str(written),
    }
    program = [sys.executable, "-m", "tests.crash.power_load", str(data), str(steps), synchronous]
    subprocess.run(program, env=environment, check=True, timeout=300)
    return list(_calls(written.read_bytes()))


def _calls(text: bytes) -> Iterator[Call]:
    at = 0
    while at < len(text):
        op, created, id, offset, length = HEAD.unpack_from(text, at)
        at += HEAD.size
        size = length if chr(op) in "OWU" else 0
        yield Call(chr(op), bool(created), id, offset, length, text[at : at + size])
        at += size


class File:
    """A file on a disk that may lose writes: its synced content, and the changes since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.since: list[Call] = []
        self.entered = False  # whether its name in the folder is synced

    def sync(self) -> None:
        for call in self.since:
            _apply(self.safe, call)
        self.since.clear()

    def after_loss(self, chance: random.Random, mode: str) -> bytes:
        content = bytearray(self.safe)
        for call in self.since:
            if mode == "all" or (mode != "none" and chance.random() < 0.5):
                _apply(content, call)
            elif mode == "sectors" and call.op == "W":
                _apply_some_sectors(content, call, chance)
        return bytes(content)


def _apply(content: bytearray, call: Call) -> None:
    if call.op == "T":
        del content[call.length :]
        content.extend(bytes(call.length - len(content)))
        return
    start = len(content) if call.offset < 0 else call.offset
    content.extend(bytes(max(0, start - len(content))))
    content[start : start + len(call.data)] = call.data


def _apply_some_sectors(content: bytearray, call: Call, chance: random.Random) -> None:
    at, end = call.offset, call.offset + len(call.data)
    while at < end:
        upto = min(end, (at // SECTOR + 1) * SECTOR)
        if chance.random() < 0.5:
            piece = call.data[at - call.offset : upto - call.offset]
            _apply(content, call._replace(offset=at, data=piece))
        at = upto


class Disk:
    """The folder, as the calls of a record change it one by one."""

    def __init__(self) -> None:
        self._by_id: dict[int, File | None] = {}  # None is the folder itself
        self._names: dict[str, File] = {}
        self._unsafe_unlinks: dict[str, File] = {}  # files that may reappear, by name
        self.acks = b""

    def do(self, call: Call) -> None:
        if call.op in "OU":
            name = Path(call.data.decode()).name
            self._open(call, name) if call.op == "O" else self._unlink(name)
            return
        file = self._by_id[call.id]
        if file is None:
            if call.op == "S":
                self._sync_folder()
        elif file is self._names.get("acks"):
            self.acks += call.data
        elif call.op == "S":
            file.sync()
        else:
            file.since.append(call)

    def _open(self, call: Call, name: str) -> None:
        if call.created:
            self._names[name] = File()
        self._by_id[call.id] = self._names.get(name)

    def _unlink(self, name: str) -> None:
        file = self._names.pop(name)
        if file.entered:
            self._unsafe_unlinks[name] = file

    def _sync_folder(self) -> None:
        self._unsafe_unlinks.clear()
        for file in self._names.values():
            file.entered = True

    def lose_power(self, folder: Path, chance: random.Random, mode: str) -> None:
        """Write what may be left into a folder. The shared memory file is not needed."""

        def happened() -> bool:
            """Whether a change of the folder that was not synced survived."""
            return mode == "all" or (mode != "none" and chance.random() < 0.5)

        left = {name: file for name, file in self._unsafe_unlinks.items() if not happened()}
        left |= {name: file for name, file in self._names.items() if file.entered or happened()}
        for name, file in left.items():
            if name != "acks" and not name.endswith("-shm"):
                (folder / name).write_bytes(file.after_loss(chance, mode))


MODES = ("none", "some", "sectors", "all")
MEMORY = Path("/dev/shm")  # where the syncs of the checks are free


def problems_after(calls: list[Call], cuts: int, seed: int) -> list[str]:
    """Cut the record at so many places. Returns what was wrong afterwards."""
    chance = random.Random(seed)
    first = next(n for n, call in enumerate(calls) if call.data.startswith(ADDED.encode()))
    places = sorted(chance.choices(range(first, len(calls) + 1), k=cuts))
    disk, done = Disk(), 0
    problems: list[str] = []
    for n, place in enumerate(places):
        for call in calls[done:place]:
            disk.do(call)
        done = place
        mode = MODES[n % len(MODES)]
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            disk.lose_power(Path(folder), chance, mode)
            found = _wrong(Path(folder) / "jobs.db", disk.acks.decode())
            problems += [f"cut at {place} of {len(calls)} ({mode}): {one}" for one in found]
    return problems


def _wrong(path: Path, acks: str) -> list[str]:
    if not path.exists():
        return ["the file is gone"]
    try:
        tenure.connect(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as db:
            sound = db.execute("PRAGMA integrity_check").fetchall()
            jobs = (
                "SELECT id, ifnull(state, 2) FROM tenure_jobs LEFT JOIN tenure_states USING (seq)"
            )
            states = dict(db.execute(jobs).fetchall())
        wrong = [f"{sound}"] if sound != [("ok",)] else audit(path)
    except (tenure.TenureError, sqlite3.Error) as error:
        return [f"it cannot be opened: {error}"]
    lines = acks.split()
    leaving = {line[1:] for line in lines if line[0] == LEAVING}
    for line in lines:
        id = line[1:]
        if id in leaving:
            continue
        if line[0] == ADDED and id not in states:
            wrong.append(f"{id} was enqueued, and is lost")
        if line[0] == DONE and states.get(id) != 4:
            wrong.append(f"{id} was acknowledged, and is not done")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls = record(Path(folder), steps=60)
    problems = problems_after(calls, options.cuts, options.seed)
    syncs = sum(call.op == "S" for call in calls)
    sys.stdout.write(f"{len(calls)} calls, {syncs} syncs, {options.cuts} cuts\n")
    sys.stdout.write("\n".join([*problems, f"{len(problems)} problems\n"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
