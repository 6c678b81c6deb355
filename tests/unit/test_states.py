"""The table of moves, and what a move makes of a job."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure import fixed
from tenure.model.job import FINAL, KEPT_FAILURES, LIVE, Failure, Job, State
from tenure.model.retry import DEFAULT_BACKOFF
from tenure.model.states import (
    TABLE,
    Acked,
    Cancelled,
    Change,
    Claimed,
    Event,
    Expired,
    Failed,
    Hurried,
    Kept,
    LeaseRanOut,
    Move,
    ParentDeleted,
    ParentFailed,
    ParentsDone,
    Released,
    Replayed,
    Suspended,
    allowed,
    decide,
    is_plain,
    plain,
    sources,
)

NOW = 1_000_000
W, P, L, DONE, DEAD, X = State

# The state machine as the design draws it: what may become of a job, by hand and not by code.
DRAWN: dict[tuple[State, type[Event]], set[State]] = {
    (W, ParentsDone): {P},
    (W, ParentFailed): {W, P, X},
    (W, ParentDeleted): {P, X, DEAD},
    (W, Expired): {DEAD},
    (W, Cancelled): {X},
    (P, Claimed): {L, DEAD},
    (P, Expired): {DEAD},
    (P, Cancelled): {X},
    (P, Hurried): {P},
    (L, Kept): {L},
    (L, Acked): {DONE},
    (L, Failed): {P, DEAD, X},
    (L, Released): {P},
    (L, Suspended): {W, P},
    (L, LeaseRanOut): {P, DEAD},
    (L, Cancelled): {X},
    (DEAD, Replayed): {P},
    (X, Replayed): {P},
}
EVENTS: dict[type[Event], list[Event]] = {
    kind: [kind()] for kind in Event.__subclasses__() if kind is not Failed
}
EVENTS[Suspended] = [Suspended(NOW), Suspended(NOW + 5, waits=True)]
EVENTS[Failed] = [
    Failed("boom", fatal=fatal, retry_in_ms=retry, cancel=cancel)
    for cancel in (False, True)
    for fatal in (False, True)
    for retry in (None, 0, 5_000)
]


def job(**fields: Any) -> Job:
    base = Job(
        id="a",
        queue="q",
        state=P,
        raw_payload=msgspec.Raw(b"null"),
        priority=0,
        run_at=500_000,
        created_at=400_000,
        updated_at=400_000,
        attempts=0,
        max_attempts=3,
    )
    return replace(base, **fields)


def jobs_in(state: State) -> Iterator[Job]:
    """Jobs that differ in all that a guard may look at."""
    for attempts, expires_at, rule, token in itertools.product(
        (1, 2, 3), (None, NOW - 1, NOW, NOW + 1), ("wait", "cancel", "run"), (0, 7)
    ):
        yield job(
            state=state,
            attempts=attempts if state is L else attempts - 1,
            expires_at=expires_at,
            if_parent_fails=rule,
            token=token,
            worker="w" if state is L else "",
        )


def row_for(facts: Job, event: Event) -> Move:
    """The first row of the table that holds."""
    return next(
        move
        for move in TABLE
        if (move.source, move.event) == (facts.state, type(event))
        and (move.guard is None or move.guard(facts, event, NOW))
    )


# The table --------------------------------------------------------------------------------------


def test_the_table_is_as_it_is_drawn() -> None:
    found: dict[tuple[State, type[Event]], set[State]] = {}
    for move in TABLE:
        found.setdefault((move.source, move.event), set()).add(move.target)
    assert found == DRAWN


def test_every_event_is_in_the_table() -> None:
    assert {move.event for move in TABLE} == set(Event.__subclasses__())


@pytest.mark.parametrize("move", TABLE, ids=lambda move: f"{move.source}-{move.event.__name__}")
def test_every_row_is_reached(move: Move) -> None:
    reached = [
        (facts, event)
        for facts in jobs_in(move.source)
        for event in EVENTS[move.event]
        if row_for(facts, event) == move
    ]
    assert reached
    for facts, event in reached:
        change = decide(facts, event, NOW)
        assert change is not None
        assert change.state is move.target


def test_the_last_row_of_a_move_has_no_guard() -> None:
    for source, event in DRAWN:
        assert plain(source, event).guard is None
        assert (
            plain(source, event) == [m for m in TABLE if (m.source, m.event) == (source, event)][-1]
        )


def test_a_move_is_plain_if_no_guard_holds() -> None:
    for source, kind in DRAWN:
        for facts, event in itertools.product(jobs_in(source), EVENTS[kind]):
            guarded = [m for m in TABLE if (m.source, m.event) == (source, kind)][:-1]
            holds = any(m.guard is not None and m.guard(facts, event, NOW) for m in guarded)
            assert is_plain(facts, event, NOW) is not holds


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", EVENTS)
def test_what_is_not_in_the_table_is_no_move(state: State, kind: type[Event]) -> None:
    known = (state, kind) in DRAWN
    assert allowed(state, kind) is known
    assert (state in sources(kind)) is known
    for facts, event in itertools.product(jobs_in(state), EVENTS[kind]):
        change = decide(facts, event, NOW)
        assert (change is not None) is known
        if change is not None:
            assert change.state in DRAWN[state, kind]


def test_states_are_live_or_final() -> None:
    assert set(State) == LIVE | FINAL
    assert not LIVE & FINAL


# What a move makes of a job ---------------------------------------------------------------------


def after(facts: Job, event: Event) -> Change:
    change = decide(facts, event, NOW)
    assert change is not None
    return change


def test_a_claim_takes_an_attempt() -> None:
    change = after(job(attempts=1, expires_at=NOW + 1), Claimed())
    assert change == Change(L, 2, 500_000, NOW + 1, "", ())
    assert not change.final


def test_a_claim_of_an_expired_job_ends_it() -> None:
    change = after(job(expires_at=NOW), Claimed())
    assert (change.state, change.attempts, change.final) == (DEAD, 0, True)
    assert change.errors == (Failure(NOW, 0, "expired before it could run"),)


def test_an_ack_changes_nothing_but_the_state() -> None:
    facts = job(state=L, attempts=2, worker="w", errors=(Failure(1, 1, "boom"),))
    assert after(facts, Acked()) == Change(DONE, 2, 500_000, None, "w", facts.errors)


def test_a_failure_waits_for_its_backoff() -> None:
    facts = job(state=L, attempts=1, worker="w")
    assert after(facts, Failed()).run_at == NOW + DEFAULT_BACKOFF.delay_ms(1, "a")
    assert after(replace(facts, backoff=fixed(7)), Failed()).run_at == NOW + 7_000
    assert after(facts, Failed(retry_in_ms=5)).run_at == NOW + 5
    assert after(facts, Failed(retry_in_ms=0)).run_at == NOW


def test_a_failure_is_noted_with_all_it_says() -> None:
    facts = job(state=L, attempts=2, worker="w", errors=(Failure(1, 1, "first"),))
    event = Failed("second", "ValueError", "Traceback", fatal=True)
    change = after(facts, event)
    assert change.state is DEAD
    assert change.errors == (
        Failure(1, 1, "first"),
        Failure(NOW, 2, "second", "ValueError", "Traceback", "w"),
    )


def test_a_failure_uses_up_the_last_attempt() -> None:
    assert after(job(state=L, attempts=2), Failed()).state is P
    assert after(job(state=L, attempts=3), Failed()).state is DEAD


def test_a_release_gives_the_attempt_back() -> None:
    change = after(job(state=L, attempts=2, worker="w"), Released(delay_ms=9))
    assert change == Change(P, 1, NOW + 9, None, "", ())


def test_a_lease_that_ran_out_is_a_failure_without_a_wait() -> None:
    change = after(job(state=L, attempts=2, worker="w", backoff=fixed(9)), LeaseRanOut())
    failure = Failure(NOW, 2, "the lease ran out", worker="w")
    assert change == Change(P, 2, NOW, None, "", (failure,), failure)
    assert after(job(state=L, attempts=3), LeaseRanOut()).state is DEAD
    assert after(job(state=L, attempts=1, expires_at=NOW), LeaseRanOut()).state is DEAD


@pytest.mark.parametrize("state", [DEAD, X])
def test_a_replay_begins_anew(state: State) -> None:
    errors = (Failure(1, 3, "boom"),)
    facts = job(state=state, attempts=3, worker="w", expires_at=5, errors=errors)
    assert after(facts, Replayed()) == Change(P, 0, NOW, None, "", errors)


def test_a_deleted_parent_is_named() -> None:
    change = after(job(state=W), ParentDeleted("mother"))
    assert change.state is DEAD
    assert [one.message for one in change.errors] == ["a job it waited for was deleted: mother"]


def test_a_cancelled_job_has_not_failed() -> None:
    assert after(job(state=L, attempts=1, worker="w"), Cancelled()).errors == ()


def test_the_last_failures_are_kept() -> None:
    errors = tuple(Failure(n, n, str(n)) for n in range(KEPT_FAILURES))
    kept = after(job(state=L, attempts=1, errors=errors), Failed("new")).errors
    assert len(kept) == KEPT_FAILURES
    assert [one.message for one in kept] == [*[str(n) for n in range(1, KEPT_FAILURES)], "new"]


# Whatever happens -------------------------------------------------------------------------------

some_event = st.sampled_from([event for kind in EVENTS.values() for event in kind])


@given(
    events=st.lists(st.tuples(some_event, st.integers(0, 50)), max_size=60),
    max_attempts=st.integers(1, 4),
    expires_at=st.one_of(st.none(), st.integers(0, 500)),
    rule=st.sampled_from(["wait", "cancel", "run"]),
    waits=st.booleans(),
)
def test_whatever_happens_a_job_keeps_its_bounds(
    events: list[tuple[Event, int]],
    max_attempts: int,
    expires_at: int | None,
    rule: str,
    waits: bool,
) -> None:
    facts = job(
        state=W if waits else P,
        max_attempts=max_attempts,
        expires_at=expires_at,
        if_parent_fails=rule,
        run_at=0,
    )
    now = 0
    for event, passed in events:
        now += passed
        change = decide(facts, event, now)
        if change is None:
            continue
        # A final state is left only by a replay.
        assert facts.state in LIVE or isinstance(event, Replayed)
        assert 0 <= change.attempts <= max_attempts
        assert len(change.errors) <= KEPT_FAILURES
        assert change.state is not P or change.attempts < max_attempts
        assert change.state is not P or change.worker == ""
        assert change.final == (change.state in FINAL)
        facts = replace(
            facts,
            state=change.state,
            attempts=change.attempts,
            run_at=change.run_at,
            expires_at=change.expires_at,
            worker="w" if change.state is L else change.worker,
            errors=change.errors,
        )
