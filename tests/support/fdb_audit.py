"""Look into a store on FoundationDB, past the engine, for keys that do not belong together."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.indexes import Indexes
from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.lease_limits import Rules
from tenure.engines.foundationdb.record import (
    Record,
    claimed,
    decode_claim,
    decode_record,
)
from tenure.engines.foundationdb.tuple_layer import Subspace
from tenure.engines.foundationdb.tx import _decode_limit
from tenure.model.job import LIVE, State
from tests import fdb_sim

_OF_JOBS = (
    k.READY, k.LEASE, k.ENDING, k.DELAYED, k.EXPIRING, k.LISTED, k.ENDED, k.UNIQUE, k.ERROR,
)  # fmt: skip


class Rows:
    """Everything in a store, by the kind of key."""

    def __init__(self, db: Any, directory: tuple[str, ...], handle: Any = fdb_sim) -> None:
        tr = db.create_transaction()
        self.keys: Keys | None = None
        self.by_kind: dict[int, dict[tuple[Any, ...], bytes]] = {}
        if not handle.directory.exists(tr, directory):
            return
        root = Subspace(raw_prefix=handle.directory.open(tr, directory).key())
        self.keys = Keys(root)
        for row in tr.get_range_startswith(root.key()):
            kind, *key = root.unpack(row.key)
            self.by_kind.setdefault(kind, {})[tuple(key)] = bytes(row.value)

    def of(self, kind: int) -> dict[tuple[Any, ...], bytes]:
        return self.by_kind.get(kind, {})


def wrong_keys(
    db: Any, directory: tuple[str, ...] = ("tenure",), handle: Any = fdb_sim
) -> list[str]:
    """What is wrong; nothing, if the engine keeps its books. handle: the module of the database."""
    rows = Rows(db, directory, handle)
    if rows.keys is None:
        return []
    jobs = _jobs(rows)
    return [
        *_places(rows, jobs),
        *_lanes(rows),
        *_aside(rows),
        *_counters(rows, jobs),
        *_taken(rows, jobs),
        *_dependencies(rows, jobs),
        *_bodies(rows, jobs),
        *_slots(rows),
    ]


def _jobs(rows: Rows) -> dict[str, Record]:
    """The jobs as they are, with the claims on them."""
    jobs = {job_id: decode_record(data) for (job_id,), data in rows.of(k.JOB).items()}
    for (job_id, stamp), data in sorted(rows.of(k.CLAIM).items(), key=lambda row: row[0]):
        if jobs[job_id].state is State.PENDING:  # the first claim: the others find it leased
            version = int.from_bytes(stamp.tr_version[:8], "big")
            jobs[job_id] = claimed(jobs[job_id], decode_claim(data), version)
    return jobs


def _places(rows: Rows, jobs: dict[str, Record]) -> list[str]:
    assert rows.keys is not None
    expected: set[bytes] = set()
    indexes = Indexes(rows.keys)
    for job_id, record in jobs.items():
        ends = indexes.ends(job_id, record.seq)
        expected |= {entry.start + ends[entry.end] for entry in indexes.changes(None, record)[1]}
    found = {
        rows.keys.pack(kind, *key): value
        for kind in _OF_JOBS
        for key, value in rows.of(kind).items()
    }
    wrong = [f"missing: {key!r}" for key in expected - found.keys()]
    for key in found.keys() - expected:
        if not key.startswith(rows.keys.pack(k.ENDING)):  # which a lost claim may leave
            wrong.append(f"stray: {key!r}")
    return wrong


def _lanes(rows: Rows) -> list[str]:
    aside = set(rows.of(k.PARKED))
    lanes = {(queue, tenant, group) for queue, tenant, _, group in rows.of(k.LANE)}
    turns = {(queue, tenant) for queue, _, tenant in rows.of(k.TURN)}
    wrong = [
        f"{key[:3]} has ready jobs, but no lane"
        for key in rows.of(k.READY)
        if key[:3] not in lanes | aside
    ]
    return wrong + [
        f"{lane[:2]} has a lane, but no turn"
        for lane in lanes
        if lane[:2] not in turns and (*lane[:2], None) not in aside
    ]


def _aside(rows: Rows) -> list[str]:
    """What was put aside could not be claimed."""
    limits = _limits(rows)
    wrong = []
    for queue, tenant, group in rows.of(k.PARKED):
        rules = Rules(queue, limits.get(queue, {}))
        if group is None:
            paused, bound = rules.tenant_paused(tenant), rules.tenant_concurrency(tenant)
        else:
            paused = rules.group_paused(tenant, group)
            bound = rules.group_concurrency(tenant, group)
        full = bound is not None and _in_use(rows, (queue, tenant, group)) >= bound
        more_to_come = len(rows.of(k.RULES).get((queue,), b"")) > 16
        if not (paused or full or more_to_come):
            wrong.append(f"{(queue, tenant, group)} was put aside, but nothing holds it back")
    return wrong


def _limits(rows: Rows) -> dict[str, dict[Any, Any]]:
    limits: dict[str, dict[Any, Any]] = {}
    for (queue, tenant, group), data in rows.of(k.LIMIT).items():
        limits.setdefault(queue, {})[tenant, group] = _decode_limit(data)
    return limits


def _in_use(rows: Rows, scope: tuple[Any, ...]) -> int:
    taken, freed = (
        int.from_bytes(rows.of(kind).get(scope, b""), "little", signed=True)
        for kind in (k.TAKEN, k.FREED)
    )
    return taken - freed


def _counters(rows: Rows, jobs: dict[str, Record]) -> list[str]:
    expected: Counter[tuple[Any, ...]] = Counter()
    for one in jobs.values():
        what = one.counted_as
        expected[k.QUEUE_COUNT, one.queue, what] += 1
        expected[k.TENANT_COUNT, one.queue, one.tenant, what] += 1
        expected[k.GROUP_COUNT, one.queue, one.tenant, one.group, what] += 1
        if one.group:
            total = "unfinished" if one.state in LIVE else "finished"
            expected[k.GROUP_TOTAL, one.queue, one.group, total] += 1
    found = {
        (kind, *key): int.from_bytes(value, "little", signed=True)
        for kind in (k.QUEUE_COUNT, k.TENANT_COUNT, k.GROUP_COUNT, k.GROUP_TOTAL)
        for key, value in rows.of(kind).items()
    }
    return [
        f"{key} is counted as {found.get(key)}, but is {expected[key]}"
        for key in found.keys() | expected.keys()
        if found.get(key, 0) != expected[key]
    ]


def _taken(rows: Rows, jobs: dict[str, Record]) -> list[str]:
    """What is taken of each limit is what is leased."""
    limits = _limits(rows)
    expected: Counter[tuple[Any, ...]] = Counter()
    for one in jobs.values():
        if one.state is State.LEASED:
            rules = Rules(one.queue, limits.get(one.queue, {}))
            expected.update((one.queue, *scope) for scope in rules.bounded(one.tenant, one.group))
    found: Counter[tuple[Any, ...]] = Counter()
    for kind, sign in ((k.TAKEN, 1), (k.FREED, -1)):
        for (queue, *scope), value in rows.of(kind).items():
            if queue in limits:
                found[queue, *scope] += sign * int.from_bytes(value, "little", signed=True)
    for key in list(found):
        if key not in expected and found[key]:
            rules = Rules(key[0], limits[key[0]])
            if key[1:] not in rules.bounded(key[1] or "", key[2] or ""):
                del found[key]  # no limit bounds it any longer
    return [
        f"of the limit {key}, {found[key]} are taken, but {expected[key]} are leased"
        for key in found.keys() | expected.keys()
        if found[key] != expected[key]
    ]


def _dependencies(rows: Rows, jobs: dict[str, Record]) -> list[str]:
    waits = set(rows.of(k.WAITS))
    wrong = [
        f"{pair} waits on one side only" for pair in waits ^ {(c, p) for p, c in rows.of(k.CHILD)}
    ]
    waiting = {child for child, _ in waits}
    for job_id, record in jobs.items():
        if (record.state is State.WAITING) != (job_id in waiting):
            wrong.append(f"{job_id} is {record.state}, and waits for {job_id in waiting}")
    for child, parent in waits:
        if child not in jobs or parent not in jobs or jobs[parent].state is State.DONE:
            wrong.append(f"{child} waits for {parent}, which is gone or done")
    return wrong


def _bodies(rows: Rows, jobs: dict[str, Record]) -> list[str]:
    wrong = []
    for kind, name, has in (
        (k.BODY, "body", lambda one: True),
        (k.ERRORS, "errors", lambda one: one.failures > 0),
        (k.RESULT, "result", lambda one: one.has_result),
        (k.CLAIM, "claim", None),
    ):
        found = {key[0] for key in rows.of(kind)}
        wrong += [f"the {name} of {one} is left over" for one in found if one not in jobs]
        if has is not None:
            expected = {job_id for job_id, one in jobs.items() if has(one)}
            wrong += [f"the {name} of {one} is wrong" for one in found ^ expected]
    for job_id in {key[0] for key in rows.of(k.CLAIM)}:
        if job_id in jobs and jobs[job_id].state not in LIVE:
            wrong.append(f"{job_id} has ended, and is claimed")
    return wrong


def _slots(rows: Rows) -> list[str]:
    slots = {(int(value), *key) for key, value in rows.of(k.SLOT).items()}
    return [f"slot {one} is on one side only" for one in slots ^ set(rows.of(k.SLOT_END))]
