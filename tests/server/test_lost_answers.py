"""Whatever is lost between a client and its service, each batch is applied once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tenure
from tenure import (
    Lease,
    LeaseLost,
    NewJob,
    OutcomeUnknown,
    PayloadTooLarge,
    Settings,
    State,
    StoreError,
    StoreRejected,
)
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.server.auth import Scope, Tokens
from tenure.server.routes import make_app
from tenure.testing import ManualClock
from tests.crash.crowd import PATIENCE
from tests.crash.kill import everything
from tests.crash.watched import Watched, handed_in, opened, start
from tests.server import host
from tests.server.conftest import token
from tests.server.process import ServiceProcess
from tests.server.proxy import FATES, Fate, LossyProxy
from tests.support.audit import audit
from tests.support.sizes import let

N = 40


class Hasty(SystemClock):
    """Does not rest between tries."""

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.002))


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(2**32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenure.Queue]:
    """What the service keeps the jobs in."""
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        yield queue
    assert audit(tmp_path / "jobs.db") == []


@contextmanager
def served(store: tenure.Queue, seed: int, loss: float, **options: object) -> Iterator[LossyProxy]:
    """A service of the store, behind a proxy whose URL has the name of the service."""
    name = f"lossy-{seed}"
    service = host.host().services[name] = make_app(store, **options)  # type: ignore[arg-type]
    proxy = LossyProxy([urlsplit(host.host().url).port or 0], seed, loss)
    proxy.url += f"/{name}"
    try:
        yield proxy
    finally:
        proxy.close()
        service.close()
        del host.host().services[name]


@pytest.fixture
def proxy(store: tenure.Queue, seed: int) -> Iterator[LossyProxy]:
    with served(store, seed, 0.4) as proxy:
        yield proxy


@pytest.fixture
def queue(proxy: LossyProxy) -> Iterator[tenure.Queue]:
    """A client of the service."""
    with tenure.connect(proxy.url, clock=Hasty()) as queue:
        yield queue
    assert proxy.fates.total() - proxy.fates["passed on"] > 5, proxy.fates


def test_jobs_are_enqueued_once(queue: tenure.Queue, store: tenure.Queue) -> None:
    """Also those to which nobody gave an id, and those of one call, all or none."""
    ids = [queue.enqueue("q", {"n": n}).id for n in range(N)]
    for n in range(N):
        ids += queue.enqueue_many([NewJob(queue="q", id=f"{n}.{m}") for m in range(3)])
    assert sorted(ids) == sorted(everything(store))
    assert store.stats("q").ready == 4 * N


def test_every_claimed_job_reaches_the_client_once(
    queue: tenure.Queue, store: tenure.Queue
) -> None:
    store.enqueue_many([NewJob(queue="q") for _ in range(3 * N)])
    claimed = []
    while jobs := queue.claim("q", limit=3, lease=3600):
        claimed += jobs
    leased = everything(store)
    assert sorted((job.id, job.token) for job in claimed) == sorted(
        (job.id, job.token) for job in leased.values()
    )
    assert {(job.state, job.attempts) for job in leased.values()} == {(State.LEASED, 1)}


def test_whoever_asks_again_is_told_what_became_of_the_first_time(
    queue: tenure.Queue, store: tenure.Queue
) -> None:
    """An ack that was heard of is not answered that the lease is lost; nothing fails twice."""
    store.enqueue_many([NewJob(queue="q", max_attempts=100) for _ in range(4 * N)])
    jobs = store.claim("q", limit=4 * N, lease=3600)
    for done, failed, released, chained in zip(*(jobs[n::4] for n in range(4)), strict=True):
        queue.ack(done, {"by": "us"})
        assert queue.fail(failed, "boom", retry_in=7200) == "pending"
        queue.release(released, delay=7200)
        queue.ack(chained, then=[NewJob(queue="then")])
    found = everything(store)
    assert {found[job.id].state for job in jobs[::4]} == {State.DONE}
    assert {(found[job.id].attempts, len(found[job.id].errors)) for job in jobs[1::4]} == {(1, 1)}
    assert {found[job.id].attempts for job in jobs[2::4]} == {0}
    assert store.stats("then").ready == N
    for job in jobs[::4]:
        queue.ack(job, "again")  # it is another batch
        assert store.get(job.id).result == {"by": "us"}
        with pytest.raises(LeaseLost):
            queue.release(job)


def test_a_batch_that_is_sent_in_parts_is_applied_once(
    queue: tenure.Queue, store: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_request=200)
    store.enqueue_many([NewJob(queue="q") for _ in range(N)])
    jobs = queue.claim("q", limit=N, lease=3600)
    assert queue.ack_many(jobs) == [None] * N
    assert {job.state for job in everything(store).values()} == {State.DONE}


def test_a_token_of_one_tenant_is_answered_the_same_the_second_time(
    store: tenure.Queue, seed: int
) -> None:
    known = Tokens([token("secret", *Scope, tenants=("acme",))])
    with (
        served(store, seed, 0.4, tokens=known) as proxy,
        tenure.connect(proxy.url, settings=Settings(token="secret"), clock=Hasty()) as queue,
    ):
        for n in range(N):
            assert queue.enqueue("q", id=f"acme/{n}", tenant="acme").id == f"acme/{n}"
            (job,) = queue.claim("q", tenant="acme", lease=3600)
            queue.ack(job, keep=n % 2 == 0)
    assert {job.state for job in everything(store).values()} == {State.DONE}
    assert store.stats("q").done == N // 2


def test_a_claim_of_which_nobody_heard_ends_with_its_lease(
    tmp_path: Path, seed: int, clock: ManualClock
) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as store:
        store.enqueue("q", id="a")
        with served(store, seed, 1.0) as proxy:
            settings = Settings(busy_timeout=0.05)
            with tenure.connect(proxy.url, settings=settings, clock=Hasty()) as queue:
                while not store.stats("q").leased:
                    with pytest.raises(StoreError, match=r"cannot be (reached|read)"):
                        queue.claim("q", lease=60)
            assert store.claim("q") == []
            clock.advance(61)
            (job,) = store.claim("q")
            assert (job.id, job.attempts) == ("a", 2)


def test_two_services_on_one_file_apply_a_batch_once_although_they_are_killed(
    tmp_path: Path, seed: int
) -> None:
    """What one of them has served may be asked again of the other, or of one that began anew."""
    services = [
        ServiceProcess(tmp_path / name, store=f"sqlite:///{tmp_path}/jobs.db") for name in "ab"
    ]
    with ExitStack() as stack:
        for service in services:
            service.folder.mkdir()
            stack.callback(service.start().kill)
        proxy = LossyProxy([service.port for service in services], seed, 0.2)
        stack.callback(proxy.close)
        clients = [_Client(proxy.url, number) for number in range(4)]
        for client in clients:
            client.start()
        for service in services:
            done = sum(len(client.acked) for client in clients)
            _until(lambda done=done: sum(len(one.acked) for one in clients) > done + 10)  # type: ignore[misc]
            service.kill()
            service.start()
        for client in clients:
            client.finish()
    jobs = _everything(tmp_path)
    made = [id for client in clients for id in client.made]
    assert sorted(made) == sorted(jobs), f"seed {seed}"
    acked = Counter(id for client in clients for id in client.acked)
    assert set(acked.values()) == {1}
    for id in acked:
        assert (jobs[id].state, jobs[id].attempts) == (State.DONE, 1), f"seed {seed}: {jobs[id]}"
    assert {job.state for id, job in jobs.items() if id not in acked} <= {State.PENDING}
    assert audit(tmp_path / "jobs.db") == []


class _Client(threading.Thread):
    """Enqueues, claims and acknowledges over a proxy until it is told to finish."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.made: list[str] = []
        self.acked: list[str] = []
        self._url = url
        self._name = f"client{number}"
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            with tenure.connect(self._url, clock=Hasty()) as queue:
                while not self._over.is_set():
                    self.made += queue.enqueue_many([NewJob(queue="q"), NewJob(queue="q")])
                    for job in queue.claim("q", lease=3600, worker=self._name):
                        queue.ack(job)
                        self.acked.append(job.id)
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def _everything(folder: Path) -> dict[str, tenure.Job]:
    with tenure.connect(f"sqlite:///{folder}/jobs.db") as store:
        return everything(store)


