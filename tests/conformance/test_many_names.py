"""Calls that name many groups or queues stay cheap, and are bounded."""

from __future__ import annotations

import pytest

from tenure import InvalidInput, Queue
from tenure.model.fields import MAX_GROUPS_PER_CALL, MAX_QUEUES_PER_CALL
from tenure.model.ops import Claim, Leased
from tests.conformance.conftest import Apply


class Compared(str):
    """A name that counts how often it is compared with another one."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_skipped_group_is_not_compared_with_every_name(queue: Queue, apply: Apply) -> None:
    """The number of comparisons must not be the product of lanes and names."""
    lanes = 30
    for n in range(lanes):
        queue.enqueue("q", group=f"skipped-{n}")
    names = tuple(Compared(f"skipped-{n}") for n in reversed(range(500)))
    Compared.times = 0
    (answer,) = apply(Claim(("q",), "worker", 1_000, 10, not_groups=names))
    assert answer == Leased([])
    assert Compared.times <= len(names) + 4 * lanes


@pytest.mark.without_engine
def test_a_claim_names_a_bounded_number_of_groups(queue: Queue) -> None:
    groups = [f"g{n}" for n in range(MAX_GROUPS_PER_CALL + 1)]
    assert queue.claim("q", not_groups=groups[:-1]) == []
    with pytest.raises(InvalidInput, match="1,001 in one call; at most 1,000"):
        queue.claim("q", not_groups=groups)


@pytest.mark.without_engine
def test_a_claim_names_a_bounded_number_of_queues(queue: Queue) -> None:
    queues = [f"q{n}" for n in range(MAX_QUEUES_PER_CALL + 1)]
    with pytest.raises(InvalidInput, match="1,001 in one call; at most 1,000"):
        queue.claim(queues)
    with pytest.raises(InvalidInput, match="1,001 in one call; at most 1,000"):
        queue.next_due(queues)
