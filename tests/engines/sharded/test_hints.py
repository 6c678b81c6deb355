"""Where jobs were seen last: what is remembered, and when it is not used any more."""

from __future__ import annotations

import pytest

from tenure.engines.sharded.locating import Hints
from tests.support.sizes import let


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the second id begins a new part."""
    let(monkeypatch, places_of_jobs_known=1)


def test_the_last_two_parts_are_remembered() -> None:
    hints = Hints()
    for shard, job_id in enumerate(["a", "b", "c"]):
        hints.note([job_id], shard, hints.generation)
    assert [hints.get(job_id) for job_id in ("a", "b", "c")] == [None, 1, 2]


@pytest.mark.parametrize("job_id", ["old", "new"])
def test_a_job_that_is_not_there_is_forgotten(job_id: str) -> None:
    hints = Hints()
    hints.note(["old"], 0, hints.generation)
    hints.note(["new"], 1, hints.generation)
    assert hints.get(job_id) is not None
    hints.drop(job_id)
    assert hints.get(job_id) is None


def test_an_id_that_was_seen_on_two_shards_is_not_used() -> None:
    hints = Hints()
    hints.note(["a"], 0, hints.generation)
    hints.note(["a"], 1, hints.generation)
    assert hints.get("a") is None


def test_what_was_asked_before_tenants_were_moved_is_not_remembered() -> None:
    hints = Hints()
    before = hints.generation
    hints.note(["a"], 0, before)
    hints.clear()
    assert hints.get("a") is None
    hints.note(["a"], 0, before)
    assert hints.get("a") is None