# Several callers at once ------------------------------------------------------------------------


def together(
    queue: tenure.Queue,
    calls: Sequence[Callable[[tenure.Queue], Any]],
    holding: Callable[[tenure.Queue], Any] = lambda queue: queue.pause("unused"),
) -> list[Any]:
    """What calls return, or raise, that share one batch, because they wait for another call."""
    engine = store_of(queue).engine
    entered, gate = threading.Event(), threading.Event()
    right = engine.apply

    def held(batch: Sequence[Op]) -> list[Answer]:
        engine.apply = right  # type: ignore[method-assign]
        entered.set()
        assert gate.wait(PATIENCE)
        return right(batch)

    engine.apply = held  # type: ignore[method-assign]
    first = start(holding, queue)
    assert entered.wait(PATIENCE)
    started = []
    for call in calls:
        started.append(start(call, queue))
        handed_in(queue, len(started))
    gate.set()
    first.result(PATIENCE)
    return [one.exception(PATIENCE) or one.result() for one in started]


@pytest.mark.parametrize("fate", [fate for fate in FATES if fate.startswith("served")])
def test_a_group_whose_answer_is_lost_is_applied_once(
    store: tenure.Queue, seed: int, fate: Fate
) -> None:
    store.enqueue_many([NewJob(queue="work") for _ in range(3)])
    with served(store, seed, 0.0) as proxy, tenure.connect(proxy.url, clock=Hasty()) as queue:
        proxy.next = ["passed on", fate, fate]
        found = together(queue, [lambda queue: queue.enqueue("q")] * 5)
        proxy.next = ["passed on", fate, fate]
        calls = [lambda queue: queue.claim("work", lease=3600)] * 3
        claimed = together(queue, calls, lambda queue: queue.claim("unused"))
        assert proxy.fates[fate] == 4
    assert [type(one) for one in found] == [tenure.Job] * 5
    assert store.stats("q").ready == 5
    assert sorted(job.id for jobs in claimed for job in jobs) == sorted(
        job.id for job in store.jobs(queue="work", state="leased").jobs
    )


