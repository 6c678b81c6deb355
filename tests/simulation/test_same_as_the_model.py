"""Random operations on an engine and on the reference model side by side, with one hand-moved
clock: every answer and the whole state must be the same after every step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenure.engines import Engine
from tenure.engines.memory import MemoryEngine
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.features.run_now.data import RunNow
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec, Lease, State
from tenure.model.retry import Backoff
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests.simulation.compare.state import Compare
from tests.simulation.compare.tokens import Tokens
from tests.support import audit_postgres, fdb, postgres
from tests.support.audit import audit

IDS = [f"job-{letter}" for letter in "abcdefghij"]
QUEUES, TENANTS, GROUPS = ["mail", "web"], ["", "acme", "bolt", "cask"], ["", "g", "h"]
PAYLOADS = [msgspec.Raw(b"{}"), msgspec.Raw(b'{"n":1}'), msgspec.Raw(b'"' + b"x" * 2000 + b'"')]

spans = st.sampled_from([1, 500, 1000, 5000, 60_000])
queues = st.sampled_from(QUEUES)
tenants = st.sampled_from(TENANTS)
groups = st.sampled_from(GROUPS)
ids = st.sampled_from(IDS)
some_ids = st.lists(ids, max_size=4).map(tuple)
backoffs = st.sampled_from(
    [None, Backoff("fixed", 0), Backoff("linear", 500), Backoff("exponential", 1000, jitter=0.5)]
)
specs = st.builds(
    JobSpec,
    id=ids,
    queue=queues,
    payload=st.sampled_from(PAYLOADS),
    tenant=tenants,
    group=groups,
    kind=st.sampled_from(["", "welcome"]),
    priority=st.sampled_from([-5, 0, 0, 0, 7]),
    max_attempts=st.integers(1, 3),
    delay_ms=st.sampled_from([0, 0, 0, 500, 5000]),
    run_at=st.sampled_from([None, None, None, 0]),
    expires_in_ms=st.sampled_from([None, None, None, 800, 5000]),
    unique_key=st.sampled_from([None, None, "k", "l"]),
    after=st.one_of(st.just(()), st.lists(ids, max_size=2, unique=True).map(tuple)),
    if_parent_fails=st.sampled_from(["wait", "cancel", "run"]),
    timeout_ms=st.sampled_from([None, 1000]),
    backoff=backoffs,
)
leases_of = st.integers(0, 30)
scopes = st.sampled_from(
    [
        (None, None),
        ("", None),
        ("acme", None),
        ("*", None),
        ("acme", "g"),
        ("*", "g"),
        ("", "h"),
        ("*", "*"),
        ("bolt", "*"),
    ]
)
named_scopes = st.sampled_from([(None, None), ("acme", None), ("acme", "g"), ("*", "g"), ("", "h")])


class SameAsTheModel(RuleBasedStateMachine):
    """The engine returns what the model returns. Each chooses its own tokens."""

    sweep = 1000
    batches = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = MemoryEngine(self.clock, self.sweep)
        self.model.token_steps = 1
        self.engine = self.open(Settings(sweep=self.sweep))
        self.tokens = Tokens(strict=True)
        self.compare = Compare(self.model, self.tokens)
        self.keyed: list[tuple[ops.Once, ops.Once]] = []  # and as they were sent first
        self.leases = [Lease("nobody", 1)]  # with the model's tokens
        self.waiting: list[ops.Op] = []

    def open(self, settings: Settings) -> Engine:
        """The engine on an empty store."""
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "jobs.db"
        return SqliteEngine(self.path, settings, self.clock)

    def audit(self) -> list[str]:
        return audit(self.path)

    def clean_up(self) -> None:
        self.folder.cleanup()

    def teardown(self) -> None:
        self.flush()
        assert self.audit() == []
        self.engine.close()
        self.clean_up()

    def do(self, op: ops.Op, *, hold: bool) -> None:
        """Apply an operation, or keep it back to be applied in one batch with the next."""
        self.waiting.append(op)
        if not (hold and self.batches):
            self.flush()

    def flush(self) -> None:
        batch, self.waiting = self.waiting, []
        if not batch:
            return
        expected = [answer for op in batch for answer in self.model.apply([op])]
        self.same(expected, self.engine.apply([self.sent(op) for op in batch]))
        for answer in expected:
            for one in answer.answers if isinstance(answer, ops.Answers) else [answer]:
                if isinstance(one, ops.Leased):
                    self.leases += [Lease(job.id, job.token) for job in one.jobs]

    def sent(self, op: ops.Op) -> ops.Op:
        """An operation with the engine's tokens. A keyed one is repeated as it was sent first."""
        if not isinstance(op, ops.Once):
            return cast(ops.Op, self.tokens.to_engine(op))
        for asked, sent in self.keyed:
            if asked == op:
                return sent
        self.keyed.append((op, self.tokens.to_engine(op)))
        return self.keyed[-1][1]

    def same(self, expected: Any, found: Any) -> None:
        self.compare.same("result", expected, found)

    def lease(self, n: int) -> Lease:
        return self.leases[-1 - n % len(self.leases)]

    @invariant()
    def the_whole_state_is_the_same(self) -> None:
        if self.waiting:
            return
        asked: list[queries.Query] = [
            queries.GetStats(),
            queries.ListLimits(),
            queries.ListSchedules(),
            queries.ListSlots("team", "acme"),
        ]
        for queue in QUEUES:
            asked += [
                queries.ListTenants(queue),
                queries.NextDue((queue, "none")),
                queries.OldestReady((queue, "none")),
            ]
            asked.append(queries.ListTenants(queue, tenant="acme"))
            asked.append(queries.ListGroupTotals(queue))
            asked += [queries.ListGroups(queue, tenant) for tenant in TENANTS]
        for query in asked:
            self.same(self.model.read(query), self.engine.read(query))
        found = self.engine.read(queries.Export())
        assert isinstance(found, queries.Exported)
        self.same(self.exported_entries, found.entries)

    @property
    def exported_entries(self) -> list[ops.Entry]:
        found = self.model.read(queries.Export())
        assert isinstance(found, queries.Exported)
        return found.entries

    @initialize()
    def start(self) -> None:
        assert self.engine.read(queries.GetStats()) == []

    hold = st.booleans()

    @rule(
        jobs=st.lists(specs, min_size=1, max_size=4),
        skip=st.booleans(),
        made_up=st.integers(0, 10**6),
        hold=hold,
    )
    def enqueue(self, jobs: list[JobSpec], skip: bool, made_up: int, hold: bool) -> None:
        if made_up % 3 == 0:
            jobs = [
                msgspec.structs.replace(spec, id=f"{made_up}-{n}-{len(self.leases)}", after=())
                for n, spec in enumerate(jobs)
            ]
        self.do(ops.Enqueue(tuple(jobs), "skip" if skip else "error"), hold=hold)

    @rule(
        names=st.lists(queues, min_size=1, max_size=2, unique=True),
        worker=st.sampled_from(["w1", "w2"]),
        lease_ms=spans,
        limit=st.integers(1, 6),
        tenant=st.one_of(st.none(), st.none(), tenants),
        not_groups=st.lists(groups, max_size=2).map(tuple),
        hold=hold,
    )
    def claim(self, names: list[str], hold: bool, **rest: Any) -> None:
        self.do(ops.Claim(queues=tuple(names), **rest), hold=hold)

    @rule(
        n=leases_of,
        result=st.sampled_from([NULL, msgspec.Raw(b"1")]),
        then=st.lists(specs, max_size=1).map(tuple),
        keep=st.booleans(),
        hold=hold,
    )
    def ack(self, n: int, hold: bool, **rest: Any) -> None:
        lease = self.lease(n)
        self.do(ops.Ack(lease.id, lease.token, **rest), hold=hold)

    @rule(
        n=leases_of,
        message=st.just("boom"),
        retry_in_ms=st.sampled_from([None, None, 0, 1000]),
        fatal=st.sampled_from([False, False, True]),
        cancel=st.sampled_from([False, False, True]),
        hold=hold,
    )
    def fail(self, n: int, hold: bool, **rest: Any) -> None:
        lease = self.lease(n)
        self.do(ops.Fail(lease.id, lease.token, **rest), hold=hold)

    @rule(n=leases_of, lease_ms=spans, hold=hold)
    def extend(self, n: int, lease_ms: int, hold: bool) -> None:
        lease = self.lease(n)
        self.do(ops.Extend(lease.id, lease.token, lease_ms), hold=hold)

    @rule(n=leases_of, delay_ms=st.sampled_from([0, 1000]), hold=hold)
    def release(self, n: int, delay_ms: int, hold: bool) -> None:
        lease = self.lease(n)
        self.do(ops.Release(lease.id, lease.token, delay_ms), hold=hold)

    @rule(n=leases_of, percent=st.integers(0, 100), note=st.sampled_from([None, "x"]), hold=hold)
    def progress(self, n: int, percent: int, note: str | None, hold: bool) -> None:
        lease = self.lease(n)
        self.do(ops.Progress(lease.id, lease.token, percent, note), hold=hold)

    @rule(ids=some_ids, what=st.sampled_from([ops.Cancel, ops.Replay, RunNow]), hold=hold)
    def change(self, ids: tuple[str, ...], what: Any, hold: bool) -> None:
        self.do(what(ids), hold=hold)

    @rule(
        ids=some_ids,
        states=st.sampled_from([(), (State.DONE,), (State.DEAD, State.PENDING)]),
        hold=hold,
    )
    def delete(self, ids: tuple[str, ...], states: tuple[State, ...], hold: bool) -> None:
        self.do(ops.Delete(ids, states), hold=hold)

    @rule(
        queue=queues,
        scope=scopes,
        concurrency=st.sampled_from([None, 1, 2]),
        rate=st.sampled_from([None, 1, 3]),
        weight=st.sampled_from([None, 1, 3]),
        hold=hold,
    )
    def set_limit(
        self, queue: str, scope: tuple[str | None, str | None], hold: bool, **bounds: Any
    ) -> None:
        if scope != (None, None):
            bounds["rate"] = None
        if scope[0] is None or scope[1] is not None:
            bounds["weight"] = None
        per_ms = None if bounds["rate"] is None else 2000
        self.do(ops.SetLimit(queue, *scope, **bounds, per_ms=per_ms), hold=hold)

    @rule(queue=queues, scope=scopes, hold=hold)
    def clear_limit(self, queue: str, scope: tuple[str | None, str | None], hold: bool) -> None:
        self.do(ops.ClearLimit(queue, *scope), hold=hold)

    @rule(
        queue=queues, scope=named_scopes, what=st.sampled_from([ops.Pause, ops.Resume]), hold=hold
    )
    def pause_or_resume(
        self, queue: str, scope: tuple[str | None, str | None], what: Any, hold: bool
    ) -> None:
        self.do(what(queue, *scope), hold=hold)

    @rule(
        holder=st.sampled_from(["a", "b", "c"]),
        ttl_ms=spans,
        limit=st.sampled_from([None, 1, 2]),
        hold=hold,
    )
    def take_slot(self, hold: bool, **rest: Any) -> None:
        self.do(ops.TakeSlot("team", "acme", **rest), hold=hold)

    @rule(holder=st.sampled_from(["a", "b", "c"]), hold=hold)
    def drop_slot(self, holder: str, hold: bool) -> None:
        self.do(ops.DropSlot("team", "acme", holder), hold=hold)

    @rule(spec=specs, name=st.sampled_from(["nightly", "hourly"]), in_ms=spans, hold=hold)
    def put_schedule(self, spec: JobSpec, name: str, in_ms: int, hold: bool) -> None:
        next_at = self.clock.now_ms() + in_ms
        self.do(ops.PutSchedule(ops.Schedule(name, "* * * * *", spec, next_at)), hold=hold)

    @rule(name=st.sampled_from(["nightly", "hourly"]), hold=hold)
    def drop_schedule(self, name: str, hold: bool) -> None:
        self.do(ops.DropSchedule(name), hold=hold)

    @rule(name=st.sampled_from(["nightly", "hourly"]), spec=specs, hold=hold)
    def fire(self, name: str, spec: JobSpec, hold: bool) -> None:
        schedules: Any = self.model.read(queries.ListSchedules())
        tick = next((known.next_at for known in schedules if known.name == name), 0)
        self.do(ops.Fire(name, tick, spec.id), hold=hold)

    @rule(keep_ms=st.sampled_from([None, 0, 5000]), hold=hold)
    def maintain(self, keep_ms: int | None, hold: bool) -> None:
        self.do(ops.Maintain(self.sweep, keep_ms, keep_ms, keep_ms), hold=hold)

    @rule(
        key=st.sampled_from(["k", "l", "m", "n"]),
        again=st.booleans(),
        jobs=st.lists(specs, max_size=2).map(tuple),
        queue=queues,
        lease_ms=spans,
        n=leases_of,
        end=st.sampled_from([ops.Ack, ops.Fail, ops.Release]),
        hold=hold,
    )
    def once(
        self,
        key: str,
        again: bool,
        jobs: tuple[JobSpec, ...],
        queue: str,
        lease_ms: int,
        n: int,
        end: type[ops.Ack | ops.Fail | ops.Release],
        hold: bool,
    ) -> None:
        lease = self.lease(n)
        batch = (
            ops.Enqueue(jobs),
            end(lease.id, lease.token),
            ops.Claim((queue,), "w1", lease_ms, 2),
        )
        fresh = key if again else f"{key}-{len(self.leases)}-{n}"
        self.do(ops.Once(fresh, batch), hold=hold)

    @rule(places=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True), hold=hold)
    def leave_and_come_back(self, places: list[int], hold: bool) -> None:
        """Those who wait for them, or for whom they wait, may have gone on meanwhile."""
        self.flush()
        entries = self.exported_entries
        some = tuple(entries[place] for place in places if place < len(entries))
        self.do(ops.Delete(tuple(entry.job.id for entry in some)), hold=hold)
        self.do(ops.Import(some), hold=hold)

    @rule(queue=queues, tenant=st.sampled_from([None, "acme"]), hold=hold)
    def reconcile(self, queue: str, tenant: str | None, hold: bool) -> None:
        self.do(ops.Reconcile(queue, tenant), hold=hold)
        self.do(ops.ReconcileSlots("team", "acme"), hold=hold)

    @rule(seconds=st.sampled_from([0.001, 0.5, 1, 5, 60, -3]))
    def time_passes(self, seconds: float) -> None:
        self.flush()
        self.clock.advance(seconds)

    @rule(
        queue=st.one_of(st.none(), queues),
        states=st.lists(st.sampled_from(list(State)), max_size=2, unique=True).map(tuple),
        tenant=st.one_of(st.none(), tenants),
        group=st.one_of(st.none(), groups),
        limit=st.integers(1, 3),
    )
    def list_pages(
        self,
        queue: str | None,
        states: tuple[State, ...],
        tenant: str | None,
        group: str | None,
        limit: int,
    ) -> None:
        self.flush()
        where = queries.Filter(queue, states, tenant, group)
        # A cursor means something only to the engine that gave it.
        cursor: str | None = None
        models: str | None = None
        while True:
            for kind in (queries.FindIds, queries.ListSummaries, queries.ListJobs):
                found = self.engine.read(kind(where, limit, cursor))
                expected = self.model.read(kind(where, limit, models))
                self.same(_without_cursor(expected), _without_cursor(found))
            if not isinstance(found, queries.Page) or found.cursor is None:
                break
            assert isinstance(expected, queries.Page)
            cursor, models = found.cursor, expected.cursor


