"""Which files are mutated, and which tests should notice.

A file's tests are run in the order of this table, the fastest and sharpest first, until one fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.mutation import named, python, sql
from tests.mutation.mutation import Mutation, mutations

ROOT = Path(__file__).parents[2]


class Selection(NamedTuple):
    """Arguments for pytest; `seconds` is what one test may take before it counts as hanging."""

    arguments: tuple[str, ...]
    seconds: int = 180

    @property
    def name(self) -> str:
        return " ".join(self.arguments)


def _tests(*arguments: str, seconds: int = 180) -> Selection:
    return Selection(arguments, seconds)


def _conformance(engine: str, *first: str) -> tuple[Selection, ...]:
    """The conformance tests on an engine: some files, then all others. To collect all of them takes
    longer than to run those that are likely to fail."""
    names = [path.stem[5:] for path in sorted((ROOT / "tests/conformance").glob("test_*.py"))]
    begun = list(dict.fromkeys(first or _SHARP))
    rest = sorted(set(names) - set(begun), key=lambda name: (name not in _SHARP, name))
    return tuple(
        _tests(*(f"tests/conformance/test_{name}.py" for name in some), "-k", engine)
        for some in (begun, rest)
    )


def _some(engine: str, *names: str) -> tuple[Selection, ...]:
    """A few files of the conformance tests."""
    return (_tests(*(f"tests/conformance/test_{name}.py" for name in names), "-k", engine),)


_SQL_LISTS = _tests("tests/engines/test_sql_lists.py")
_MODEL = "tests/simulation/test_same_as_the_model.py"
_SHARP = ("claim", "finish", "batches", "limits")  # they take most ways through an engine


def _compared(engine: str) -> Selection:
    return _tests("tests/mutation/compared.py", "-k", engine, seconds=300)


def _sqlite(*first: str) -> tuple[Selection, ...]:
    likely, others = _conformance("sqlite", *first)
    return (
        likely,
        _compared("sqlite"),
        _tests("tests/engines/sqlite"),
        others,
        _SQL_LISTS,
        _tests(_MODEL, "-k", "not Postgres", seconds=300),
        _tests("tests/unit/test_transactional_enqueue.py", "tests/unit/test_reconcile_heads.py"),
        _tests("tests/unit/test_fork.py", "tests/unit/test_batches_at_once.py"),
        _tests("tests/unit/cli/test_moving.py"),
        _tests("tests/unit/test_copying.py", "tests/crash/test_sharing.py"),
        _tests("tests/crash/test_restore.py"),
        _tests("tests/engines/sharded/test_fence.py", "-k", "sqlite"),
    )


def _postgres(*first: str) -> tuple[Selection, ...]:
    likely, others = _conformance("postgres", *first)
    return (
        likely,
        _compared("postgres"),
        _tests(
            *(f"tests/engines/postgres/test_{name}.py" for name in ("races", "bounds", "locks"))
        ),
        _tests("tests/engines/postgres", "-k", "not churn and not upgrade and not backup"),
        _SQL_LISTS,
        others,
        _tests(_MODEL, "-k", "Postgres", seconds=300),
        _tests("tests/engines/postgres/test_sharing.py", "tests/workers/test_on_postgres.py"),
        _tests("tests/engines/postgres/test_faults.py", "tests/unit/test_copying.py"),
    )


def _sql(*first: str) -> tuple[Selection, ...]:
    """What SQLite and PostgreSQL share."""
    return (*_sqlite(*first)[:3], _SQL_LISTS, *_postgres(*first)[:2])


def _foundationdb(*first: str) -> tuple[Selection, ...]:
    likely, others = _conformance("fdb", *first)
    return (
        likely,
        _compared("foundationdb"),
        _tests("tests/engines/foundationdb", "tests/engines/kv/test_tuple.py"),
        others,
        _tests("tests/simulation", "-k", "fdb or Follows or servers", seconds=300),
        _tests("tests/workers/test_on_foundationdb.py", "tests/unit/test_copying.py"),
    )


def _sharded(*first: str) -> tuple[Selection, ...]:
    likely, others = _conformance("shards and not postgres", *first)
    return (
        _tests("tests/engines/sharded", "-k", "not kill and not postgres"),
        likely,
        _compared("shards"),
        others,
        _tests("tests/server/test_shards.py", "tests/unit/cli/test_moving.py"),
        _tests("tests/engines/sharded", "tests/unit/cli/test_looking.py"),
    )


def _core(*first: str) -> tuple[Selection, ...]:
    """What every engine uses: the model first, since it needs no store."""
    return (
        *(_tests(one) for one in first),
        *_conformance("memory"),
        *_some("sqlite", *_SHARP),
    )


_FIRST = {
    "claim": ("claim", "fairness", "limits", "rates", "pauses", "expiry"),
    "counters": ("claim", "limits", "fairness", "operator"),
    "enqueue": ("enqueue", "unique", "dependencies", "batches"),
    "insert": ("enqueue", "unique", "dependencies", "transfer"),
    "inserting": ("enqueue", "unique", "dependencies", "transfer"),
    "ack": ("finish", "fencing", "dependencies"),
    "acks": ("finish", "fencing", "dependencies"),
    "plain_acks": ("finish", "fencing", "dependencies"),
    "leases": ("finish", "fencing", "retries"),
    "operator": ("operator", "limits", "pauses", "rates"),
    "reads": ("reading", "related", "lists", "schedules", "slots"),
    "lists": ("lists", "scans", "error_groups", "reading"),
    "job_lists": ("lists", "scans", "error_groups", "reading"),
    "job_scans": ("lists", "scans", "error_groups", "reading"),
    "paging": ("lists", "scans", "error_groups", "reading"),
    "turns": ("explain", "explain_agrees", "fairness"),
    "indexes": ("lists", "scans"),
    "side_records": ("records", "audit"),
    "transfer": ("transfer",),
    "exporting": ("transfer",),
    "upkeep": ("maintenance", "many_queues", "slots", "once", "expiry", "dependencies"),
    "slots": ("slots",),
    "slot_changes": ("slots",),
    "limits": ("limits", "rates", "pauses"),
    "limit_names": ("limits", "rates", "pauses"),
    "lease_limits": ("limits", "rates", "pauses"),
    "rows": ("reading", "claim", "finish", "transfer"),
    "record": ("reading", "claim", "finish", "transfer"),
    "transaction": ("dependencies", "finish", "operator", "transfer"),
    "tx": ("dependencies", "finish", "operator", "limits"),
    "engine": ("handles", "changes", "once", "enqueue", "async"),
    "file": ("handles", "enqueue"),
    "watch": ("changes", "handles"),
    "wake": ("changes", "handles"),
    "listen": ("changes", "handles"),
    "notify": ("changes", "handles"),
    "pool": ("handles", "async", "enqueue"),
    "server": ("handles", "enqueue"),
    "fast_paths": ("enqueue", "finish", "claim"),
    "commit_attempt": ("once", "handles", "enqueue"),
    "calls": ("expiry", "once", "batches"),
    "transact": ("once", "handles", "enqueue"),
    "parking": ("pauses", "limits", "fairness"),
    "bucket": ("rates",),
    "pick": ("claim", "fairness", "limits", "pauses"),
    "due": ("expiry", "maintenance", "retries"),
    "moves": ("dependencies", "error_groups", "operator", "finish"),
    "operate": ("once", "batches", "enqueue"),
    "schedules": ("schedules",),
    "audit": ("audit",),
    "editing": ("editing",),
    "errors": ("error_groups", "errors"),
    "why": ("explain", "explain_agrees"),
    "grants": ("two_tenants",),
    "put_records": ("records", "audit"),
    "live_workers": ("workers",),
    "rates": ("rates_over_time",),
}

# The same by a part of a function's or statement's name, for files that hold many things.
_FIRST_BY_FUNCTION = {
    "why": ("explain", "explain_agrees"),
    "error": ("error_groups", "lists"),
    "find_by": ("lists", "scans", "related"),
    "count_by": ("lists", "scans"),
    "floor_by": ("lists", "scans"),
    "forget": ("many_queues",),
    "emptied": ("many_queues",),
    "owner": ("grants", "two_tenants"),
    "hides": ("grants", "two_tenants"),
    "refused": ("explain", "fencing"),
    "edit": ("editing",),
    "stride": ("fairness", "limits"),
    "weight": ("fairness",),
    "group": ("group_totals", "lists"),
    "slot": ("slots",),
    "once": ("once",),
    "schedule": ("schedules",),
    "fire": ("schedules",),
    "limit": ("limits", "rates"),
    "bound": ("limits",),
    "dep": ("dependencies",),
    "child": ("dependencies",),
    "parent": ("dependencies",),
    "key": ("unique", "once"),
    "recount": ("maintenance", "transfer"),
    "reconcile": ("maintenance",),
    "count": ("maintenance", "reading"),
    "import": ("transfer",),
    "export": ("transfer",),
    "read": ("reading",),
    "find": ("reading", "operator"),
    "stats": ("reading",),
    "tenants": ("reading", "fairness"),
    "groups": ("reading",),
    "due": ("reading", "retries"),
    "oldest": ("reading",),
    "expire": ("expiry", "retries"),
    "over": ("retries", "expiry"),
    "purge": ("maintenance",),
    "empty": ("maintenance",),
    "ack": ("finish", "dependencies"),
    "finish": ("finish",),
    "progress": ("finish", "fencing"),
    "extend": ("finish", "fencing"),
    "cancel": ("operator",),
    "replay": ("operator",),
    "run_now": ("operator",),
    "delete": ("operator", "finish"),
    "lane": ("claim", "limits", "enqueue"),
    "turn": ("fairness",),
    "enqueue": ("enqueue",),
    "add": ("enqueue",),
}

# Tests that come before all others: with a wrong answer, those might fill the disk.
_BEFORE_ALL = {
    "tenure.tokens_from()": (_tests("tests/engines/postgres/test_tokens.py", "-k", "near"),),
}

# Tests that need two transactions at once.
_GRANTS_RACE = (_tests("tests/engines/postgres/test_grants.py"),)
_CORE_ALSO = {
    "claim": (_tests("tests/unit/test_claim_policy.py"),),
    "errors": (_tests("tests/engines/postgres/test_error_groups.py"),),
    "grants": _GRANTS_RACE,
    "enqueue": _GRANTS_RACE,
    "leases": (*_GRANTS_RACE, _tests("tests/engines/postgres/test_locks.py")),
    "schedules": (_tests("tests/workers/test_wrong_clocks.py"),),
}

_WIRE = ("tests/server/test_wire.py", "tests/server/test_lost_answers.py")
# The first pattern that a path matches.
_TABLE: tuple[tuple[str, tuple[Selection, ...]], ...] = (
    ("src/tenure/queue/committer.py", (
        _tests("tests/unit/test_committer.py", "tests/unit/test_standing_claims.py",
               "tests/unit/test_batches_at_once.py", "tests/unit/test_renewals.py"),
        *_some("memory or sqlite", "async", "batches", "handles", "changes", "rates_over_time"),
        _tests("tests/unit/test_fork.py", "tests/crash/test_callers_who_leave.py"),
        _tests("tests/server/test_waiting.py", "tests/server/test_lost_answers.py"),
    )),
    ("src/tenure/queue/commit_line.py", (
        _tests("tests/unit/test_commit_line.py", "tests/unit/test_committer.py",
               "tests/unit/test_batches_at_once.py"),
        *_some("memory or sqlite", "async", "batches", "handles"),
        _tests("tests/unit/test_fork.py", "tests/crash/test_callers_who_leave.py"),
    )),
    ("src/tenure/model/states.py", _core("tests/unit/test_states.py")),
    ("src/tenure/model/retry.py", _core("tests/unit/test_retry.py")),
    ("src/tenure/model/cron.py", (
        _tests("tests/unit/test_cron.py"),
        _tests("tests/workers/test_scheduler.py", "tests/conformance/test_schedules.py",
               "-k", "memory or sqlite or scheduler"),
    )),
    ("src/tenure/model/job.py", (
        _tests("tests/unit/test_job.py"),
        *_conformance("memory", "dependencies", "enqueue", "errors"),
        *_some("sqlite", *_SHARP),
        _tests(*_WIRE),
    )),
    ("src/tenure/model/ops.py", (
        *_core("tests/unit/test_job.py", "tests/unit/test_grant.py"), _tests(*_WIRE),
    )),
    ("src/tenure/worker/lease_keeper.py", (
        _tests("tests/workers/test_lease_keeper.py"),
        _tests("tests/workers/test_leases.py", "tests/workers/test_worker.py"),
        _tests("tests/workers/test_store_trouble.py", "tests/workers/test_stopping.py"),
    )),
    ("src/tenure/worker/kept_outcomes.py", (
        _tests("tests/workers/test_store_trouble.py"),
        _tests("tests/engines/sharded/test_worker_on_shards.py"),
        _tests("tests/engines/postgres/test_worker_locks.py", "tests/workers/test_job_log.py"),
    )),
    ("src/tenure/worker/scheduler.py", (
        _tests("tests/workers/test_scheduler.py"),
        _tests("tests/workers/test_store_trouble.py", "tests/workers/test_found.py"),
    )),
    *(
        (f"src/tenure/engines/foundationdb/{name}.py", (
            _tests("tests/engines/foundationdb/test_jumps.py"),
            _tests("tests/simulation/test_servers.py"),
        ))
        for name in ("jumps", "versions")
    ),
    ("src/tenure/engines/foundationdb/clocks.py", (
        _tests("tests/workers/test_wrong_clocks.py", "-k", "foundationdb"),
        *_foundationdb("schedules"),
    )),
    ("src/tenure/engines/remote.py", (
        _tests("tests/unit/test_remote.py"),
        _tests(*_WIRE),
        *_conformance("remote", "once", "batches", "handles"),
        _tests("tests/server/test_store_away.py", "tests/server/test_tls.py",
               "tests/server/test_tokens.py", "tests/server/test_waiting.py"),
    )),
)  # fmt: skip
# The tests that know a file of the worker best; then come all others of workers.
_WORKER_FIRST = {
    "beats": ("beats",),
    "job_log": ("job_log",),
    "outcome": ("task_outcomes", "tasks"),
    "processes": ("killed_processes", "sandbox"),
    "run": ("found", "worker"),
    "worker": ("worker", "found", "split", "store_trouble", "stopping"),
    "shutdown": ("stopping",),
    "threads": ("threads",),
    "unknown_kind": ("unknown_kinds",),
}
_ENGINES = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "sql": _sql,
    "foundationdb": _foundationdb,
    "sharded": _sharded,
}

# Names whose values decide how fast something is or how long it waits, and no outcome.
_SETTINGS: dict[str, frozenset[str]] = {
    "src/tenure/engines/sqlite/db.py": frozenset({"_INSERT_SIZES"}),
    "src/tenure/engines/sqlite/file.py": frozenset({"OLDEST_SQLITE", "RETRY_SECONDS", "CACHE_KIB"}),
    "src/tenure/engines/sqlite/oldest.py": frozenset(
        {"MOST_LINES", "MOST_REMEMBERED", "MOST_CHANGED", "AT_ONCE", "MOST_ROUNDS"}
    ),
    "src/tenure/engines/sqlite/watch.py": frozenset(
        {
            *("INTERVAL_SECONDS", "FIRST_SECONDS", "IDLE_SECONDS", "GAP_SECONDS"),
            *("STEP_SECONDS", "MOST_SYNC_SECONDS"),
        }
    ),
    "src/tenure/engines/postgres/engine.py": frozenset({"MOST_RACES", "RETRY_SECONDS"}),
    "src/tenure/engines/postgres/listen.py": frozenset(
        {"PAUSE_SECONDS", "QUIET_SECONDS", "CLOSING_SECONDS"}
    ),
    "src/tenure/engines/postgres/claimed_places.py": frozenset({"MOST"}),
    "src/tenure/engines/postgres/pool.py": frozenset({"MOST_KEPT"}),
    "src/tenure/engines/postgres/notify.py": frozenset({"QUIET_SECONDS"}),
    "src/tenure/engines/foundationdb/parking.py": frozenset({"AT_ONCE"}),
    "src/tenure/engines/foundationdb/claim.py": frozenset(
        {"_ROUNDS", "_MOST_JOBS", "_MOST_SPREAD", "_CALM_AFTER"}
    ),
    "src/tenure/engines/foundationdb/claimed_jobs.py": frozenset({"MOST", "_NEXT_CLAIM"}),
    "src/tenure/engines/foundationdb/engine.py": frozenset(
        {"_FEW_QUEUES", "_MOST_JOBS", "_MOST_BYTES"}
    ),
    "src/tenure/engines/foundationdb/pick.py": frozenset(
        {"WINDOW", "MOST_HELD_BACK", "_FIRST_LOOK", "_TURN", "_WINDOW_TURNS"}
    ),
    "src/tenure/engines/foundationdb/reads.py": frozenset({"_AT_ONCE", "_FIRST_ENDING"}),
    "src/tenure/engines/foundationdb/record.py": frozenset({"PART_BYTES"}),
    "src/tenure/engines/foundationdb/store.py": frozenset({"ASIDE_FROM"}),
    "src/tenure/engines/foundationdb/transact.py": frozenset(
        {"_MOST_TIMEOUT_S", "_LEAST_TIMEOUT_S", "MOST_TRIES", "_LAST_TRIES"}
    ),
    "src/tenure/engines/foundationdb/tx.py": frozenset({"WAKE_SHARDS"}),
    "src/tenure/engines/foundationdb/upkeep.py": frozenset({"_STEP"}),
    "src/tenure/engines/foundationdb/wake.py": frozenset(
        {"_LOOK_AGAIN_S", "_AFTER_ERROR_S", "_PATIENCE_S"}
    ),
    "src/tenure/engines/sharded/cluster.py": frozenset(
        {"READS_AT_ONCE", "BESIDE", "PATIENCE", "LOOK_SECONDS"}
    ),
    "src/tenure/engines/sharded/late.py": frozenset(
        {"PROMPT_SECONDS", "SLOW_SECONDS", "KEEP_SECONDS"}
    ),
    "src/tenure/engines/sharded/merged_lists.py": frozenset({"_TRIES"}),
    "src/tenure/engines/remote.py": frozenset(
        {"ANSWER_SECONDS", "LISTEN_SECONDS", "LARGEST_BODY"}
    ),
    "src/tenure/queue/commit_line.py": frozenset({"MAX_BATCH"}),
    "src/tenure/model/job.py": frozenset({"_COMMON"}),
    "src/tenure/worker/lease_keeper.py": frozenset(
        {"OVERDUE_SECONDS", "SHORTEST_PAUSE", "LONGEST_INTERVAL", "MOST_AT_ONCE", "MOST_ROUNDS",
         "STOP_SECONDS"}
    ),
    "src/tenure/worker/kept_outcomes.py": frozenset({"LONGEST_PAUSE", "MOST_AT_ONCE", "MOST_SAID"}),
    "src/tenure/worker/outage.py": frozenset({"FIRST_PAUSE", "LONGEST_PAUSE"}),
    "src/tenure/worker/run.py": frozenset({"FIRST_LOOK", "LONGEST_LOOK", "AGAIN"}),
    "src/tenure/worker/worker.py": frozenset({"AFTER_GRACE_SECONDS", "LOOK_AHEAD_SECONDS"}),
    "src/tenure/worker/settling.py": frozenset({"WAIT_SECONDS", "AT_ONCE"}),
    "src/tenure/worker/suspects.py": frozenset(
        {"QUIET_SECONDS", "HOLD_SECONDS", "ALONE_SECONDS", "LAST_SECONDS", "AWAY_MS",
         "LOOK_SECONDS"}
    ),
    "src/tenure/worker/scheduler.py": frozenset(
        {"LONGEST_SLEEP", "RETRY_MS", "UPKEEP_INTERVAL", "RENEW_SECONDS", "MOST_AT_ONCE",
         "MOST_STEPS"}
    ),
}  # fmt: skip


def files() -> list[str]:
    """All files that are mutated, from the root of the repository."""
    found = [path for path, _ in _TABLE]
    for engine in _ENGINES:
        folder = ROOT / "src/tenure/engines" / engine
        found += [
            str(path.relative_to(ROOT))
            for path in sorted([*folder.glob("*.py"), *folder.glob("*.sql")])
            if path.name != "__init__.py"
        ]
    rules = sorted((ROOT / "src/tenure/core").glob("*.py"))
    rules += sorted((ROOT / "src/tenure/features").glob("*/rules.py"))
    rules += sorted((ROOT / "src/tenure/features").glob("*/data.py"))
    rules += sorted((ROOT / "src/tenure/features").glob("*/dry_run.py"))
    found += [
        str(path.relative_to(ROOT))
        for path in [*rules, ROOT / "src/tenure/features/operate.py"]
        if path.name not in ("__init__.py", "transaction.py")
    ]
    worker = sorted((ROOT / "src/tenure/worker").glob("*.py"))
    found += [str(path.relative_to(ROOT)) for path in worker if path.name != "__init__.py"]
    return list(dict.fromkeys(found))


def selections(mutation: Mutation) -> tuple[Selection, ...]:
    """The tests that should notice a change; for a named one, first the test made for it."""
    made_for = tuple(_tests(one.test) for one in named.NAMED if mutation.kind == one.kind)
    return made_for + _selections(mutation)


def _selections(mutation: Mutation) -> tuple[Selection, ...]:
    for path, tests in _TABLE:
        if path == mutation.path:
            return tests
    parts = Path(mutation.path)
    is_rule = parts.parent.name == "core" or "features" in parts.parts
    engine = "sqlite" if is_rule else parts.parent.name
    if engine in _ENGINES:
        fits = [first for part, first in _FIRST_BY_FUNCTION.items() if part in mutation.function]
        by_function = [name for names in fits for name in names]
        noun = parts.parent.name if parts.parent.parent.name == "features" else parts.stem
        by_file = _FIRST.get(noun, ())
        if is_rule:
            first = (*by_file, *by_function, "grants", "finish")
            on_others = (_postgres(*first)[0], _foundationdb(*first)[0])
            return (*_sqlite(*first), *on_others, *_CORE_ALSO.get(noun, ()))
        before = _BEFORE_ALL.get(mutation.function, ())
        return (*before, *_ENGINES[engine](*by_function, *by_file))
    if parts.parent.name == "worker":
        first = _WORKER_FIRST.get(parts.stem, ("worker", "found"))
        return (
            _tests(*(f"tests/workers/test_{name}.py" for name in first)),
            _tests("tests/workers", seconds=300),
        )
    return _core("tests/unit/test_states.py")


def mutations_of(path: str, text: str) -> list[Mutation]:
    """All mutations of a file."""
    if path.endswith(".sql"):
        return mutations(path, text, sql.edits(text, true="1" if "sqlite" in path else "true"))
    return mutations(path, text, python.edits(text, _SETTINGS.get(path, frozenset())))
