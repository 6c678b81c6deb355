"""The table of production paths: how often each must be taken in a run as long as in CI, and how
many jobs it must move.

Paths are functions (`module.name`), named statements (`sql name`) and functions of PostgreSQL
(`plpgsql name`). Every path must be taken at least once, unless it is listed in EXEMPT with the
reason. Paths that carry most of the load in production have their own minimum. The minimum of a
longer run is half of what would be proportional.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.simulation.compare.counting import Counts


class CiRun(NamedTuple):
    """The run of an engine in CI."""

    seeds: tuple[int, ...]
    steps: int  # of each

    @property
    def total(self) -> int:
        return len(self.seeds) * self.steps


CI: dict[str, CiRun] = {
    "sqlite": CiRun((0, 1, 2, 3), 300),
    "postgres": CiRun((0, 1, 2, 3, 4, 5), 140),
    "shards-one": CiRun((0, 1), 120),
    "http": CiRun((0, 1, 2, 3), 150),
    "foundationdb": CiRun((0, 1, 2, 3, 4, 5, 12, 20, 31), 110),
    "foundationdb-faults": CiRun((1,), 80),
}

Floor = tuple[int, int]  # times, jobs

FLOORS: dict[str, dict[str, Floor]] = {
    "shards-one": {
        "batch.Batch.run": (50, 0),
        "claims.Asking.result": (20, 0),
        "once.Keyed.part": (5, 0),
        "lists.read": (5, 0),
    },
    "sqlite": {
        "core.enqueue.enqueue": (200, 3_000),
        "sql insert_alike_jobs": (60, 200),
        "sql insert_plain_jobs": (80, 1_500),
        "sql insert_job": (120, 300),
        "claim.claim": (200, 3_000),
        "core.claim.serve": (250, 0),
        "claim.Source.tenant": (20, 0),
        "claim._packed": (200, 800),
        "claim.LaneCursor.take": (400, 0),
        "sql next_in_lane": (400, 2_000),
        "sql jobs_to_lease": (100, 300),
        "sql payloads": (10, 10),
        "ack._ack_plain": (150, 2_000),
        "ack._known": (200, 300),
        "sql finish_run": (200, 300),
        "sql finish_jobs": (80, 300),
        "sql finish_job": (200, 400),
        "insert._insert_plain: plain": (120, 0),
        "insert._insert_plain: others": (50, 0),
        "counters.LaneBook.all_joined": (50, 0),
        "counters.LaneBook.first_left: the next is known": (20, 0),
        "core.leases._ack": (200, 200),
        "core.leases.fail": (20, 50),
        "core.leases.release": (10, 30),
        "core.leases.extend": (20, 200),
        "sql promote_jobs": (20, 50),
        "operate._once": (20, 200),
        "core.transfer._import": (5, 20),
        "core.moves.tell": (60, 0),
        "upkeep.maintain": (25, 1_000),
    },
    "postgres": {
        "fast_paths._enqueue": (60, 1_000),
        "fast_paths._claim": (10, 50),
        "fast_paths._ack": (20, 50),  # those without a lost lease
        "fast_paths._ack_and_claim: some jobs": (6, 50),
        "fast_paths._ack_and_claim: no job": (1, 0),
        "fast_paths._ack_and_claim: refused, a limit": (2, 0),
        "fast_paths._ack_and_claim: refused, several lanes": (4, 0),
        "fast_paths._ack_and_claim: refused, something is due": (2, 0),
        "fast_paths._ack_and_claim: refused, a child waits": (1, 0),
        "fast_paths._ack_and_claim: refused, a lost lease": (5, 0),
        "plpgsql claim_from_lane": (10, 0),
        "plpgsql enqueue": (150, 0),
        "plpgsql fold": (100, 0),
        "claim.claim": (60, 800),
        "core.claim.serve": (60, 0),
        "core.enqueue.enqueue": (60, 100),
        "ack.ack": (30, 300),
        "ack._ack_plain": (10, 100),
        "core.leases._ack": (30, 30),
        "core.moves.tell": (30, 0),
        "operate._once": (10, 50),
        "sql enqueue_alone": (60, 1_000),
        "sql candidates": (80, 0),
        "sql lease": (60, 800),
    },
    "http": {
        "remote.RemoteEngine.apply": (200, 3_000),
        "remote.RemoteEngine._send": (200, 0),
        "remote.RemoteEngine.read": (800, 0),
        "metrics.Measured.apply": (200, 3_000),
        "metrics.Measured._claimed": (80, 0),
        "metrics.Measured._ended": (400, 0),
        "wire.received": (600, 0),
    },
    "foundationdb": {
        "claim.Claims.claim": (30, 200),
        "claim.claim_serially": (2, 5),
        "core.enqueue.enqueue": (60, 400),
        "core.leases._ack": (60, 60),
        "pick.Picker.pick": (60, 200),
        "parking.put_aside": (10, 0),
        "core.upkeep.sweep": (60, 0),
    },
    "foundationdb-faults": {
        "claim.Claims.claim": (5, 20),
        "transact._Run._again": (20, 0),
    },
}

# Paths that this comparison does not take, and why. A pattern may match several.
_OPENING = "opening and migrating a store; tests/unit"
_FORGET = "an hour without jobs, which is rare; tests/conformance/test_many_queues.py"
_FORK = "forks; tests/unit/test_fork.py"
_LISTEN = "waking up, which changes nothing; tests/unit, tests/workers"
_FAULTS = "a store that fails or is lost; tests/crash and tests/server"
_WITHIN = "the caller's own transaction; tests/unit/test_transactional_enqueue.py"
_LOCKS = "locks of other transactions; tests/engines/postgres/test_locks.py"
_LARGE = "a list of a store of more than 10,000 jobs; tests/conformance/test_lists.py"
_CALLERS = "callers who leave; tests/crash/test_callers_who_leave.py"
_RECORDS = "records that are not of errors; tests/conformance/test_records.py, test_audit.py"
_RATES = "what is counted is not compared; tests/conformance/test_rates_over_time.py"
_EXPLAIN = "explanations are compared in tests/conformance/test_explain_agrees.py"
_WORKERS = "workers that report themselves; tests/conformance/test_workers.py"
_FENCES = "stores that are shards; tests/engines/sharded/test_fence.py"
_KEYED = "keyed calls over shards; tests/engines/sharded/test_once.py"
_MANY = "many jobs by their ids; tests/conformance/test_reading.py"
_UNTOLD = "a job with a thousand children; tests/engines/sqlite/test_untold.py"

EXEMPT: dict[str, dict[str, str]] = {
    "shards": {},  # most of it needs several shards; tests/engines/sharded
    "": {
        "why.dry_run.*": _EXPLAIN,
        "explain.*": _EXPLAIN,
        "reads._explain": _EXPLAIN,
        "reads.Snapshot.now": _EXPLAIN,
        "reads.Snapshot.news": _EXPLAIN,
        "sql why_*": _EXPLAIN,
        "live_workers.rules.*": _WORKERS,
        "core.fencing.*": _FENCES,
        "core.moves.resume": _UNTOLD,
        "core.leases._note_heard": _WORKERS,
        "reads._find_answers": _KEYED,
        "reads._get_jobs": _MANY,
        "reads.get_jobs": _MANY,
        "sql seqs_by_id": _MANY,
        "file_events.*": _LISTEN,
        "record.start_of_body": "a summary of a large job; tests/conformance/test_lists.py",
        "remote.RemoteEngine._is_away": _FAULTS,
        "committer.Committer._by_part": "on shards; tests/engines/sharded/test_slow_parts.py",
        "committer.Committer.run_aside": "by workers; tests/unit/test_renewals.py",
        "committer.Committer._abandon": _CALLERS,
        "committer.Committer._commit_apart": _FAULTS,
        "committer._is_of_one": _FAULTS,
        "committer.Committer._release_leases": _CALLERS,
        "committer.Committer.give_back": _CALLERS,
        "committer.Committer._drop_closed_loops": _CALLERS,
        "committer.Standing.on_answer": _LISTEN,
        "committer._in_child": _FORK,
        "committer.Committer._*rates": _RATES,
        "committer.Committer._apply_counted": _RATES,
        "core.put_records.*": _RECORDS,
        "audit.rules.*": _RECORDS,
        "sql records_backwards": _RECORDS,
        "sql record": _RECORDS,
        "transaction.Transaction.record": _RECORDS,
        "lists._Search._first_seq": _LARGE,
        "lists._cursor_after": "a page of large jobs; tests/conformance/test_reading.py",
        "lists._first_created": _LARGE,
        "sql job_from": _LARGE,
        "sql newest_job": _LARGE,
    },
    "sqlite": {
        "file.*": _OPENING,
        "statements.*": _OPENING,
        "sql has_schema": _OPENING,
        "sql databases": _WITHIN,
        "sql drop_*_of": _FORGET,
        "sql drop_queue": _FORGET,
        "untold.*": _UNTOLD,
        "sql *_untold": _UNTOLD,
        "engine.SqliteEngine._check_shared": _WITHIN,
        "engine.SqliteEngine.apply_within": _WITHIN,
        "engine._default_text_factory": _WITHIN,
        "engine.*fork": _FORK,
        "engine.SqliteEngine._version": _LISTEN,
        "engine.SqliteEngine.listen": _LISTEN,
        "watch.*": _LISTEN,
        "disk.Disk._gone": _FAULTS,
        "lock._in_child": _FORK,
        "lock.Wait._is_over": "other writers; tests/engines/sqlite/test_lock.py",
        "lock.Wait.sleep": "other writers; tests/engines/sqlite/test_lock.py",
        "*.log_bytes": "what is shown; tests/engines/sqlite/test_log.py",
        "rows.leased_job": "only for PostgreSQL",
        "sql tenant_by_id": "a lane whose tenant's book is not open; claims open it first",
    },
    "postgres": {
        "server.*": _OPENING,
        "engine.PostgresEngine._beside": _FENCES,
        "*hold_ring": _FENCES,
        "sql ring_marks": _FENCES,
        "sql once": _KEYED,
        "sql states_of": _FAULTS,
        "statements.*": _OPENING,
        "sql fold_news": "2,000 rows of news; tests/engines/postgres/test_reading.py",
        "sql has_schema": _OPENING,
        "sql has_namespace": _OPENING,
        "sql who_is_who": _OPENING,
        "sql set_version": _OPENING,
        "sql one_at_a_time": _OPENING,
        "sql make_schema": _OPENING,
        "sql version": _OPENING,
        "*recover*": _FAULTS,
        "fast_paths._enqueued": _FAULTS,
        "fast_paths._acked": _FAULTS,
        "fast_paths._claimed": _FAULTS,
        "sql marked_tokens": _FAULTS,
        "sql leased_under": _FAULTS,
        "sql mark_unless_marked": _FAULTS,
        "sql has_happened": _FAULTS,
        "sql wait_at_most": _FAULTS,
        "sql rollback": _FAULTS,
        "engine._is_lost": _FAULTS,
        "engine.PostgresEngine._ask": _FAULTS,
        "engine.PostgresEngine._find_out": _FAULTS,
        "engine.PostgresEngine._wait": _FAULTS,
        "pool.Pool.clear": _FAULTS,
        "engine.PostgresEngine._apply_apart": _LOCKS,
        "engine.PostgresEngine._apply_one_by_one": _LOCKS,
        "engine.PostgresEngine._held": _LOCKS,
        "locks.jobs_of": _LOCKS,
        "* held": _LOCKS,
        "engine.PostgresEngine._make_lanes": _WITHIN,
        "sql make_lanes": _WITHIN,
        "engine._has_fixed_snapshot": _WITHIN,
        "engine.PostgresEngine.apply_within": _WITHIN,
        "engine.PostgresEngine._check_shared": _WITHIN,
        "sql notify_within": _WITHIN,
        "engine.PostgresEngine.listen": _LISTEN,
        "listen.*": _LISTEN,
        "sql listen": _LISTEN,
        "notify.*": _LISTEN,
        "sql notify": _LISTEN,
        "core.limits.Rules.*": "the server decides; tests/engines/postgres/test_limits.py",
        "core.schedules._job": "rare in so few steps; taken on SQLite, and tests/conformance",
        "core.slots.*": "the server decides; plpgsql take_slot and drop_slot",
        "*candidates_beside": "another has the books; tests/engines/postgres/test_sharing.py",
        "pool.*": _FORK,
        "plpgsql first_lanes": "written into the statements that call it",
        "plpgsql moment": "written into the statements that call it",
        "plpgsql stride": "written into the statements that call it",
        "plpgsql *_bound": "written into the statements that call it",
        "plpgsql tenant_stride": "written into the statements that call it",
        "plpgsql home": "written into the statements that call it",
        "plpgsql unfolded": "written into the statements that call it",
    },
    "http": {
        "remote.RemoteEngine._listen": _LISTEN,
        "remote.RemoteEngine.listen": _LISTEN,
        "remote.RemoteEngine._unreachable": _FAULTS,
        "remote._unknown": _FAULTS,
        "remote.RemoteEngine.apply_within": _WITHIN,
        "remote.RemoteEngine.open": _OPENING,
        "remote.is_loopback": _OPENING,
        "metrics.*": "what is shown; tests/server/test_metrics.py",
        "wire._encode_special": "errors among stored answers; tests/unit/test_once_stored.py",
        "wire.begun": "of FoundationDB; tests/unit/test_once_stored.py",
    },
    "foundationdb": {
        "binding.*": _OPENING,
        "formats.*": _OPENING,
        "engine._told": _FAULTS,
        "reads._last_tenant": "more than 500 tenants; tests/conformance/test_related.py",
        "engine._too_much": "more than a transaction takes; tests/engines/foundationdb",
        "once.go_on": "a call that another began; tests/engines/foundationdb/test_keyed_claims.py",
        "claim._release_expired": "many expired; tests/conformance/test_expiry.py",
        "clocks.*": "clocks that differ; tests/workers/test_wrong_clocks.py",
        "jumps.*": "leases by versions; tests/simulation/servers",
        "pace.*": "leases by versions; tests/simulation/servers",
        "engine._look_again": "clocks that differ; tests/workers/test_wrong_clocks.py",
        "engine._again": _FAULTS,
        "engine.FoundationDbEngine.apply_within": _WITHIN,
        "engine.FoundationDbEngine.listen": _LISTEN,
        "wake.*": _LISTEN,
        "transact._Run.*": _FAULTS,
        "due._drop_ending_key": "claims that were lost to another; tests/simulation/servers",
        "tx.Tx.aside_is_left": "more than a thousand lanes; tests/engines/foundationdb",
        "cursor.*": "cursors of other engines; tests/conformance",
        "tuple_layer.*": "the encoding of keys; tests/engines/kv",
    },
}


class Row(NamedTuple):
    """A row of the table."""

    path: str
    times: int
    jobs: int
    floor: Floor

    @property
    def is_short(self) -> bool:
        return self.times < self.floor[0] or self.jobs < self.floor[1]


def rows(engine: str, counts: Counts, steps: int) -> Iterator[Row]:
    """The table for a run with so many steps."""
    kind = engine.partition("-")[0]
    floors = FLOORS[engine]
    exempt = EXEMPT[""] | EXEMPT[kind]
    share = 1.0 if steps <= CI[engine].total else steps / CI[engine].total / 2
    for path in sorted(counts.known | floors.keys()):
        free = any(fnmatchcase(path, pattern) for pattern in exempt)
        least = floors.get(path, (0, 0) if free or engine != kind else (1, 0))
        floor = (int(least[0] * share), int(least[1] * share))
        yield Row(path, counts.times[path], counts.jobs[path], floor)


def table(engine: str, counts: Counts, steps: int, *, everything: bool = True) -> str:
    """The table as text, or only the rows below their minimum."""
    lines = [f"{engine}, {steps} steps", f"{'path':50} {'times':>9} {'jobs':>9}   floor"]
    for row in rows(engine, counts, steps):
        if everything or row.is_short:
            short = "  SHORT" if row.is_short else ""
            floor = f"{row.floor[0]} / {row.floor[1]}" if any(row.floor) else "-"
            lines.append(f"{row.path:50} {row.times:9} {row.jobs:9}   {floor}{short}")
    return "\n".join(lines) + "\n"


def short(engine: str, counts: Counts, steps: int) -> list[str]:
    """The paths that were not taken often enough."""
    return [row.path for row in rows(engine, counts, steps) if row.is_short]
