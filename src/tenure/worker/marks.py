"""Marks: which jobs a worker process has claimed, and which of them it has started.

They are in a file that outlives the process, so that the next worker can settle its jobs without
waiting for their leases (settling.py). Memory that processes share is where they belong: writing
costs less than a microsecond and never waits for a disk, and after a power failure there is
nothing, rather than an older version. Without such memory, as on macOS, a worker has no marks.

A job is only ever marked as claimed before its handler starts. Each change of state is one byte,
written after the rest of the mark, so a process that is killed at any moment leaves no wrong mark.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import secrets
import signal
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tenure.model.fields import check_name
from tenure.settings import Settings
from tenure.worker.run import Run

log = logging.getLogger("tenure.worker")

SHARED = Path("/dev/shm")  # emptied when the machine starts
BOOT = Path("/proc/sys/kernel/random/boot_id")
FREE, CLAIMED, RUNNING = range(3)

_HEADER = struct.Struct("<24s36sIi")  # magic, boot, marks, exit code
_MAGIC = b"tenure marks 1"
_STATES = 128  # where the states begin, one byte each; the first is nobody's
_EXIT = struct.Struct("<i")
_EXIT_AT = _HEADER.size - _EXIT.size
_UNKNOWN = 2**31 - 1  # the exit code, until a supervisor notes it
_BODY = struct.Struct("<q120s")  # token, id
_pack_body, _BODY_SIZE = _BODY.pack_into, _BODY.size
_ID_BYTES = 120  # jobs with longer ids get no mark
_MOST = 200_000  # marks of a process; further jobs get none
_MOST_BYTES = _STATES + (_MOST + 1) * (1 + _BODY_SIZE)
_OLD_SECONDS = 86_400.0  # after which what is left of other stores is deleted


class Mark(NamedTuple):
    """What a process left of a job."""

    id: str
    token: int
    state: int


class Marks:
    """The marks of this process. Without a file, they are written to memory that nobody reads."""

    def __init__(self) -> None:
        self._memory: bytearray | mmap.mmap = bytearray(_STATES + 1)
        self._free: list[int] = []
        self._bodies = 0
        self._path: Path | None = None

    @classmethod
    def of(cls, settings: Settings, count: int) -> Marks:
        """Marks for a store and so many jobs. If there can be no file, the reason is logged."""
        marks = cls()
        if not settings.url.startswith("memory:"):
            try:
                marks._create(name_of_store(settings), min(count, _MOST))
            except OSError as error:
                level = logging.WARNING if SHARED.exists() else logging.DEBUG
                log.log(level, "no marks of jobs are kept, in case this process dies: %s", error)
        return marks

    def _create(self, store: str, count: int) -> None:
        folder, boot = _folder(), _boot()
        name = f"{store}-{os.getpid()}-{secrets.token_hex(8)}"
        hidden = folder / f"new-{name}"
        file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            self._bodies = _STATES + count + 1
            size = self._bodies + (count + 1) * _BODY_SIZE
            os.posix_fallocate(file, 0, size)  # later, a lack of memory would kill the process
            memory = mmap.mmap(file, size)
            memory[: _HEADER.size] = _HEADER.pack(_MAGIC, boot, count, _UNKNOWN)
            # The mapping holds the lock until the process ends, even if a task closes all files.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = hidden.rename(folder / name)  # when it is locked: others see it now
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        self._memory = memory
        self._free = list(range(count, 0, -1))
        _OPEN.add(self)

    def claim(self, runs: Iterable[Run]) -> None:
        """Mark jobs as claimed. Those that get no mark keep the number 0."""
        memory, free, bodies = self._memory, self._free, self._bodies
        for run in runs:
            raw = run.job.id.encode()
            if free and len(raw) <= _ID_BYTES:
                run.mark = number = free.pop()
                _pack_body(memory, bodies + number * _BODY_SIZE, run.job.token, raw)
                memory[_STATES + number] = CLAIMED

    def start(self, number: int) -> None:
        """Mark a job as running. Must be called before its handler. Can be called from any
        thread."""
        self._memory[_STATES + number] = RUNNING

    def leave(self, number: int) -> None:
        """Remove the mark, and leave the job to its lease. Can be called from any thread."""
        self._memory[_STATES + number] = FREE

    def free(self, number: int) -> None:
        """Remove the mark of a job that has ended: its outcome may be on its way to the store."""
        self._memory[_STATES + number] = FREE
        if number:
            self._free.append(number)

    def close(self) -> None:
        """Delete the file."""
        _OPEN.discard(self)
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            self._path = None

    def forget(self) -> None:
        """In a fork: the marks are those of the parent, and so is the lock. If the fork held it,
        too, the parent would seem to be alive after its death."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
        self._memory, self._free, self._path = bytearray(_STATES + 1), [], None


