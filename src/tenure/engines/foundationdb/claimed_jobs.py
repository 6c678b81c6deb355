"""The jobs that this process has claimed, so that an ack need not read their records.

As long as the CLAIM key of its claim is the first of a job, the record is what it was when the job
was claimed: a claim does not commit if the record has changed since it was read, and every later
change of the record deletes the CLAIM keys. So an ack reads only these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tenure.engines.foundationdb.record import Record

MOST = 10_000  # jobs to remember; when full, all are forgotten
_NEXT_CLAIM = 1 << 32  # more than the places of one claim


class Mine(NamedTuple):
    """A job as it is under a claim."""

    stamp: bytes  # of the claim
    record: Record
    place: int  # one more than that of the neighbour before it, if any


class ClaimedJobs:
    """Thread-safe: each step is a single operation on a dict or a count."""

    def __init__(self) -> None:
        self._by_id: dict[str, Mine] = {}
        self._places = itertools.count(0, _NEXT_CLAIM)

    def places(self, runs: Iterable[Sequence[str]]) -> dict[str, int]:
        """The places of jobs that a claim found in these runs of neighbours."""
        place = next(self._places)
        found: dict[str, int] = {}
        for run in runs:
            found.update(zip(run, itertools.count(place), strict=False))
            place += len(run) + 1
        return found

    def note(self, jobs: Iterable[tuple[str, Mine]]) -> None:
        if len(self._by_id) >= MOST:
            self._by_id.clear()
        self._by_id.update(jobs)

    def __iter__(self) -> Iterator[tuple[str, Mine]]:
        """Everything that is remembered, as `note` takes it."""
        return iter(list(self._by_id.items()))

    def find(self, ids: Iterable[str]) -> dict[str, Mine]:
        """Those that are remembered."""
        known = self._by_id
        return {one: mine for one in ids if (mine := known.get(one)) is not None}

    def forget(self, job_id: str) -> None:
        self._by_id.pop(job_id, None)


def runs_of(jobs: Mapping[str, Mine]) -> list[list[str]]:
    """The ids in runs of neighbours."""
    runs: list[list[str]] = []
    last = -2
    for place, job_id in sorted((mine.place, job_id) for job_id, mine in jobs.items()):
        if place == last + 1:
            runs[-1].append(job_id)
        else:
            runs.append([job_id])
        last = place
    return runs