def test_a_batch_whose_answer_can_never_be_read_may_have_happened(
    store: tenure.Queue, seed: int
) -> None:
    """Nobody sends it again under another key."""
    settings = Settings(busy_timeout=0.05)
    with (
        served(store, seed, 0.0) as proxy,
        tenure.connect(proxy.url, settings=settings, clock=Hasty()) as queue,
    ):
        garbled: list[Fate] = ["served, and the answer garbled"]
        proxy.next = ["passed on", *garbled * 1000]
        found = together(queue, [lambda queue: queue.enqueue("q")] * 4)
    assert {type(one) for one in found} == {OutcomeUnknown}
    assert store.stats("q").ready == 4


def test_a_query_whose_answer_is_garbled_is_asked_again(store: tenure.Queue, seed: int) -> None:
    store.enqueue("q", id="a")
    with served(store, seed, 0.0) as proxy, tenure.connect(proxy.url, clock=Hasty()) as queue:
        proxy.next = ["served, and the answer garbled", "served, and the answer cut off unnoticed"]
        assert queue.get("a").id == "a"
        assert proxy.fates.total() == 3


def large(queue: tenure.Queue) -> Any:
    return queue.enqueue("q", "x" * 2000)


def small(queue: tenure.Queue) -> Any:
    return queue.enqueue("q", "x")


