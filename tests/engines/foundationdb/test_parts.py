"""A batch may take several transactions. Whatever becomes of one of them, what the others did is
answered as done, and nothing is done twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tenure.core.enqueue import enqueue
from tenure.engines.foundationdb import engine as engines
from tenure.engines.foundationdb import keyed_calls
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.transact import TooLarge
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import Busy, StoreError, StoreRejected
from tenure.model import ops, queries
from tenure.model.job import NULL, Job, JobSpec, State
from tenure.queue.committer import Committer, Ticket
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim.faults import Fate
from tests.support.sizes import let

OPERATIONS: dict[Any, Any] = engines._OWN
PART = 5  # operations of one transaction here


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, jobs_of_a_commit_of_fdb=PART)
    let(monkeypatch, jobs_of_a_claim_of_fdb=PART)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> FoundationDbEngine:
    db, chance = fdb_sim.open(clock=clock), random.Random(1)
    return FoundationDbEngine(fdb_sim, db, Settings(), clock, hybrid=False, chance=chance)


@pytest.fixture
def stumbling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has a mistake: it cannot add a job that is called "bad"."""

    def stumble(tx: Transaction, batch: list[ops.Enqueue]) -> list[ops.Answer]:
        if any(spec.id == "bad" for op in batch for spec in op.jobs):
            raise RuntimeError("a mistake")
        return enqueue(tx, batch)

    monkeypatch.setitem(OPERATIONS, ops.Enqueue, stumble)


def enqueues(*ids: object, **fields: Any) -> list[ops.Op]:
    specs = [msgspec.structs.replace(JobSpec(str(one), "q", NULL), **fields) for one in ids]
    return [ops.Enqueue((spec,)) for spec in specs]


def ids_of(engine: FoundationDbEngine) -> list[str]:
    found = engine.read(queries.FindIds(limit=1000))
    assert isinstance(found, queries.Ids)
    return sorted(found.ids)


def fail_after(
    engine: FoundationDbEngine,
    monkeypatch: pytest.MonkeyPatch,
    good: int,
    error: Exception,
) -> list[Callable[[Transaction], Any]]:
    """So many transactions are committed, and none after them; all that were tried."""
    run, tried = engine._transactor.run, []

    def limited(work: Callable[[Transaction], Any]) -> Any:
        tried.append(work)
        if len(tried) > good:
            raise error
        return run(work)

    monkeypatch.setattr(engine._transactor, "run", limited)
    return tried


@pytest.mark.usefixtures("stumbling")
def test_an_operation_that_the_engine_stumbles_over_is_answered_so_and_the_others_are_done(
    engine: FoundationDbEngine,
) -> None:
    answers = engine.apply(enqueues(*range(7), "bad", *range(7, 12)))
    assert [type(answer) for answer in answers].count(ops.Enqueued) == 12
    assert isinstance(answers[7], StoreError)
    assert "a mistake" in str(answers[7])
    assert ids_of(engine) == sorted(str(n) for n in range(12))


@pytest.mark.usefixtures("stumbling")
def test_if_nothing_was_done_yet_the_mistake_is_raised(engine: FoundationDbEngine) -> None:
    with pytest.raises(RuntimeError, match="a mistake"):
        engine.apply(enqueues("bad", *range(9)))
    assert ids_of(engine) == []


@pytest.mark.usefixtures("stumbling")
@pytest.mark.parametrize("place", [0, 3, 4, 5, 8])
def test_a_mistake_in_the_call_of_one_makes_nobody_elses_call_happen_twice(
    engine: FoundationDbEngine, place: int
) -> None:
    """Done a second time, an enqueue is answered that its id is taken."""
    calls = [enqueues(n, f"{n}'") for n in range(8)]
    calls.insert(place, enqueues("bad"))
    tickets = [Ticket(call) for call in calls]
    committer = Committer(engine, 1000, 10**9)
    committer._waiting = sum(len(call) for call in calls)
    committer._commit(tickets)
    bad = tickets.pop(place)
    assert bad.error is not None or isinstance(bad.answers[0], StoreError)
    for ticket in tickets:
        assert ticket.error is None
        assert [type(answer) for answer in ticket.answers] == [ops.Enqueued, ops.Enqueued]
    assert len(ids_of(engine)) == 16


