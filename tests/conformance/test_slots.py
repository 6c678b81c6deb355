"""Slots: marks that something is active, each with an end."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from tenure import InvalidInput, Queue, Slot
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes


def take_slot(queue: Queue, holder: str, ttl: float = 10, **options: int) -> tuple[int, bool]:
    slots = queue.slots.take("scope", "key", holder, ttl, **options)
    return slots.count, slots.held


def holders(queue: Queue) -> list[str]:
    return [slot.holder for slot in queue.slots.list("scope", "key")]


def test_slots_are_counted(queue: Queue) -> None:
    assert take_slot(queue, "a") == (1, True)
    assert take_slot(queue, "b") == (2, True)
    assert take_slot(queue, "c") == (3, True)


def test_slots_are_listed_by_name_with_their_end(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "b", 20)
    take_slot(queue, "a", 10)
    now = clock.now_ms()
    assert queue.slots.list("scope", "key") == [Slot("a", now + 10_000), Slot("b", now + 20_000)]


def test_nobody_holds_a_slot_at_first(queue: Queue) -> None:
    assert queue.slots.list("scope", "key") == []


def test_a_second_take_renews(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", 10)
    clock.advance(5)
    assert take_slot(queue, "a", 10) == (1, True)
    assert queue.slots.list("scope", "key") == [Slot("a", clock.now_ms() + 10_000)]


def test_a_slot_ends_with_its_time(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", 10)
    take_slot(queue, "b", 20)
    clock.advance(9.999)
    assert holders(queue) == ["a", "b"]
    clock.advance(0.001)
    assert holders(queue) == ["b"]
    assert take_slot(queue, "c") == (2, True)


def test_a_dropped_slot_is_gone(queue: Queue) -> None:
    take_slot(queue, "a")
    take_slot(queue, "b")
    assert queue.slots.drop("scope", "key", "a") == 1
    assert holders(queue) == ["b"]


def test_dropping_what_is_not_held_changes_nothing(queue: Queue) -> None:
    take_slot(queue, "a")
    with nothing_changes(queue):
        assert queue.slots.drop("scope", "key", "nobody") == 1
        assert queue.slots.drop("scope", "elsewhere", "a") == 0
        assert queue.slots.drop("elsewhere", "key", "a") == 0


def test_dropping_counts_only_those_that_have_not_ended(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", 5)
    take_slot(queue, "b", 10)
    take_slot(queue, "c", 10)
    clock.advance(5)
    assert queue.slots.drop("scope", "key", "a") == 2
    assert queue.slots.drop("scope", "key", "b") == 1


def test_no_more_than_the_limit_hold_a_slot(queue: Queue) -> None:
    assert take_slot(queue, "a", limit=2) == (1, True)
    assert take_slot(queue, "b", limit=2) == (2, True)
    with nothing_changes(queue):
        assert take_slot(queue, "c", limit=2) == (2, False)
    queue.slots.drop("scope", "key", "a")
    assert take_slot(queue, "c", limit=2) == (2, True)


def test_a_slot_may_be_renewed_where_all_are_taken(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", limit=1)
    clock.advance(5)
    assert take_slot(queue, "a", limit=1) == (1, True)
    assert queue.slots.list("scope", "key")[0].expires_at == clock.now_ms() + 10_000


def test_a_slot_that_ended_makes_room(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", limit=1)
    clock.advance(10)
    assert take_slot(queue, "b", limit=1) == (1, True)


def test_a_slot_that_is_over_a_lowered_limit_is_lost_when_it_is_renewed(queue: Queue) -> None:
    take_slot(queue, "a")
    take_slot(queue, "b")
    assert take_slot(queue, "b", limit=1) == (1, False)
    assert holders(queue) == ["a"]
    assert take_slot(queue, "a", limit=1) == (1, True)


def test_scopes_and_keys_are_told_apart(queue: Queue) -> None:
    for scope in ("team", "crawl"):
        for key in ("x", "y"):
            assert queue.slots.take(scope, key, "a", 10, limit=1).held
    queue.slots.drop("team", "x", "a")
    assert queue.slots.list("team", "x") == []
    assert len(queue.slots.list("team", "y")) == len(queue.slots.list("crawl", "x")) == 1


def test_slots_are_cleared_away_when_they_ended(queue: Queue, clock: ManualClock) -> None:
    take_slot(queue, "a", 10)
    take_slot(queue, "b", 20)
    queue.slots.take("scope", "other", "a", 5)
    clock.advance(10)
    assert queue.maintain().slots == 2
    assert queue.maintain().slots == 0
    assert take_slot(queue, "c", limit=2) == (2, True)


def test_a_recount_of_the_slots_finds_what_was_counted(queue: Queue, clock: ManualClock) -> None:
    assert queue.slots.reconcile("scope", "key") == 0
    for n, holder in enumerate("abcd", 1):
        take_slot(queue, holder, n)
    queue.slots.drop("scope", "key", "d")
    clock.advance(2)
    assert queue.slots.reconcile("scope", "key") == 0
    assert holders(queue) == ["c"]
    assert take_slot(queue, "e") == (2, True)


def test_of_threads_that_want_a_slot_as_many_get_one_as_there_are(queue: Queue) -> None:
    held: list[str] = []
    start = threading.Barrier(10)

    def want(name: str) -> None:
        start.wait()
        if take_slot(queue, name, limit=3)[1]:
            held.append(name)

    threads = [threading.Thread(target=want, args=(str(n),)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 3
    assert holders(queue) == sorted(held)


def test_slots_are_no_jobs(queue: Queue) -> None:
    take_slot(queue, "a")
    assert queue.stats().queues == {}


@pytest.mark.parametrize("name", ["Ø 🫐", "a/b", "=", "n" * 512])
def test_names_of_slots_are_any_text(queue: Queue, name: str) -> None:
    assert queue.slots.take(name, name, name, 10).count == 1
    assert [slot.holder for slot in queue.slots.list(name, name)] == [name]
    assert queue.slots.drop(name, name, name) == 0


def names(*lengths: int) -> list[str]:
    """Names of so many characters of three bytes each, which no compression makes shorter."""
    chance = random.Random(0)
    return ["".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(n)) for n in lengths]


def test_the_names_of_a_slot_may_be_long_up_to_a_bound(queue: Queue) -> None:
    scope, key, holder = names(300, 300, 266)
    assert queue.slots.take(scope, key, holder, 60).held
    assert [slot.holder for slot in queue.slots.list(scope, key)] == [holder]
    with nothing_changes(queue), pytest.raises(InvalidInput, match="2,601 bytes"):
        queue.slots.take(scope, key, f"{holder}abc", 60)
    assert queue.slots.drop(scope, key, holder) == 0


def test_the_names_of_a_limit_may_be_long_up_to_a_bound(queue: Queue) -> None:
    name, tenant, group = names(300, 300, 266)
    queue.limits.set(name, tenant=tenant, group=group, concurrency=1)
    queue.pause(name, tenant=tenant, group=group)
    assert [limit.group for limit in queue.limits.list()] == [group]
    for call in (queue.pause, partial(queue.limits.set, concurrency=1)):
        with nothing_changes(queue), pytest.raises(InvalidInput, match="2,601 bytes"):
            call(name, tenant=tenant, group=f"{group}abc")
    queue.limits.clear(name, tenant=tenant, group=group)
