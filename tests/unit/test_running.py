"""What a process remembers of its claims until they end."""

from __future__ import annotations

import pytest

from tenure.model.job import Job, State, null
from tenure.model.ops import Ack
from tenure.queue.running import Running
from tests.support.sizes import let


def _job(id: str, token: int, queue: str = "mail") -> Job:
    return Job(id, queue, State.LEASED, null(), 0, 1, 1, 1, 1, 3, token=token)


def _ended(kept: Running, *acks: tuple[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for claims, count in kept.end_all([Ack(id, token) for id, token in acks])[0]:
        counts[claims.queue] = counts.get(claims.queue, 0) + count
    return counts


def test_jobs_that_were_claimed_together_end_one_by_one_or_together() -> None:
    kept = Running()
    kept.add([_job("a", 1), _job("b", 1), _job("c", 1)])
    assert _ended(kept, ("b", 1)) == {"mail": 1}
    assert _ended(kept, ("a", 1), ("c", 1)) == {"mail": 2}
    assert _ended(kept, ("a", 1)) == {}


def test_one_token_for_jobs_of_several_queues_is_told_apart_in_any_order() -> None:
    kept = Running()
    kept.add([_job("a", 1, "mail"), _job("b", 1, "mail")])
    kept.add([_job("c", 1, "film")])  # of another shard
    kept.add([_job("d", 2, "mail"), _job("e", 2, "film")])
    assert _ended(kept, ("c", 1), ("e", 2)) == {"film": 2}
    assert _ended(kept, ("a", 1), ("b", 1), ("d", 2)) == {"mail": 3}
    assert _ended(kept, ("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 2)) == {}


def test_jobs_of_another_process_are_not_known() -> None:
    kept = Running()
    kept.add([_job("a", 1)])
    assert kept.end("b", 2) is None
    assert _ended(kept, ("b", 2), ("a", 1)) == {"mail": 1}


def test_acks_whose_claims_are_not_known_are_returned() -> None:
    kept = Running()
    kept.add([_job("a", 1, "mail"), _job("b", 1, "film")])  # told apart
    kept.add([_job("c", 2)])
    acks = [Ack("x", 9), Ack("a", 1), Ack("c", 2), Ack("z", 1), Ack("y", 9)]
    known, unknown = kept.end_all(acks)
    assert sorted((claims.queue, count) for claims, count in known) == [("mail", 1), ("mail", 1)]
    assert sorted(op.id for op in unknown) == ["x", "y", "z"]


def test_the_oldest_claims_are_forgotten_if_too_many_do_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let(monkeypatch, claims_watched_at_once=2)
    kept = Running()
    kept.add([_job("a", 1, "mail"), _job("b", 1, "film")])
    kept.add([_job("c", 2)])
    assert _ended(kept, ("a", 1)) == {}
    assert _ended(kept, ("b", 1), ("c", 2)) == {"film": 1, "mail": 1}