def _without_cursor(found: queries.Found) -> tuple[queries.Found, bool]:
    if isinstance(found, queries.Page | queries.Summaries | queries.Ids):
        return msgspec.structs.replace(found, cursor=None, scanned=0), found.cursor is not None
    return found, False


class SameWithSmallSweeps(SameAsTheModel):
    """The same where a claim looks after few due jobs, so that it meets some unswept."""

    sweep = 1
    batches = False


class OnPostgres(SameAsTheModel):
    """The same on PostgreSQL: one schema for all, which is emptied each time."""

    place = Path("same-as-the-model")

    def open(self, settings: Settings) -> Engine:
        folder = self.place / str(os.getpid()) / str(self.sweep)
        self.url, self.schema = postgres.shared_url(), postgres.schema_of(folder)
        engine = PostgresEngine(postgres.url_of(folder), settings, self.clock)
        postgres.empty(self.schema)
        return engine

    def audit(self) -> list[str]:
        return audit_postgres.audit(self.url, self.schema)

    def clean_up(self) -> None:
        pass


class OnPostgresWithSmallSweeps(OnPostgres):
    sweep = 1
    batches = False


# Few in CI: test_compare.py covers the same with a workload like production's. These find small
# examples of what is odd, and the copies of stores are made by them.
_SETTINGS = settings(
    max_examples=300 if fdb.EVERYTHING else 12,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSameAsTheModel = SameAsTheModel.TestCase
TestSameAsTheModel.settings = _SETTINGS
TestSameWithSmallSweeps = SameWithSmallSweeps.TestCase
TestSameWithSmallSweeps.settings = _SETTINGS
TestOnPostgres = OnPostgres.TestCase
TestOnPostgres.settings = settings(_SETTINGS, max_examples=3)
TestOnPostgresWithSmallSweeps = OnPostgresWithSmallSweeps.TestCase
TestOnPostgresWithSmallSweeps.settings = settings(_SETTINGS, max_examples=3)
