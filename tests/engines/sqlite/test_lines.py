"""The first ready jobs of a lane, as its book knows them."""

from __future__ import annotations

from random import Random

import pytest

from tenure.engines.sqlite.counters import LINE, Head, LaneBook, QueueBook, TenantBook


def empty_lane() -> LaneBook:
    queue = QueueBook((1, "q", 0, None, None, None, 0, 0, 0, *[0] * 7))
    tenant = TenantBook((1, "t", 0, 1, None, 0, 0, *[0] * 7), queue)
    return LaneBook((1, "", None, None, None, 0, *[0] * 7), tenant)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_is_the_start_of_the_line(seed: int) -> None:
    random = Random(seed)
    lane = empty_lane()
    ready: set[Head] = set()
    for seq in range(1, 200):
        if ready and random.random() < 0.45:
            job = random.choice(sorted(ready)[:LINE])
            ready.remove(job)
            lane.left(*job)
        else:
            job = random.randrange(3), seq
            ready.add(job)
            lane.joined(*job)
        assert lane.line == sorted(ready)[: len(lane.line)]
        assert len(lane.line) <= LINE
        assert not lane.whole or len(lane.line) == len(ready)


def test_all_jobs_of_a_short_line_are_known() -> None:
    lane = empty_lane()
    for seq in range(1, LINE + 1):
        lane.joined(0, seq)
    assert lane.line == [(0, seq) for seq in range(1, LINE + 1)]
    assert lane.whole
    lane.joined(0, LINE + 1)
    assert lane.line[-1] == (0, LINE)
    assert not lane.whole
    lane.joined(0, LINE + 2)  # nothing is known of the end
    assert lane.line[-1] == (0, LINE)