def test_a_payload_that_is_too_large_for_the_service_is_its_callers_alone(
    tmp_path: Path, seed: int
) -> None:
    settings = Settings(payload_limit=1000)
    with (
        tenure.connect(f"sqlite:///{tmp_path}/jobs.db", settings=settings) as store,
        served(store, seed, 0.0) as proxy,
        tenure.connect(proxy.url, clock=Hasty()) as queue,
    ):
        found = together(queue, [small, large, small, small, large, small])
        assert [type(one) for one in found] == [
            tenure.Job, PayloadTooLarge, tenure.Job, tenure.Job, PayloadTooLarge, tenure.Job,
        ]  # fmt: skip
        assert store.stats("q").ready == 4
        (job,) = queue.claim("q", lease=3600)
        (done, lost) = queue.ack_many([job, Lease(job.id, job.token + 1)])
        assert (done, type(lost)) == (None, LeaseLost)


def test_a_request_that_is_too_large_is_its_callers_alone(store: tenure.Queue, seed: int) -> None:
    """Its group as a whole may be too large, too, though none of the others is."""
    with served(store, seed, 0.0) as proxy, tenure.connect(proxy.url, clock=Hasty()) as queue:
        host.host().services[f"lossy-{seed}"].max_body = 1500
        found = together(queue, [small, large, *[small] * 20])
        assert type(found[1]) is PayloadTooLarge
        assert {type(one) for one in [found[0], *found[2:]]} == {tenure.Job}
        assert store.stats("q").ready == 21


def test_a_batch_in_parts_of_which_one_fails_was_applied_up_to_there(
    store: tenure.Queue, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody whose operation was applied gets another's error."""
    let(monkeypatch, bytes_of_a_request=600)
    settings = Settings(busy_timeout=0.05)
    with (
        served(store, seed, 0.0) as proxy,
        tenure.connect(proxy.url, settings=settings, clock=Hasty()) as queue,
    ):
        lost: list[Fate] = ["lost before it is sent"]
        proxy.next = ["passed on", "passed on", *lost * 1000]
        found = together(queue, [small] * 8)
    made = [one.id for one in found if isinstance(one, tenure.Job)]
    assert 0 < len(made) < 8
    assert sorted(made) == sorted(everything(store))
    assert all(isinstance(one, StoreError) for one in found if not isinstance(one, tenure.Job))


def test_a_batch_that_the_service_rejects_after_it_may_have_served_it_is_not_sent_apart(
    store: tenure.Queue, seed: int
) -> None:
    with served(store, seed, 0.0) as proxy, tenure.connect(proxy.url, clock=Hasty()) as queue:
        proxy.next = ["passed on", "served, and the answer lost", "rejected"]
        found = together(queue, [small] * 4)
    assert {type(one) for one in found} == {OutcomeUnknown}
    assert store.stats("q").ready == 4


def test_what_the_store_of_the_service_rejects_is_its_callers_alone(seed: int) -> None:
    engine = Watched(MemoryEngine(SystemClock(), 1000))

    def fault(batch: Sequence[Op]) -> None:
        specs = [spec for op in ops.flat(batch) if isinstance(op, ops.Enqueue) for spec in op.jobs]
        if any(spec.id == "bad" for spec in specs):
            raise StoreRejected("not that")

    engine.before = fault
    with (
        opened(engine) as store,
        served(store, seed, 0.0) as proxy,
        tenure.connect(proxy.url, clock=Hasty()) as queue,
    ):
        ids = ["a", "b", "bad", "c", "d"]
        calls = [partial(_enqueue, id) for id in ids]
        found = together(queue, calls)
        assert isinstance(found.pop(2), StoreRejected)
        assert [job.id for job in found] == ["a", "b", "c", "d"]
        assert store.stats("q").ready == 4


def _enqueue(id: str, queue: tenure.Queue) -> tenure.Job:
    return queue.enqueue("q", id=id)
