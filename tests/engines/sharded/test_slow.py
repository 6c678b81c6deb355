"""A shard that does not respond keeps the claims of others waiting only for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tenure
from tenure import NewJob, Queue, StoreError
from tenure.engines.sharded import shard
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.queue import store_of
from tenure.queue.committer import RENEWALS_AT_ONCE
from tests.crash.watched import PATIENCE, start, until
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_keyed_away import CLAIM, KEYS, claimed, good
from tests.engines.sharded.test_once import run
from tests.support.sizes import let


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, seconds_until_a_shard_is_away=0.5)
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)
    monkeypatch.setattr(shard.Shard, "may_hang", True)  # as a server may


@contextmanager
def hanging(queue: Queue, number: int, *names: str) -> Iterator[None]:
    """Calls of a shard's store are made, but do not return before the end."""
    one = shards_of(queue)[number]
    store: Any = one.store
    real = {name: getattr(store, name) for name in names}
    goes_on = threading.Event()

    def slow(name: str, *given: object) -> object:
        found = real[name](*given)
        assert goes_on.wait(60)
        return found

    for name in names:
        setattr(store, name, lambda *given, name=name: slow(name, *given))
    try:
        yield
    finally:
        for name in names:
            setattr(store, name, real[name])
        goes_on.set()
    assert one.is_back()


@pytest.mark.parametrize("number", [0, 1])
def test_a_claim_goes_on_without_a_shard_that_hangs_and_gives_back_what_it_leased(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant)
    with hanging(queue, number, "apply"):
        found = [job for _ in range(3) for job in queue.claim("q", limit=2)]
        there = tenants[2:] if number == 0 else tenants[:2]
        assert {job.tenant for job in found} == set(there)
        until(lambda: queue.claim("q") == [] and len(store_of(queue).away()) == 1)
    for _ in range(200):
        if queue.stats().ready == 2:
            break
        threading.Event().wait(0.05)
    assert (queue.stats().ready, queue.stats().leased) == (2, 2)


@pytest.mark.parametrize("number", [0, 1])
def test_renewals_go_on_without_a_shard_that_hangs_however_many_concern_it(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    """Also if nobody claims anything meanwhile, which would find out that it is away."""
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("q", tenant=tenant)
    jobs = sorted(queue.claim("q", limit=2), key=lambda job: job.tenant != tenants[2 * number])
    with hanging(queue, number, "apply"):
        hung = [start(queue.extend_many, jobs, 60) for _ in range(RENEWALS_AT_ONCE + 2)]
        until(lambda: start(queue.extend_many, jobs[1:], 60).result(PATIENCE) == [None])
        assert all(isinstance(one.result(PATIENCE)[0], StoreError) for one in hung)
        assert not store_of(queue).away()  # it may only have a lock to wait for
    until(lambda: queue.extend_many(jobs, 60) == [None, None])


@pytest.mark.parametrize("number", [0, 1])
def test_keyed_renewals_go_on_without_a_shard_that_hangs(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    """As clients of a service make them."""
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("q", tenant=tenant)
    jobs = sorted(queue.claim("q", limit=2), key=lambda job: job.tenant != tenants[2 * number])
    mine, other = [ops.Extend(job.id, job.token, 60_000) for job in jobs]

    def renew(key: str, *renewals: ops.Extend) -> list[Answer]:
        (answer,) = store_of(queue).do([ops.Once(key, renewals)])
        if isinstance(answer, StoreError):
            raise answer
        return good(answer)

    with hanging(queue, number, "apply"):
        hung = [start(renew, f"{n}", mine) for n in range(RENEWALS_AT_ONCE + 2)]
        until(lambda: start(renew, "other", other).result(PATIENCE) == [ops.Ok()])
        assert all(isinstance(one.exception(PATIENCE), StoreError) for one in hung)
        first, second = start(renew, "both", mine, other).result(PATIENCE)
        assert isinstance(first, StoreError)
        assert second == ops.Ok()
        assert not store_of(queue).away()
    until(lambda: queue.extend_many(jobs, 60) == [None, None])
    assert renew("0", mine) == renew("both", mine, other)[:1] == [ops.Ok()]


LOOKS: dict[str, Callable[[Queue], object]] = {
    "what is due next": lambda queue: queue.next_due("q"),
    "which schedules are due": lambda queue: len(queue.schedules.timetable().schedules),
}


@pytest.mark.parametrize(
    ("look", "number"), [(look, number) for look in LOOKS for number in (0, 1)]
)
def test_a_worker_looks_ahead_without_a_shard_that_hangs(
    queue: Queue, tenants: Tenants, look: str, number: int
) -> None:
    """It may be the first to ask the shard: what claims would find out comes too late."""
    tenant = tenants[2 - 2 * number]
    queue.enqueue("q", tenant=tenant, delay=3600)
    queue.schedules.put("tick", "* * * * *", NewJob(queue="q", tenant=tenant))
    expected = LOOKS[look](queue)
    assert expected
    with hanging(queue, number, "read"):
        assert start(LOOKS[look], queue).result(PATIENCE) == expected
        assert not store_of(queue).away()
        until(lambda: LOOKS[look](queue) == expected and len(store_of(queue).away()) == 1)


@pytest.mark.parametrize("number", [0, 1])
def test_keyed_claims_and_acks_go_on_without_a_shard_that_hangs(
    queue: Queue, url: str, tenants: Tenants, number: int
) -> None:
    for _ in KEYS:
        queue.enqueue("q", tenant=tenants.there if number == 0 else tenants.here)
    with tenure.connect(url) as other, hanging(other, number, "read", "apply"):
        for key in KEYS:
            (job,) = claimed(run(other, f"claim {key}", CLAIM))
            store_of(other).engine._cluster.locator.hints.clear()  # type: ignore[attr-defined]
            assert good(run(other, f"ack {key}", ops.Ack(job.id, job.token))) == [ops.Ok()]
        with pytest.raises(StoreError):
            other.get("unknown")
    assert queue.stats().done == len(KEYS)
