"""Inserting jobs in bulk: new ones, and imported ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from tenure.engines.postgres.session import Db
from tenure.engines.sql.rows import (
    LEASED,
    at_of,
    code_of_entry,
    errors_text,
    options_of,
    result_text,
)
from tenure.model.job import JobSpec
from tenure.model.ops import Entry

BLOCK = 1024  # job numbers per number of the sequence

# A job with only these fields is ready at once.
_COMMON = JobSpec.__struct_fields__.index("delay_ms")
_PLAIN = astuple(JobSpec("", "", msgspec.Raw(b"")))[_COMMON:]
lane_of = attrgetter("queue", "tenant", "group")


class Place(NamedTuple):
    """Where a job was put."""

    seq: int
    lane: int
    queue: int
    code: int


def insert_jobs(
    db: Db, given: int | None, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None
) -> tuple[int, list[int]]:
    """Insert jobs without their dependencies. Returns the time and their numbers."""
    row = db.one("enqueue", given, *columns_of(specs, waits))
    assert row is not None
    return row[0], row[1]


def columns_of(
    specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None = None
) -> list[list[Any]]:
    """The columns of new jobs, as parameters."""
    lanes: dict[tuple[str, str, str], int] = {}
    numbers: list[int] = []
    for names, run in groupby(specs, key=lane_of):
        number = lanes.setdefault(names, len(lanes) + 1)
        numbers.extend([number] * sum(1 for _ in run))
    rest: list[list[Any]] = [[] for _ in range(6)]
    if not all(astuple(spec)[_COMMON:] == _PLAIN for spec in specs):
        rest = [
            [spec.unique_key for spec in specs],
            [options_of(spec) for spec in specs],
            [spec.run_at for spec in specs],
            [spec.delay_ms for spec in specs],
            [spec.expires_in_ms for spec in specs],
            [False] * len(specs) if waits is None else list(map(bool, waits)),
        ]
    return [
        *map(list, zip(*lanes, strict=True)),
        numbers,
        [spec.id for spec in specs],
        [str(spec.payload, "utf-8") for spec in specs],
        [spec.kind for spec in specs],
        [spec.priority for spec in specs],
        [spec.max_attempts for spec in specs],
        *rest,
    ]


def insert_entries(db: Db, entries: Sequence[Entry]) -> list[Place]:
    """Insert jobs from another store without their dependencies. Returns their places."""
    places = _places(db, entries)
    seqs, lanes, queues, codes = map(list, zip(*places, strict=True))
    jobs = [entry.job for entry in entries]
    db.send(
        "import_jobs", seqs, [job.created_at for job in jobs], lanes,
        [job.priority for job in jobs], [job.max_attempts for job in jobs],
        [job.id for job in jobs], [job.kind for job in jobs], [job.unique_key for job in jobs],
        [options_of(job) for job in jobs], [str(job.raw_payload, "utf-8") for job in jobs],
    )  # fmt: skip
    db.send(
        "import_states", seqs, [at_of(job) for job in jobs], [job.run_at for job in jobs],
        [job.updated_at for job in jobs], lanes, queues,
        [job.priority for job in jobs], [job.attempts for job in jobs], codes,
        [job.progress for job in jobs], [job.token for job in jobs],
        [job.started_at for job in jobs], [job.expires_at for job in jobs],
        [job.worker for job in jobs], [job.note for job in jobs],
        [errors_text(job.errors) for job in jobs], [result_text(job.raw_result) for job in jobs],
    )  # fmt: skip
    keyed = [
        (place, job.unique_key)
        for place, job in zip(places, jobs, strict=True)
        if job.unique_key is not None and place.code <= LEASED
    ]
    if keyed:
        db.send(
            "import_keys", [place.lane for place, _ in keyed], [key for _, key in keyed],
            [place.seq for place, _ in keyed],
        )  # fmt: skip
    db.send("tokens_from", max(job.token for job in jobs))
    leased = [(p, at_of(job)) for p, job in zip(places, jobs, strict=True) if p.code == LEASED]
    if leased:
        db.send(
            "import_leases", [place.queue for place, _ in leased],
            [place.lane for place, _ in leased], [at for _, at in leased],
        )  # fmt: skip
    return places


def _places(db: Db, entries: Sequence[Entry]) -> list[Place]:
    """Numbers for these jobs. Creates their lanes if necessary."""
    names = list(dict.fromkeys(lane_of(entry.job) for entry in entries))
    found = db.value("lanes_of", *map(list, zip(*names, strict=True)))
    lanes = dict(zip(names, zip(found, found[len(names) :], strict=False), strict=True))
    blocks = [first for (first,) in db.all("blocks", (len(entries) - 1) // BLOCK + 1)]
    return [
        Place(blocks[n // BLOCK] + n % BLOCK, *lanes[lane_of(entry.job)], code_of_entry(entry))
        for n, entry in enumerate(entries)
    ]
