"""Keyed calls over several shards, while tenants move between two tries and between steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tenure
from tenure import Conflict, Queue
from tenure.engines.sharded import keyed
from tenure.engines.sharded.engine import ShardedEngine
from tenure.model import ops
from tenure.model.job import NULL, Job, JobSpec
from tenure.queue import store_of
from tests.engines.sharded.test_reshard import check, reshard, resharding, url_of
from tests.support.sizes import let

SENT = keyed._sent
TENANTS = 20


class Died(BaseException):
    """The process was killed."""


def leased(queue: Queue) -> list[Job]:
    for n in range(TENANTS):
        queue.enqueue("old", tenant=f"t{n}")
    return queue.claim("old", limit=TENANTS, lease=600)


def call(n: int, job: Job) -> ops.Once:
    """An operation on a job that has to be found, and one of another tenant."""
    spec = JobSpec(f"new {n}", "new", NULL, tenant=f"t{n}")
    return ops.Once(f"key {n}", (ops.Ack(job.id, job.token), ops.Enqueue((spec,))))


def begin(queue: Queue, op: ops.Once, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Only the home shard applies its part. Returns whether there is a rest."""
    sent: list[Sequence[object]] = []

    def die(*args: object) -> object:
        sent.append(args)
        if len(sent) == 2 and args[-1]:
            raise Died
        return SENT(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(keyed, "_sent", die)
        try:
            store_of(queue).engine.apply([op])
        except Died:
            return True
    return False


def on_wrong_shards(queue: Queue, folder: Path) -> list[str]:
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    placing = engine.placing
    wrong = []
    for number, name in enumerate(placing.names):
        with tenure.connect(f"sqlite:///{folder}/jobs-{name}.db") as one:
            jobs = one.jobs(limit=1000).jobs
        wrong += [job.id for job in jobs if placing.of_tenant(job.tenant) != number]
    return wrong


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 1)])
def test_a_call_that_is_finished_after_a_move_is_applied_where_its_tenants_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    before, after = url_of(tmp_path, old), url_of(tmp_path, new)
    with tenure.connect(before) as queue:
        calls = [call(n, job) for n, job in enumerate(leased(queue))]
        begun = [op for op in calls if begin(queue, op, monkeypatch)]
        done = queue.stats()
    assert len(begun) > 3
    assert done.ready + done.done < 2 * TENANTS
    reshard(before, after)
    with tenure.connect(url_of(tmp_path, max(old, new))) as queue:
        for op in begun:
            if old < new:
                (answer,) = store_of(queue).engine.apply([op])
                assert isinstance(answer, ops.Answers)
                ack, enqueued = answer.answers
                assert ack == ops.Ok()
                assert isinstance(enqueued, ops.Enqueued)
                assert store_of(queue).engine.apply([op]) == [answer]
            else:  # routes on a shard that is no longer used are forgotten: see docs/shards.md
                store_of(queue).engine.apply([op])
        assert on_wrong_shards(queue, tmp_path) == []
        stats = queue.stats()
        assert (stats.ready, stats.done, stats.leased) == (TENANTS, TENANTS, 0)
        assert len(queue.claim("new", limit=100)) == TENANTS
    check(tmp_path)


def test_a_part_that_was_applied_before_a_move_is_not_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died after all shards had applied their parts."""
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        calls = [call(n, job) for n, job in enumerate(leased(queue))]
        planned = [op for op in calls if begin(queue, op, monkeypatch)]
        answers = [store_of(queue).engine.apply([op]) for op in planned]
    assert len(planned) > 3
    reshard(before, after)
    with tenure.connect(after) as queue:
        assert [store_of(queue).engine.apply([op]) for op in planned] == answers
        assert queue.stats().ready == TENANTS
    check(tmp_path)


def test_a_job_that_such_a_call_claims_is_known_to_be_where_it_was_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        calls = []
        for n, job in enumerate(leased(queue)):
            claim = ops.Claim(("new",), "w", 600_000, 1, tenant=f"t{n}")
            calls.append(ops.Once(f"key {n}", (*call(n, job).ops, claim)))
        begun = [op for op in calls if begin(queue, op, monkeypatch)]
    reshard(before, after)
    with tenure.connect(after) as queue:
        for op in begun:
            (answer,) = store_of(queue).engine.apply([op])
            assert isinstance(answer, ops.Answers)
            claimed = answer.answers[2]
            assert isinstance(claimed, ops.Leased)
            for job in claimed.jobs:
                ack = ops.Once(f"ack {job.id}", (ops.Ack(job.id, job.token),))
                assert store_of(queue).engine.apply([ack]) == [ops.Answers([ops.Ok()])]
        assert queue.stats("new").done > 3
    check(tmp_path)


def test_a_call_over_several_shards_goes_on_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, tenants_moved_in_a_step=1)
    let(monkeypatch, seconds_for_the_ring_to_settle=0.0)
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        jobs = leased(queue)
    with resharding(before, after) as work:
        assert not work.run(lambda: setattr(work, "stop", True))
        with tenure.connect(after) as queue:
            for n, job in enumerate(jobs):
                (answer,) = store_of(queue).engine.apply([call(n, job)])
                assert isinstance(answer, ops.Answers)
                assert answer.answers[0] == ops.Ok()
            assert queue.stats().ready == TENANTS
    check(tmp_path)


def test_a_call_that_used_a_shard_which_is_no_longer_known_is_rejected_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = url_of(tmp_path, 2), url_of(tmp_path, 1)
    with tenure.connect(before) as queue:
        calls = [call(n, job) for n, job in enumerate(leased(queue))]
        begun = [op for op in calls if begin(queue, op, monkeypatch)]
        for op in begun:
            store_of(queue).engine.apply([op])
    reshard(before, after)
    with tenure.connect(after) as queue:
        done = queue.stats()
        other = ops.Enqueue((JobSpec("other", "new", NULL, tenant="t0"),))
        *answers, enqueued = store_of(queue).engine.apply([*begun, other])
        assert isinstance(enqueued, ops.Enqueued)
        rejected = [one for one in answers if isinstance(one, Conflict)]
        assert any("on shard '2', which is no longer one" in one.message for one in rejected)
        assert len(rejected) < len(answers)
        assert (queue.stats().done, queue.stats().ready) == (done.done, done.ready + 1)
    check(tmp_path)


def test_what_two_shards_have_not_done_is_counted_once_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = url_of(tmp_path, 2), url_of(tmp_path, 7)
    with tenure.connect(before) as queue, resharding(before, after) as work:
        engine = store_of(queue).engine
        assert isinstance(engine, ShardedEngine)
        placing = engine.placing
        moves = [f"t{n}" for n in range(60) if work._new.of_tenant(f"t{n}") not in (0, 1, 2)]
        one = next(tenant for tenant in moves if placing.of_tenant(tenant) == 0)
        other = next(tenant for tenant in moves if placing.of_tenant(tenant) == 1)
        key = next(f"key {n}" for n in range(60) if placing.order_of_call(f"key {n}")[0] == 2)
        jobs = [queue.enqueue("q", tenant=tenant) for tenant in (one, other)]
        cancel = ops.Once(key, (ops.Cancel(tuple(job.id for job in jobs)),))
        assert begin(queue, cancel, monkeypatch)
        assert work.run()
    with tenure.connect(after) as queue:
        assert store_of(queue).engine.apply([cancel]) == [ops.Answers([ops.Changed(2)])]
    check(tmp_path)
