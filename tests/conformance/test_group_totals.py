"""Group totals: how many jobs a group has, all tenants together."""

from __future__ import annotations

import pytest

from tenure import GroupTotal, Queue, QueueNotFound
from tests.conformance.moves import take


def totals(queue: Queue, **options: object) -> list[tuple[str, int, int]]:
    found: list[GroupTotal] = queue.group_totals("q", **options)  # type: ignore[arg-type]
    assert all(one.queue == "q" for one in found)
    return [(one.group, one.unfinished, one.finished) for one in found]


def test_groups_are_counted_over_all_tenants(queue: Queue) -> None:
    for tenant in ("", "acme", "bolt"):
        queue.enqueue("q", tenant=tenant, group="g")
        queue.enqueue("q", tenant=tenant)
        queue.enqueue("other", tenant=tenant, group="g")
        queue.enqueue("other", tenant=tenant, group="h")
    queue.enqueue("q", tenant="acme", group="a", delay=60)
    assert totals(queue) == [("a", 1, 0), ("g", 3, 0)]
    assert totals(queue, group="g") == [("g", 3, 0)]
    assert totals(queue, group="h") == []


def test_totals_tell_finished_from_unfinished_jobs(queue: Queue) -> None:
    parent = queue.enqueue("parent", tenant="t0")
    for n in range(6):
        queue.enqueue("q", id=f"{n}", tenant=f"t{n % 2}", group="g")
    queue.enqueue("q", group="g", tenant="t0", after=[parent.id])
    queue.enqueue("q", group="g", tenant="t1", delay=60)
    assert totals(queue) == [("g", 8, 0)]
    queue.ack(take(queue))
    queue.fail(take(queue), fatal=True)
    leased = take(queue)
    pending = [job.id for job in queue.jobs(queue="q", state="pending").jobs]
    queue.cancel(pending[-1])
    assert totals(queue) == [("g", 5, 3)]
    queue.release(leased)
    assert totals(queue, group="g") == [("g", 5, 3)]
    queue.replay(queue="q")
    assert totals(queue) == [("g", 6, 2)]


def test_a_group_without_jobs_is_left_out(queue: Queue) -> None:
    for group in "abc":
        queue.enqueue("q", id=group, group=group, tenant="acme")
    queue.delete("b")
    queue.ack(take(queue), keep=False)
    assert totals(queue) == [("c", 1, 0)]
    assert totals(queue, limit=1) == [("c", 1, 0)]
    assert totals(queue, group="b") == []
    queue.maintain()
    assert totals(queue) == [("c", 1, 0)]
    queue.enqueue("q", group="b", tenant="bolt")
    assert totals(queue) == [("b", 1, 0), ("c", 1, 0)]


def test_totals_are_listed_page_by_page(queue: Queue) -> None:
    names = ["a", "a!", "aa", "b", "Ä", "\uffff", "\U0001f600", "\U0010ffff" * 3, "z"]
    for n, name in enumerate(names):
        queue.enqueue("q", group=name, tenant=f"t{n % 3}")
    expected = [(name, 1, 0) for name in sorted(names)]
    assert totals(queue) == expected
    found: list[tuple[str, int, int]] = []
    after = None
    while page := totals(queue, limit=2, after=after):
        assert len(page) <= 2
        found += page
        after = page[-1][0]
    assert found == expected
    assert totals(queue, after="a", group="a") == []
    assert totals(queue, after="a", group="aa") == [("aa", 1, 0)]


def test_totals_are_right_after_a_recount(queue: Queue) -> None:
    for tenant in ("acme", "bolt"):
        queue.enqueue("q", group="g", tenant=tenant)
    queue.reconcile("q", tenant="acme", group="g")
    queue.reconcile("q", tenant="acme")
    queue.reconcile("q")
    assert totals(queue) == [("g", 2, 0)]


def test_an_unknown_queue_has_no_totals(queue: Queue) -> None:
    with pytest.raises(QueueNotFound):
        queue.group_totals("nowhere")
    queue.enqueue("q")
    assert totals(queue) == []
