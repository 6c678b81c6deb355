"""Which candidates a claim on PostgreSQL may take."""

from __future__ import annotations

from tenure.engines.postgres.claim import Candidate, TenantJobs


def a_line(share: int) -> TenantJobs:
    return TenantJobs((1, "acme", 0, 1, None, None, None, None, share))


def of_lane(lane: int, *seqs: int) -> list[Candidate]:
    return [(lane, f"g{lane}", seq, None) for seq in seqs]


def test_one_that_another_let_go_of_meanwhile_does_not_come_on_top() -> None:
    """There is room for three. The first was held when it was asked the first time."""
    line = a_line(3)
    line.fill(of_lane(1, 2, 3, 4))
    assert len(line.take(3)) == 3
    line.share = 6
    line.fill(of_lane(1, 1, 2, 3))
    assert line.take(1) == []


def test_that_holds_for_each_lane() -> None:
    line = a_line(4)
    line.fill(of_lane(1, 2, 3) + of_lane(2, 5))
    assert len(line.take(3)) == 3
    line.share = 7
    line.fill(of_lane(1, 1, 2) + of_lane(2, 5, 6, 7))
    assert line.take(9) == of_lane(2, 6, 7)


def test_what_is_left_is_taken_after_what_was_taken() -> None:
    line = a_line(2)
    line.fill(of_lane(1, 1, 2))
    assert line.take(2) == of_lane(1, 1, 2)
    line.share = 5
    line.fill(of_lane(1, 1, 2, 3, 4, 5))
    assert line.take(2) == of_lane(1, 3, 4)
    assert line.take(2) == of_lane(1, 5)


def test_the_first_time_all_that_come_may_be_taken() -> None:
    line = a_line(4)
    line.fill(of_lane(1, 1, 2) + of_lane(2, 3))
    assert line.take(9) == of_lane(1, 1, 2) + of_lane(2, 3)
