"""Loading jobs from a file of JSON lines, in chunks and with bounded memory. A bad line does not
keep others from being loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, BinaryIO

import msgspec

from tenure.errors import Duplicate, InvalidInput, NotFound
from tenure.model.job import NewJob
from tenure.model.ops import IfExists
from tenure.queue import Queue

CHUNK_JOBS = 1_000
CHUNK_BYTES = 8 * 2**20
LONGEST_ESCAPE = 6  # bytes that JSON can use for one: \u0041
ROOM = 65_536  # bytes of a line besides its payload

Numbered = tuple[int, NewJob]  # the line number and the job


class Lines:
    """The lines of a stream, with at most `longest` bytes of each in memory."""

    def __init__(self, stream: BinaryIO, longest: int) -> None:
        self.longest = longest
        self.number = 0
        self.bytes_read = 0
        self._stream = stream

    def __iter__(self) -> Iterator[bytes | None]:
        """Yield each line, or None for one that is too long."""
        while line := self._read():
            self.number += 1
            if len(line) <= self.longest or line.endswith(b"\n"):
                yield line
            else:
                while (rest := self._read()) and not rest.endswith(b"\n"):
                    pass
                yield None

    def _read(self) -> bytes:
        line = self._stream.readline(self.longest + 1)
        self.bytes_read += len(line)
        return line


class Loader:
    """Enqueues jobs chunk by chunk, counts them, and reports bad lines."""

    def __init__(
        self,
        queue: Queue,
        defaults: dict[str, Any],
        if_exists: IfExists,
        complain: Callable[[int, str, str], None],
    ) -> None:
        self.loaded = self.skipped = self.bad = 0
        self.longest_line = LONGEST_ESCAPE * queue.settings.payload_limit + ROOM
        self._queue = queue
        self._if_exists = if_exists
        self._complain = complain
        self._decode = msgspec.json.Decoder(_line_type(defaults)).decode
        self._chunk: list[Numbered] = []
        self._chunk_bytes = 0

    def load(self, lines: Lines, on_chunk: Callable[[], None]) -> None:
        """Load all lines."""
        for line in lines:
            self._take(lines.number, line)
            if len(self._chunk) >= CHUNK_JOBS or self._chunk_bytes >= CHUNK_BYTES:
                self._flush()
                on_chunk()
        self._flush()
        on_chunk()

    def _take(self, number: int, line: bytes | None) -> None:
        if line is None:
            self._refuse(number, "invalid", f"is longer than {self.longest_line:,} bytes")
            return
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        if line.isspace() or not line:
            return
        try:
            self._chunk.append((number, self._decode(line)))
        except UnicodeDecodeError:
            self._refuse(number, "invalid", "is not UTF-8")
        except RecursionError:
            self._refuse(number, "invalid", "is nested too deeply")
        except msgspec.DecodeError as error:
            self._refuse(number, "invalid", str(error))
        else:
            self._chunk_bytes += len(line)

    def _flush(self) -> None:
        chunk, self._chunk, self._chunk_bytes = self._chunk, [], 0
        if not self._put(chunk):
            self._put_in_halves(_parents_first(chunk))

    def _put_in_halves(self, chunk: list[Numbered]) -> None:
        """Bisect a chunk that was rejected, to find the bad jobs and enqueue the others."""
        middle = len(chunk) // 2
        for half in (chunk[:middle], chunk[middle:]):
            if not self._put(half):
                self._put_in_halves(half)

    def _put(self, chunk: list[Numbered]) -> bool:
        """Enqueue a chunk; returns False if it has to be split. A single bad job is reported.
        Errors of the store end the load."""
        if not chunk:
            return True
        try:
            ids = self._queue.enqueue_many([job for _, job in chunk], if_exists="skip")
        except (InvalidInput, NotFound) as error:
            if len(chunk) > 1:
                return False
            self._refuse(chunk[0][0], error.code, error.message.removeprefix("jobs[0]."))
            return True
        for one, id, created in zip(chunk, ids, ids.created, strict=True):
            if created:
                self.loaded += 1
            else:
                self._exists(*one, id)
        return True

    def _exists(self, number: int, job: NewJob, holder: str) -> None:
        if self._if_exists == "skip":
            self.skipped += 1
        else:
            field = "id" if job.id == holder else "unique_key"
            error = Duplicate(field, getattr(job, field), holder)
            self._refuse(number, error.code, error.message)

    def _refuse(self, number: int, code: str, reason: str) -> None:
        self.bad += 1
        self._complain(number, code, reason)


def _line_type(defaults: dict[str, Any]) -> type[NewJob]:
    """A NewJob type that forbids unknown fields and has the defaults of the command line."""
    types = {field.name: field.type for field in msgspec.structs.fields(NewJob)}
    fields = [(name, types[name], value) for name, value in defaults.items()]
    line = msgspec.defstruct(
        "Line", fields, bases=(NewJob,), kw_only=True, forbid_unknown_fields=True, gc=False
    )
    assert issubclass(line, NewJob)
    return line


def _parents_first(chunk: list[Numbered]) -> list[Numbered]:
    """Sort a chunk so that jobs come after those they wait for, because it is enqueued in parts."""
    place = {job.id: n for n, (_, job) in enumerate(chunk) if job.id is not None}
    parents = {
        n: [place[id] for id in job.after if id in place] for n, (_, job) in enumerate(chunk)
    }
    if all(parent < n for n, found in parents.items() for parent in found):
        return chunk
    try:
        return [chunk[n] for n in TopologicalSorter(parents).static_order()]
    except CycleError:
        return chunk