_OPEN: set[Marks] = set()


def _forget_all() -> None:
    for marks in _OPEN:
        marks.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)


def name_of_store(settings: Settings) -> str:
    """A name for the store and for the rights that a process has there. The folder is a part of it,
    because the URL may be relative to it."""
    text = "\0".join((settings.url, settings.token or "", str(Path.cwd())))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


# The marks of others -----------------------------------------------------------------------------


class Dead(NamedTuple):
    """What a process that has died left."""

    path: Path
    exit_code: int | None
    marks: list[Mark]

    @property
    def pid(self) -> str:
        return self.path.name.split("-")[1]

    @property
    def died(self) -> str:
        """That it died, and by which signal or with which exit code, if that is known."""
        if self.exit_code is None:
            return "died"
        if self.exit_code >= 0:
            return f"died (exit code {self.exit_code})"
        try:
            return f"died ({signal.Signals(-self.exit_code).name})"
        except ValueError:
            return f"died (signal {-self.exit_code})"


@contextmanager
def dead_of(store: str) -> Iterator[list[Dead]]:
    """What processes left that have died, and had the same store. No other process gets it until
    the block ends; delete the files of which everything is settled."""
    found: list[Dead] = []
    locks: list[int] = []
    try:
        for path in sorted(_folder().iterdir()):
            ours = path.name.startswith(f"{store}-")
            if not (ours or _is_old(path)) or (lock := _lock(path)) is None:
                continue
            locks.append(lock)
            if not ours:
                path.unlink(missing_ok=True)
            elif (dead := _read(path, lock)) is not None:
                found.append(dead)
        yield found
    finally:
        for lock in locks:
            os.close(lock)


def note_exit(pid: int, code: int) -> bool:
    """Add the exit code of a process to what it left. Returns False if it left nothing, because it
    ended in good order."""
    left = False
    with suppress(OSError):
        for path in _folder().glob(f"*-{pid}-*"):
            if (lock := _lock(path)) is not None:
                os.pwrite(lock, _EXIT.pack(code), _EXIT_AT)
                os.close(lock)
                left = True
    return left


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _OLD_SECONDS
    except OSError:
        return False


def _lock(path: Path) -> int | None:
    """The file, if its process is dead, nobody else settles it, and it is ours."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("marks are ignored: %s", error)
        return None
    found = os.fstat(file)
    try:
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            log.warning("marks are ignored, because another user made them: %s", path)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
    except OSError:
        pass  # its process lives
    os.close(file)
    return None


def _read(path: Path, file: int) -> Dead | None:
    raw = os.pread(file, _MOST_BYTES, 0)
    try:
        magic, boot, count, code = _HEADER.unpack_from(raw)
        if (magic.rstrip(b"\0"), boot) == (_MAGIC, _boot()):
            return Dead(path, None if code == _UNKNOWN else code, list(_marks_in(raw, count)))
        problem = "they have another format, or are from before the machine started"
    except (struct.error, ValueError) as error:  # UnicodeDecodeError and InvalidInput are such
        problem = str(error)
    log.warning("marks of a dead process are ignored: %s: %s", path, problem)
    path.unlink(missing_ok=True)
    return None


def _marks_in(raw: bytes, count: int) -> Iterator[Mark]:
    bodies = _STATES + count + 1
    for number, state in enumerate(raw[_STATES + 1 : bodies], 1):
        if state != FREE:
            token, id = _BODY.unpack_from(raw, bodies + number * _BODY_SIZE)
            if state not in (CLAIMED, RUNNING):
                raise ValueError(f"{state} is not a state")
            yield Mark(check_name("id", id.rstrip(b"\0").decode()), token, state)


def _folder() -> Path:
    """Where the marks of this user are. No other user must be able to write there."""
    folder = SHARED / f"tenure-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that only this user can write")
    return folder


def _boot() -> bytes:
    return BOOT.read_bytes()[:36]
