"""Tickets that are put into a line together are taken together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.queue import commit_line
from tenure.queue.committer import Ticket
from tests.support.sizes import let


def tickets(*sizes: int) -> list[Ticket]:
    return [Ticket([ops.Extend("a", 1, 1000)] * size) for size in sizes]


def test_a_batch_that_adds_many_jobs_takes_no_more() -> None:
    """Others wait while it is stored, however few calls it consists of."""
    jobs = tuple(JobSpec(f"{n}", "q", NULL) for n in range(700))
    call = Ticket([ops.Enqueue(jobs)])
    keyed = Ticket([ops.Once("key", (ops.Enqueue(jobs),))])
    ack = Ticket([ops.Ack("a", 1, NULL, jobs)])
    one = commit_line.CommitLine[Ticket](1, lambda _: None)
    for ticket in (call, keyed, ack, keyed):
        one.put([ticket])
    taken, is_open = one._take(one._inbox.get_nowait())
    assert (len(taken), is_open, one._inbox.qsize()) == (3, True, 1)
    one.put([call, keyed, ack, call])
    assert [len(one._inbox.get_nowait() or ()) for _ in range(3)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 1, 1), [[1, 1, 1]]),
        ((2, 3), [[2, 3]]),
        ((2, 3, 1, 2), [[2, 3], [1, 2]]),
        ((7, 1), [[7], [1]]),
        ((1, 7, 1), [[1], [7], [1]]),
    ],
)
def test_what_is_put_together_stays_together_up_to_the_size_of_a_batch(
    sizes: Sequence[int], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, operations_of_a_commit=5)
    one = commit_line.CommitLine[Ticket](1, lambda _: None)
    one.put(tickets(*sizes))
    found = [one._inbox.get_nowait() for _ in range(one._inbox.qsize())]
    assert [[len(ticket.batch) for ticket in some or ()] for some in found] == expected
