"""How long a failed job waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import Backoff, InvalidInput, exponential, fixed, linear, quadratic
from tenure.model.retry import DAY_MS, DEFAULT_BACKOFF

POLICIES = [
    fixed(1),
    linear(1),
    quadratic(1),
    exponential(1),
    exponential(1, factor=1),
    exponential(1, factor=1000),
    exponential(0, factor=1000),
    exponential(86_400 * 365, factor=1000, max=86_400 * 365),
    DEFAULT_BACKOFF,
]
policies = st.builds(
    Backoff,
    kind=st.sampled_from(["fixed", "linear", "quadratic", "exponential"]),
    base_ms=st.integers(0, 365 * DAY_MS),
    factor=st.floats(1, 1000),
    max_ms=st.integers(0, 365 * DAY_MS),
    jitter=st.just(0.0),
)


def waits(policy: Backoff, attempts: int = 3) -> list[float]:
    return [policy.delay_ms(attempt, "job") / 1000 for attempt in range(1, attempts + 1)]


def test_one_five_and_twentyfive_minutes() -> None:
    assert waits(exponential(60, factor=5)) == [60, 300, 1500]


def test_one_four_and_nine_seconds() -> None:
    assert waits(quadratic()) == [1, 4, 9]


def test_the_same_wait_every_time() -> None:
    assert waits(fixed(2.5)) == [2.5, 2.5, 2.5]
    assert waits(fixed(86_400)) == [86_400, 86_400, 86_400]


def test_a_wait_that_grows_by_steps() -> None:
    assert waits(linear(10)) == [10, 20, 30]


def test_a_wait_that_doubles() -> None:
    assert waits(exponential(1), 5) == [1, 2, 4, 8, 16]


def test_a_wait_has_a_longest() -> None:
    assert waits(exponential(1, max=3), 5) == [1, 2, 3, 3, 3]
    assert waits(quadratic(1, max=5)) == [1, 4, 5]
    assert waits(linear(1, max=2)) == [1, 2, 2]
    assert exponential(3600).delay_ms(50, "job") == DAY_MS


def test_no_wait_stays_no_wait() -> None:
    for policy in (fixed(0), linear(0), quadratic(0), exponential(0)):
        assert waits(policy) == [0, 0, 0]


def test_the_default_grows_from_seconds_to_an_hour() -> None:
    delays = waits(DEFAULT_BACKOFF, 20)
    assert 4.5 <= delays[0] <= 5.5
    assert 13.5 <= delays[1] <= 16.5
    assert 3240 <= delays[-1] <= 3960


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("attempt", [1, 2, 63, 64, 65, 1_000, 1_000_000])
def test_no_attempt_is_too_many(policy: Backoff, attempt: int) -> None:
    delay = policy.delay_ms(attempt, "job")
    assert type(delay) is int
    assert 0 <= delay <= policy.max_ms * (1 + policy.jitter)


@given(policy=policies, attempt=st.integers(1, 1_000_000))
def test_a_wait_is_bounded_and_never_shrinks(policy: Backoff, attempt: int) -> None:
    delay = policy.delay_ms(attempt, "job")
    assert 0 <= delay <= policy.max_ms
    assert delay <= policy.delay_ms(attempt + 1, "job")


@given(
    policy=policies,
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 100),
    seed=st.text(max_size=20),
)
def test_jitter_stays_within_its_share(
    policy: Backoff, jitter: float, attempt: int, seed: str
) -> None:
    plain = policy.delay_ms(attempt, seed)
    spread = msgspec.structs.replace(policy, jitter=jitter).delay_ms(attempt, seed)
    assert abs(spread - plain) <= plain * jitter + 1
    assert spread >= 0


def test_jitter_is_the_same_wherever_it_is_computed() -> None:
    policy = fixed(100, jitter=0.5)
    assert [policy.delay_ms(n, "job-1") for n in (1, 2, 3)] == [
        policy.delay_ms(n, "job-1") for n in (1, 2, 3)
    ]
    # Written down, so that another language or version that computes otherwise is noticed.
    assert [policy.delay_ms(n, "job-1") for n in (1, 2, 3)] == [116_987, 69_710, 77_127]


def test_jitter_spreads_jobs_and_attempts() -> None:
    policy = fixed(100, jitter=0.5)
    delays = [policy.delay_ms(1, f"job-{n}") for n in range(1_000)]
    assert len(set(delays)) > 950
    assert min(delays) < 52_000
    assert max(delays) > 148_000
    assert abs(sum(delays) / len(delays) - 100_000) < 5_000
    assert len({policy.delay_ms(n, "job") for n in range(1, 101)}) > 95


def test_a_policy_is_data() -> None:
    for policy in POLICIES:
        text = msgspec.json.encode(policy)
        assert msgspec.json.decode(text, type=Backoff) == policy


@pytest.mark.parametrize("make", [fixed, linear, quadratic, exponential])
@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": -1},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": 10**9},
        {"seconds": 10**400},
        {"seconds": "5"},
        {"seconds": None},
        {"seconds": 1, "jitter": -0.1},
        {"seconds": 1, "jitter": 1.1},
        {"seconds": 1, "jitter": float("nan")},
        {"seconds": 1, "jitter": "much"},
    ],
    ids=lambda fields: repr(fields)[:40],
)
def test_a_policy_that_cannot_be_is_refused(make: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="backoff"):
        make(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"factor": 0.5}, {"factor": 1001}, {"factor": float("nan")}, {"factor": -2}, {"max": -1}],
    ids=str,
)
def test_a_growth_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="backoff"):
        exponential(1, **fields)


@pytest.mark.parametrize("policy", [linear(1), quadratic(), exponential(1)])
def test_a_wait_grows_to_a_day_unless_it_is_told_otherwise(policy: Backoff) -> None:
    assert policy.max_ms == 86_400_000
    assert policy.delay_ms(100_000, "job") == 86_400_000
