"""The check of limits finds violations, and nothing else."""

from __future__ import annotations

from tenure import Job, Limit, State
from tenure.model.job import NULL
from tests.crash.history import limits_were_kept
from tests.crash.journal import Event

LIMITS = [Limit("q", concurrency=2), Limit("q", "*", concurrency=1), Limit("q", "free", "g", 1)]


def wrong(*runs: tuple[str, str, int, int]) -> list[str]:
    """What the check finds if jobs of these tenants and groups ran between these times."""
    jobs = {
        f"{n}": Job(f"{n}", "q", State.DONE, NULL, 0, 0, 0, 0, 1, 1, tenant, group)
        for n, (tenant, group, _, _) in enumerate(runs)
    }
    events = [
        Event(at, kind, f"{n}", 1)
        for n, (_, _, start, end) in enumerate(runs)
        for kind, at in (("did", end), ("began", start))
    ]
    return list(limits_were_kept(jobs, events, LIMITS))


def test_jobs_that_follow_each_other_are_within_the_limit() -> None:
    assert wrong(("a", "", 1, 2), ("a", "", 2, 5), ("b", "", 1, 5), ("c", "", 3, 3)) == []


def test_jobs_that_overlap_beyond_a_limit_are_found() -> None:
    (text,) = wrong(("a", "", 1, 3), ("a", "", 2, 5))
    assert text == "('q', 'a', None) has a limit of 1, but at 2 there ran ['0', '1']"
    (text,) = wrong(("a", "", 1, 9), ("b", "", 2, 9), ("c", "", 3, 9))
    assert text.startswith("('q', None, None) has a limit of 2")
    assert [text[:16] for text in wrong(("free", "g", 1, 9), ("free", "g", 2, 9))] == [
        "('q', 'free', No",
        "('q', 'free', 'g",
    ]
