"""Ten thousand jobs that end in every way there is, in known proportions: each in exactly the
state, and after exactly the attempts, that it should; with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tenure import Cancel, Dead, Retry, Snooze, State, Tenure, current_job, exponential, fixed
from tenure.model.fields import MAX_FAILURE_TEXT
from tenure.testing import ManualClock, Sandbox

COUNT = 10_000
KINDS = 10

app = Tenure("memory://")
clock = ManualClock()


@app.task
async def succeeds(n: int) -> int:
    return n


@app.task
def succeeds_in_a_thread(n: int) -> int:
    return n


@app.task(max_attempts=3, backoff=exponential(60, factor=5))
async def fails(n: int) -> None:
    raise ValueError(f"number {n}")


@app.task(max_attempts=5, backoff=fixed(1))
async def fails_twice(n: int) -> int:
    if current_job().job.attempts <= 2:
        raise ConnectionError("not yet")
    return n


@app.task(max_attempts=1)
async def snoozes_thrice(n: int) -> int:
    if len(snoozed[n]) < 3:
        snoozed[n].append(clock.now_ms())
        return Snooze(30)  # type: ignore[return-value]
    return n


@app.task
async def cancels_itself(n: int) -> None:
    raise Cancel("nobody wants it")


@app.task(max_attempts=9)
def gives_up(n: int) -> None:
    raise Dead("it can never work")


@app.task(timeout=10, max_attempts=2, backoff=fixed(5))
async def takes_too_long(n: int) -> None:
    await asyncio.sleep(3600)


@app.task(timeout=10, max_attempts=2, backoff=fixed(5))
def takes_too_long_in_a_thread(n: int) -> None:
    clock.sleep(11)


@app.task(max_attempts=4)
async def asks_for_retries(n: int) -> None:
    raise Retry(after=7, reason="later")


snoozed: dict[int, list[int]] = {n: [] for n in range(COUNT)}

# What becomes of each: state, attempts, type of the last error.
ENDS = {
    "succeeds": (State.DONE, 1, None),
    "succeeds_in_a_thread": (State.DONE, 1, None),
    "fails": (State.DEAD, 3, "ValueError"),
    "fails_twice": (State.DONE, 3, "ConnectionError"),
    "snoozes_thrice": (State.DONE, 1, None),
    "cancels_itself": (State.CANCELLED, 1, "Cancel"),
    "gives_up": (State.DEAD, 1, "Dead"),
    "takes_too_long": (State.DEAD, 2, "tenure.worker.outcome.Timeout"),
    "takes_too_long_in_a_thread": (State.DEAD, 2, "tenure.worker.outcome.Timeout"),
    "asks_for_retries": (State.DEAD, 4, "Retry"),
}


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_ten_thousand_jobs_end_as_they_should(store: str, tmp_path: Path) -> None:
    assert set(ENDS) == set(app.tasks)
    assert len(ENDS) == KINDS
    count = COUNT if store == "sqlite" else COUNT // 20  # the model counts by counting
    for times in snoozed.values():
        times.clear()
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else "memory://"
    with Sandbox(app, url=url, clock=clock) as box:
        names = sorted(app.tasks)
        for name in names:
            app.tasks[name].enqueue_many([(n,) for n in range(count // KINDS)])
        attempts = box.drain(forward=86_400 * 7)
        stats = box.queue.stats()
        found = Counter(
            (job.kind, job.state, job.attempts, job.errors[-1].type if job.errors else None)
            for job in box.jobs()
        )
    each = count // KINDS
    assert found == {(name, *end): each for name, end in ENDS.items()}
    assert stats.unfinished == 0
    assert attempts == each * sum(
        tries + (3 if name == "snoozes_thrice" else 0) for name, (_, tries, _) in ENDS.items()
    )


def test_a_retry_comes_after_its_backoff() -> None:
    with Sandbox(app, clock=clock) as box:
        fails.enqueue(1)
        began = clock.now_ms()
        box.drain(forward=3600)
        (job,) = box.jobs()
        assert [failure.at - began for failure in job.errors] == [0, 60_000, 360_000]


def test_an_error_is_kept_with_its_type_message_and_traceback() -> None:
    with Sandbox(app) as box:
        fails.using(max_attempts=1).enqueue(7)
        box.drain()
        (job,) = box.jobs()
        (failure,) = job.errors
        assert (failure.type, failure.message) == ("ValueError", "number 7")
        assert failure.traceback.startswith("Traceback")
        assert 'raise ValueError(f"number {n}")' in failure.traceback
        assert "/src/tenure/" not in failure.traceback  # the way to it is nobody's concern
        assert failure.worker == "sandbox"


def test_a_giant_error_is_bounded() -> None:
    app = Tenure("memory://")

    @app.task(max_attempts=1)
    async def shouts() -> None:
        raise ValueError("x" * 1_000_000)

    with Sandbox(app) as box:
        shouts.enqueue()
        box.drain()
        (job,) = box.jobs()
        assert len(job.errors[0].message) == MAX_FAILURE_TEXT
        assert len(job.errors[0].traceback) <= MAX_FAILURE_TEXT
