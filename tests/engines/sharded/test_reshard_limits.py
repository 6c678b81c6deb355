"""Limits, pauses and mutes of all shards, when there are more or fewer shards."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenure
from tenure import Busy, Conflict, InvalidInput, Queue
from tenure.engines.sharded.engine import ShardedEngine
from tenure.model.ops import Ok
from tenure.model.record_queries import ListRecords
from tenure.model.records import NewRecord, PutRecords, Record, Space
from tenure.queue import store_of
from tests.engines.sharded.test_reshard import check, reshard, resharding, url_of

TENANTS = 20


def fill(queue: Queue) -> None:
    for n in range(TENANTS):
        queue.enqueue("q", tenant=f"t{n}")


def new_shards(folder: Path, *, last: int) -> Queue:
    """One shard, opened with a URL that names more. It does nothing before tenants are moved."""
    with tenure.connect(url_of(folder, 0)) as queue:
        fill(queue)
    return tenure.connect(url_of(folder, last))


def test_what_concerns_all_shards_reaches_those_that_were_added_since_the_last_call(
    tmp_path: Path,
) -> None:
    with new_shards(tmp_path, last=1) as early:
        reshard(url_of(tmp_path, 0), url_of(tmp_path, 1))
        early.pause("q")
        assert early.claim("q", limit=TENANTS) == []
    for n in range(2):
        with tenure.connect(f"sqlite:///{tmp_path}/jobs-{n}.db") as one:
            assert [limit.paused for limit in one.limits.list()] == [True]


def test_a_limit_of_a_queue_is_refused_if_shards_were_added_since_the_last_call(
    tmp_path: Path,
) -> None:
    with new_shards(tmp_path, last=1) as early:
        reshard(url_of(tmp_path, 0), url_of(tmp_path, 1))
        with pytest.raises(InvalidInput, match="do not share a count"):
            early.limits.set("q", concurrency=2)
        assert early.limits.list() == []


def test_a_pause_that_some_shards_have_when_others_are_added_is_to_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure.connect(url_of(tmp_path, 1)).close()
    with tenure.connect(url_of(tmp_path, 2)) as early:
        engine = store_of(early).engine
        assert isinstance(engine, ShardedEngine)
        cluster = engine.cluster
        send = cluster.send

        def grow_after(*args: object) -> object:
            monkeypatch.undo()
            answers = send(*args)  # type: ignore[arg-type]
            reshard(url_of(tmp_path, 1), url_of(tmp_path, 2))
            return answers

        monkeypatch.setattr(cluster, "send", grow_after)
        with pytest.raises(Busy, match="repeat it"):
            early.pause("q")
        early.pause("q")
    for n in range(3):
        with tenure.connect(f"sqlite:///{tmp_path}/jobs-{n}.db") as one:
            assert [limit.paused for limit in one.limits.list()] == [True]


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_queue_with_a_limit_of_its_own_is_not_spread_over_shards(
    tmp_path: Path, tenant: str | None
) -> None:
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(before) as queue:
        fill(queue)
        queue.limits.set("q", tenant=tenant, concurrency=2)
        with resharding(before, after) as work:
            with pytest.raises(Conflict, match="do not share a count"):
                work.plan()
            with pytest.raises(Conflict, match="do not share a count"):
                work.run()
        queue.enqueue("q", tenant="t0")  # nothing is frozen
        queue.limits.clear("q", tenant=tenant)
    reshard(before, after)
    with tenure.connect(after) as queue:
        assert len(queue.claim("q", limit=50)) == TENANTS + 1
    check(tmp_path)


def test_a_limit_that_is_set_when_a_move_begins_ends_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(before) as queue, resharding(before, after) as work:
        fill(queue)
        mark = work._mark

        def limit_before(*args: object) -> None:
            monkeypatch.undo()
            queue.limits.set("q", concurrency=2)
            mark(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(work, "_mark", limit_before)
        with pytest.raises(Conflict, match="do not share a count"):
            work.run()
        queue.enqueue("q", tenant="t0")
        assert len(queue.claim("q", limit=50)) == 2
        queue.limits.clear("q")
        assert work.run()
    with tenure.connect(after) as queue:
        assert len(queue.claim("q", limit=50)) == TENANTS - 1
    check(tmp_path)


@pytest.mark.parametrize("together", [False, True])
def test_a_limit_of_one_shard_is_on_no_other_and_can_be_cleared(
    tmp_path: Path, together: bool
) -> None:
    before, after = url_of(tmp_path, 0, together), url_of(tmp_path, 3, together)
    limited: list[tuple[str | None, str | None]] = [("*", None), ("", "*")]
    paused = [(None, None), ("", None), ("", "g"), *((f"t{n}", None) for n in range(8))]
    scopes = [*limited, *paused]
    with tenure.connect(before) as queue:
        for tenant, group in limited:
            queue.limits.set("q", tenant=tenant, group=group, concurrency=1)
        for tenant, group in paused:
            queue.pause("q", tenant=tenant, group=group)
    reshard(before, after)
    with tenure.connect(after) as queue:
        engine = store_of(queue).engine
        assert isinstance(engine, ShardedEngine)
        placing = engine.placing
        for number in range(4):
            with tenure.connect(f"sqlite:///{tmp_path}/jobs-{number}.db") as one:
                found = {(limit.tenant, limit.group) for limit in one.limits.list()}
            places = {scope: placing.of_scope("q", *scope) for scope in scopes}
            assert found == {scope for scope in scopes if places[scope] in (None, number)}
        for tenant, group in limited:
            queue.limits.clear("q", tenant=tenant, group=group)
        for tenant, group in paused:
            queue.resume("q", tenant=tenant, group=group)
        assert queue.limits.list() == []


def test_a_shard_that_is_used_again_has_the_limits_of_today(tmp_path: Path) -> None:
    fewer, more = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(more) as queue:
        fill(queue)
        queue.pause("q")
        queue.limits.set("q", tenant="*", concurrency=1)
        queue.limits.set("other", tenant="*", concurrency=1)
    reshard(more, fewer)
    with tenure.connect(fewer) as queue:
        queue.resume("q")
        queue.limits.clear("q", tenant="*")
        queue.limits.set("other", tenant="*", concurrency=2)
        limits = queue.limits.list()
    reshard(fewer, more)
    with tenure.connect(more) as queue:
        assert queue.limits.list() == limits
        assert len(queue.claim("q", limit=50)) == TENANTS
    with tenure.connect(f"sqlite:///{tmp_path}/jobs-1.db") as one:
        assert one.limits.list() == limits
    check(tmp_path)


def test_a_group_of_errors_stays_muted_until_it_is_not(tmp_path: Path) -> None:
    with tenure.connect(url_of(tmp_path, 0)) as queue:
        fill(queue)
        for job in queue.claim("q", limit=TENANTS):
            queue.fail(job, "broken")
        (error,) = queue.errors.list().errors
        queue.errors.mute(error.group)
    more = f"sqlite:///{tmp_path}/jobs-{{0..1}}.db"
    reshard(url_of(tmp_path, 0), more)
    only_the_new_one = f"sqlite:///{tmp_path}/jobs-{{1..1}}.db"
    reshard(more, only_the_new_one)
    with tenure.connect(only_the_new_one) as queue:
        assert [(one.count, one.muted) for one in queue.errors.list().errors] == [(TENANTS, True)]
        queue.errors.unmute(error.group)
        assert [(one.count, one.muted) for one in queue.errors.list().errors] == [(TENANTS, False)]


def test_who_does_not_know_the_new_shards_does_not_read_a_part_as_if_it_were_all(
    tmp_path: Path,
) -> None:
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(before) as old:
        fill(old)
        reshard(before, after)
        with pytest.raises(InvalidInput, match="does not name 1"):
            old.claim("q")
        with pytest.raises(InvalidInput, match="does not name 1"):
            old.stats()
        with pytest.raises(InvalidInput, match="does not name 1"):
            old.jobs()


def test_who_did_not_know_the_new_shards_reads_again_when_they_are_no_longer_used(
    tmp_path: Path,
) -> None:
    before, after = url_of(tmp_path, 0), url_of(tmp_path, 1)
    with tenure.connect(before) as old:
        fill(old)
        reshard(before, after)
        with pytest.raises(InvalidInput, match="does not name 1"):
            old.claim("q")
        reshard(after, before)
        assert len(old.jobs().jobs) == TENANTS


def test_errors_that_were_counted_on_a_shard_before_it_was_used_again_are_not_lost(
    tmp_path: Path,
) -> None:
    fewer, more = url_of(tmp_path, 0), url_of(tmp_path, 1)
    for n in range(1, 4):
        with tenure.connect(more) as queue:
            fill(queue)
            for job in queue.claim("q", limit=TENANTS):
                queue.fail(job, "broken")
        reshard(more, fewer)
        with tenure.connect(fewer) as queue:
            assert [one.count for one in queue.errors.list().errors] == [n * TENANTS]
        reshard(fewer, more)


def test_a_record_that_its_writer_replaces_after_a_move_is_there_once(tmp_path: Path) -> None:
    """The rates of the current hour, for example: each process stores them again and again."""

    spaces: tuple[Space, ...] = ("rate", "bulk")

    def put(queue: Queue, value: bytes) -> None:
        for space in spaces:
            for n in range(30):
                record = NewRecord(space, f"k{n}", value)
                assert store_of(queue).engine.apply([PutRecords((record,))]) == [Ok()]

    more, fewer = url_of(tmp_path, 3), url_of(tmp_path, 1)
    with tenure.connect(more) as queue:
        put(queue, b"1")
        reshard(more, fewer)
        put(queue, b"2")
        for space in spaces:
            found = store_of(queue).engine.read(ListRecords(space, "", "\U0010ffff", 100))
            assert isinstance(found, list)
            values = [(one.key, one.value) for one in found if isinstance(one, Record)]
            assert sorted(values) == sorted((f"k{n}", b"2") for n in range(30))
