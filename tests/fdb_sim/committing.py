"""A commit on its way from a client to the cluster, and what can happen to it there."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fdb_sim import errors
from tests.fdb_sim.client import Client
from tests.fdb_sim.cluster import Committed, Request
from tests.fdb_sim.errors import FDBError
from tests.fdb_sim.faults import Fate
from tests.fdb_sim.options import Kept
from tests.fdb_sim.writes import Range

MUTATION_BYTES = 44  # what a mutation counts besides its key and parameter
RANGE_BYTES = 24  # and a conflict range


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same ranges, those that touch made one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def size_of(request: Request) -> int:
    """What counts against the limit of a transaction."""
    ranges = [*request.reads, *request.writes]
    return sum(MUTATION_BYTES + mutation.size for mutation in request.mutations) + sum(
        RANGE_BYTES + len(begin) + len(end) for begin, end in ranges
    )


def send(client: Client, request: Request, kept: Kept) -> Committed:
    """Commit, and count how it ended."""
    stats = client.stats
    stats.commits_attempted += 1
    try:
        _check_size(request, kept.size_limit)
        committed = _meet_fate(client, request, has_timeout=bool(kept.timeout_ms))
    except FDBError as raised:
        if raised.code == errors.NOT_COMMITTED:
            stats.commits_conflicted += 1
        elif raised.code in errors.MAYBE_COMMITTED | {errors.TIMED_OUT}:
            stats.commits_unknown += 1
        else:
            stats.commits_failed += 1
        raise
    stats.commits_committed += 1
    return committed


def _check_size(request: Request, limit: int) -> None:
    if size_of(request) > limit:
        raise FDBError(errors.TRANSACTION_TOO_LARGE)


def _meet_fate(client: Client, request: Request, *, has_timeout: bool) -> Committed:
    """Commit, or let go wrong what the dice say."""
    fate = client.dice.fate(has_timeout=has_timeout)
    if fate is Fate.NORMAL:
        return _apply(client, request)
    client.stats.faults += 1
    if fate is Fate.CONFLICT:
        raise FDBError(errors.NOT_COMMITTED)
    if fate in (Fate.UNKNOWN_APPLIED, Fate.TIMEOUT_APPLIED) or (
        fate is Fate.RECOVERY and client.dice.either()
    ):
        try:
            _apply(client, request)
        except FDBError as raised:  # the client does not hear of a conflict either
            if raised.code not in (errors.NOT_COMMITTED, errors.TOO_OLD):
                raise
    elif fate is Fate.TIMEOUT_LATE:
        client.cluster.commit_late(request, client.dice.late_s())
    if fate is Fate.RECOVERY:
        client.cluster.recover(client.dice.jump_s())
    unknown = fate in (Fate.UNKNOWN_APPLIED, Fate.UNKNOWN_LOST, Fate.RECOVERY)
    raise FDBError(client.dice.unknown() if unknown else errors.TIMED_OUT)


def _apply(client: Client, request: Request) -> Committed:
    committed = client.cluster.commit(request)
    client.stats.keys_written += len(request.mutations)
    client.stats.bytes_written += sum(mutation.size for mutation in request.mutations)
    return committed