def test_what_was_done_before_the_store_failed_is_answered_as_done(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail_after(engine, monkeypatch, 1, Busy("no"))
    answers = engine.apply(enqueues(*range(8)))
    assert [type(answer) for answer in answers] == [ops.Enqueued] * PART + [Busy] * 3
    assert len(tried) == 2  # the others would only wait for the store once more
    assert len(ids_of(engine)) == PART


def test_an_operation_that_the_store_rejects_fails_alone(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(tx: Transaction, batch: Sequence[ops.Enqueue]) -> list[ops.Answer]:
        if any(op.jobs[0].id == "bad" for op in batch):
            raise StoreRejected("no")
        return enqueue(tx, batch)

    monkeypatch.setitem(OPERATIONS, ops.Enqueue, reject)
    answers = engine.apply(enqueues(*range(PART), "a", "bad", "b"))
    kinds = [type(answer) for answer in answers]
    assert kinds == [ops.Enqueued] * (PART + 1) + [StoreRejected, ops.Enqueued]


def test_the_same_where_a_part_was_too_large_and_was_halved(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_commit_of_fdb=10**9)
    let(monkeypatch, jobs_of_a_commit_of_fdb=10**9)
    payload = msgspec.Raw(b'"' + b"x" * 900_000 + b'"')
    fail_after(engine, monkeypatch, 2, Busy("no"))  # the first is too large
    answers = engine.apply(enqueues(*range(12), payload=payload))
    assert [type(answer) for answer in answers] == [ops.Enqueued] * 6 + [Busy] * 6
    assert len(ids_of(engine)) == 6


def test_of_several_maintenances_those_that_were_done_are_answered(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(engine, monkeypatch, 5, Busy("no"))  # an empty store takes five
    answers = engine.apply([ops.Maintain(), ops.Maintain()])
    assert [type(answer) for answer in answers] == [ops.Maintained, Busy]


def test_leases_that_were_had_are_given_out_though_there_are_no_more_to_be_had(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.apply(enqueues(*range(12)))
    fail_after(engine, monkeypatch, 2, Busy("no"))
    claim = ops.Claim(("q",), "w", 60_000, 6)
    first, second = engine.apply([claim, claim])
    assert isinstance(first, ops.Leased)
    assert isinstance(second, ops.Leased)
    assert len(first.jobs) + len(second.jobs) == 2 * PART
    assert "a claim ended early" in caplog.text
    monkeypatch.undo()
    for job in first.jobs + second.jobs:
        assert engine.apply([ops.Ack(job.id, job.token)]) == [ops.Ok()]


def test_a_claim_that_got_nothing_before_the_store_failed_is_told_so(
    engine: FoundationDbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.apply(enqueues(*range(12)))
    fail_after(engine, monkeypatch, 1, Busy("no"))
    claim = ops.Claim(("q",), "w", 60_000, PART)
    first, second = engine.apply([claim, claim])
    assert isinstance(first, ops.Leased)
    assert len(first.jobs) == PART
    assert isinstance(second, Busy)


SPEC = JobSpec("a", "q", msgspec.Raw(b'"12345"'))
ENTRY = ops.Entry(
    Job(
        id="b", queue="q", raw_payload=msgspec.Raw(b'"123"'), raw_result=msgspec.Raw(b"12"),
        state=State.DONE, priority=0, attempts=1, max_attempts=1, run_at=1, created_at=1,
        updated_at=1,
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "jobs", "size"),
    [
        (ops.Enqueue((SPEC, SPEC)), 2, 14),
        (ops.Import((ENTRY, ENTRY, ENTRY)), 3, 21),
        (ops.Ack("a", 1, result=msgspec.Raw(b"1234"), then=(SPEC,)), 2, 11),
        (ops.Cancel(("a", "b", "c")), 3, 0),
        (ops.Replay(("a", "b", "c")), 3, 0),
        (ops.Delete(("a", "b", "c")), 3, 0),
        (ops.Once("k", (ops.Enqueue((SPEC, SPEC)), ops.Cancel(("a",)))), 3, 14),
        (ops.Extend("a", 1, 1000), 1, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ops.Op) else "",
)
def test_operations_share_a_transaction_up_to_a_number_of_jobs_and_bytes(
    op: ops.Op, jobs: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most_jobs, most_bytes, parts in (
        (2 * jobs, 2 * size, 1),
        (2 * jobs - 1, 2 * size, 2),
        *([(2 * jobs, 2 * size - 1, 2)] if size else []),
    ):
        let(monkeypatch, jobs_of_a_commit_of_fdb=most_jobs)
        let(monkeypatch, bytes_of_a_commit_of_fdb=most_bytes)
        assert len(list(engines._parts([op, op]))) == parts


def test_an_operation_with_a_claim_and_a_recount_have_a_transaction_of_their_own() -> None:
    claim = ops.Once("k", (ops.Claim(("q",), "w", 60_000, 1), ops.Cancel(("a",))))
    recount, cancel = ops.Reconcile("q"), ops.Cancel(("a",))
    parts = list(engines._parts([claim, cancel, cancel, recount, cancel]))
    assert parts == [[claim], [cancel, cancel], [recount], [cancel]]


def test_work_that_does_not_fit_into_a_transaction_is_halved_down_to_one(
    engine: FoundationDbEngine,
) -> None:
    tried: list[int] = []

    def work(tx: Transaction, most: int) -> None:
        tried.append(most)
        raise TooLarge

    with pytest.raises(TooLarge):
        engine._transactor.run_some(work, 5)
    assert tried == [5, 2, 1]


def test_claims_of_more_than_fits_into_a_transaction_take_several(
    engine: FoundationDbEngine,
) -> None:
    engine.apply(enqueues(*range(60)))
    answers = engine.apply([ops.Claim(("q",), "w", 60_000, 12)] * 4)
    given = [[job.id for job in one.jobs] for one in answers if isinstance(one, ops.Leased)]
    assert [len(ids) for ids in given] == [12] * 4
    assert len({one for ids in given for one in ids}) == 48


def test_leases_run_out_though_all_of_their_jobs_are_too_much_for_a_transaction(
    engine: FoundationDbEngine, clock: ManualClock
) -> None:
    claim = ops.Claim(("q",), "w", 60_000, 40)
    engine.apply(enqueues(*range(40)))
    (answer,) = engine.apply([claim])
    assert isinstance(answer, ops.Leased)
    trace = "x" * 8_000
    engine.apply([ops.Fail(job.id, job.token, traceback=trace) for job in answer.jobs])
    clock.advance(3600)
    engine.apply([claim])
    clock.advance(3600)
    engine._store.db.options.set_transaction_size_limit(100_000)
    (answer,) = engine.apply([claim])
    assert isinstance(answer, ops.Leased)
    engine.apply([ops.Maintain()])
    found = engine.read(queries.FindIds(queries.Filter(states=(State.LEASED,)), limit=1000))
    assert isinstance(found, queries.Ids)
    assert set(found.ids) == {job.id for job in answer.jobs}


def test_a_mistake_in_a_second_try_does_not_hide_that_the_first_is_committed_after_all(
    engine: FoundationDbEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates = iter([Fate.TIMEOUT_LATE])
    dice = engine._store.db._client.dice
    monkeypatch.setattr(dice, "fate", lambda has_timeout: next(fates, Fate.NORMAL))
    tries = []

    def stumble(tx: Transaction, batch: list[ops.Enqueue]) -> list[ops.Answer]:
        tries.append(batch)
        if len(tries) == 2:
            raise RuntimeError("a mistake")
        return enqueue(tx, batch)

    monkeypatch.setitem(OPERATIONS, ops.Enqueue, stumble)
    with pytest.raises(RuntimeError, match="a mistake"):
        engine.apply(enqueues("a"))
    clock.advance(3)  # what is under way arrives
    assert ids_of(engine) == []


def test_a_claim_that_cannot_be_read_back_does_not_say_that_nothing_was_changed(
    engine: FoundationDbEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.apply(enqueues("a"))

    def away(*_: object) -> set[str]:
        raise Busy("nothing was changed")

    with monkeypatch.context() as patch:
        patch.setattr(keyed_calls, "won_by", away)
        with pytest.raises(StoreError, match="their leases will expire"):
            engine.apply([ops.Claim(("q",), "w", 1000)])
    assert engine.apply([ops.Claim(("q",), "w", 1000)]) == [ops.Leased([])]
    clock.advance(30)
    (leased,) = engine.apply([ops.Claim(("q",), "w", 1000)])
    assert isinstance(leased, ops.Leased)
    assert [job.id for job in leased.jobs] == ["a"]


def test_a_key_that_maintenance_forgets_is_free_for_the_rest_of_the_batch(
    engine: FoundationDbEngine, clock: ManualClock
) -> None:
    """What is stored under the keys of a batch is asked for before any of it is done."""
    engine.apply([ops.Once("k", (ops.Pause("q"),))])
    clock.advance(ops.ONCE_MS / 1000)
    answers = engine.apply(
        [ops.Once("m", (ops.Maintain(),)), ops.Once("k", (ops.SetLimit("q", concurrency=1),))]
    )
    assert answers[1] == ops.Answers([ops.Ok()])
