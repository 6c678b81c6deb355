"""A recovery of the cluster moves versions ahead by about 97 s. That is no time: it ends no lease,
fills no bucket and makes no schedule due. See engines/foundationdb/jumps.py for the rule."""

from __future__ import annotations

import itertools
import random

import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.errors import LeaseLost
from tenure.model import ops, queries
from tenure.model.job import NULL, Job, JobSpec, State
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim

LEASE_S = 20
GRACE_S = 9  # after which a job of a dead worker is claimed by another
HOUR_MS = 3_600_000
BEHIND_MS = -25_000  # of a process by whose clock no lease ends, and which looks at all of them


class Place:
    """A cluster, and processes that use it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = fdb_sim.Cluster(self.clock)
        self._seeds = itertools.count()

    def process(self, skew_ms: int = 0) -> FoundationDbEngine:
        db = fdb_sim.open(self.cluster, skew_ms=skew_ms)
        chance = random.Random(next(self._seeds))
        return FoundationDbEngine(fdb_sim, db, Settings(), db.clock, hybrid=True, chance=chance)

    def watch(self, *engines: FoundationDbEngine, seconds: float) -> set[State]:
        """Let processes claim every second; the states of the jobs after that."""
        for _ in range(round(seconds)):
            self.clock.advance(1)
            for engine in engines:
                claim(engine)
        return states(engines[0])


@pytest.fixture
def place() -> Place:
    return Place()


def claim(engine: FoundationDbEngine, limit: int = 10) -> list[Job]:
    (answer,) = engine.apply([ops.Claim(("q",), "w", LEASE_S * 1000, limit)])
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def begin(engine: FoundationDbEngine, jobs: int = 3) -> list[Job]:
    """Claim some jobs that may be tried once."""
    specs = tuple(JobSpec(str(n), "q", NULL, max_attempts=1) for n in range(jobs))
    engine.apply([ops.Enqueue(specs)])
    return claim(engine)


def jobs_of(engine: FoundationDbEngine) -> list[Job]:
    found = engine.read(queries.GetJobs(("0", "1", "2")))
    assert isinstance(found, queries.Page)
    return found.jobs


def states(engine: FoundationDbEngine) -> set[State]:
    return {job.state for job in jobs_of(engine)}


def renew(engine: FoundationDbEngine, jobs: list[Job]) -> None:
    answers = engine.apply([ops.Extend(job.id, job.token, LEASE_S * 1000) for job in jobs])
    assert [one for one in answers if isinstance(one, LeaseLost)] == []


def test_a_recovery_takes_nothing_from_a_worker_that_renews(place: Place) -> None:
    worker, other = place.process(), place.process()
    jobs = begin(worker)
    assert place.watch(other, seconds=5) == {State.LEASED}
    place.cluster.recover()
    assert place.watch(other, seconds=LEASE_S - 1) == {State.LEASED}  # the full time from then on
    renew(worker, jobs)
    place.cluster.recover()
    place.cluster.recover()
    assert place.watch(other, seconds=LEASE_S - 1) == {State.LEASED}
    assert worker.apply([ops.Ack(job.id, job.token) for job in jobs]) == [ops.Ok()] * len(jobs)


@pytest.mark.parametrize("skew_ms", [0, 30_000, -30_000])
def test_one_that_starts_after_a_recovery_takes_nothing_either(place: Place, skew_ms: int) -> None:
    """Nobody else has noted the jump yet: the clock that was noted before tells."""
    begin(place.process(-skew_ms))
    place.cluster.recover(95)
    assert place.watch(place.process(skew_ms), seconds=LEASE_S - 1) == {State.LEASED}


def test_one_that_did_nothing_for_long_before_a_recovery_takes_nothing_either(
    place: Place,
) -> None:
    """In ten minutes, versions and clocks may differ by more than a jump."""
    worker, idle = place.process(), place.process()
    claim(idle)
    place.clock.advance(700)
    begin(worker)
    place.cluster.recover()
    claim(idle)
    assert place.watch(idle, seconds=LEASE_S - 1) == {State.LEASED}


def test_one_that_was_suspended_meanwhile_takes_nothing_either(place: Place) -> None:
    """It finds a jump, too, and that another has noted it: the lease does not start again."""
    worker, suspended, other = (place.process() for _ in range(3))
    begin(worker)
    claim(suspended)
    place.watch(other, seconds=3)
    place.cluster.recover()
    assert place.watch(other, seconds=LEASE_S - 2) == {State.LEASED}
    claim(suspended)
    assert states(other) == {State.LEASED}
    assert place.watch(suspended, other, seconds=GRACE_S) == {State.DEAD}


def test_of_two_recoveries_one_that_was_suspended_finds_the_second_though_the_first_is_noted(
    place: Place,
) -> None:
    worker, suspended, other = (place.process() for _ in range(3))
    jobs = begin(worker)
    claim(suspended)
    place.cluster.recover()
    place.watch(other, seconds=2)  # and then it ends
    renew(worker, jobs)
    place.clock.advance(5)
    place.cluster.recover()
    claim(suspended)
    assert place.watch(suspended, seconds=LEASE_S - 1) == {State.LEASED}


@pytest.mark.parametrize("jumps", [0, 1, 2])
def test_the_jobs_of_a_dead_worker_are_taken_over_a_lease_after_the_last_jump(
    place: Place, jumps: int
) -> None:
    worker, other = place.process(), place.process()
    begin(worker)
    place.watch(other, seconds=10)
    for _ in range(jumps):
        place.cluster.recover()
        place.watch(other, seconds=2)
    since = 2 if jumps else 10
    assert place.watch(other, seconds=LEASE_S - since) == {State.LEASED}
    assert place.watch(other, seconds=GRACE_S) == {State.DEAD}


def test_a_process_whose_clock_is_set_again_and_again_finds_no_jumps(place: Place) -> None:
    begin(place.process())
    wrong = place.process(skew_ms=BEHIND_MS)
    clock = wrong._store.clock
    assert isinstance(clock, fdb_sim.SkewedClock)
    for n in range(LEASE_S + GRACE_S):
        place.watch(wrong, seconds=1)
        clock.skew_ms = BEHIND_MS + n % 3 * 12_000
        assert n > LEASE_S or states(wrong) == {State.LEASED}
    assert states(wrong) == {State.DEAD}


def test_processes_with_wrong_clocks_that_come_and_go_keep_no_lease_alive(place: Place) -> None:
    """Another process runs all the time, and has noted how far it has seen."""
    begin(place.process())
    other = place.process(skew_ms=BEHIND_MS)
    for n in range(LEASE_S + GRACE_S):
        place.watch(other, place.process(-HOUR_MS * (1 + n % 3)), seconds=1)
    assert states(other) == {State.DEAD}


def test_without_any_process_that_stays_a_lease_ends_by_the_clocks(place: Place) -> None:
    begin(place.process())
    for n in range(4):
        place.clock.advance(45)  # longer than it takes to doubt what is noted
        claim(place.process(skew_ms=(n % 2) * -HOUR_MS))
    assert states(place.process()) == {State.DEAD}


def test_a_worker_that_only_renews_notes_a_jump(place: Place) -> None:
    worker = place.process()
    jobs = begin(worker)
    key = worker._store.keys.pack(k.JUMP)
    before = fdb_sim.open(place.cluster).get(key)
    place.clock.advance(1)
    place.cluster.recover()
    renew(worker, jobs)
    after = fdb_sim.open(place.cluster).get(key)
    assert before != after
    renew(worker, jobs)
    assert fdb_sim.open(place.cluster).get(key) == after  # noted once


def test_an_idle_store_is_written_to_every_ten_seconds_and_not_by_every_process(
    place: Place,
) -> None:
    engines = [place.process() for _ in range(4)]
    place.watch(*engines, seconds=5)
    before = place.cluster.stats.commits_committed
    place.watch(*engines, seconds=60)
    assert place.cluster.stats.commits_committed - before <= 7


def test_a_recovery_fills_no_bucket_and_takes_nothing_from_it(place: Place) -> None:
    engine, other = place.process(), place.process()
    specs = tuple(JobSpec(f"r{n}", "q", NULL) for n in range(100))
    engine.apply([ops.Enqueue(specs), ops.SetLimit("q", rate=10, per_ms=60_000)])
    assert len(claim(engine, 50)) == 10
    place.clock.advance(30)
    place.cluster.recover()
    assert len(claim(engine, 50)) in (4, 5)  # those of half a minute
    place.cluster.recover()
    assert claim(other, 50) == []
    place.clock.advance(30)
    assert len(claim(place.process(), 50)) in (4, 5, 6)


def test_a_recovery_makes_no_schedule_due(place: Place) -> None:
    schedulers = [place.process(skew_ms) for skew_ms in (0, 0, 0, 0, -HOUR_MS)]

    def times() -> list[int]:
        found = [one.read(queries.GetTimetable()) for one in schedulers]
        return [one.now - place.clock.now_ms() for one in found]  # type: ignore[union-attr]

    for _ in range(4):
        times()
        place.clock.advance(3)
    place.cluster.recover()
    assert max(abs(wrong) for wrong in times()) < 10_000
    place.clock.advance(5)
    place.cluster.recover()
    place.cluster.recover()
    assert max(abs(wrong) for wrong in times()) < 10_000


def test_notes_of_a_cluster_with_higher_versions_do_not_count_after_a_restore() -> None:
    old, young = Place(), Place()
    old.clock.advance(HOUR_MS)
    begin(old.process())
    worker = young.process()
    db = fdb_sim.open(young.cluster)
    for kind in (k.SEEN, k.JUMP):
        value = fdb_sim.open(old.cluster).get(old.process()._store.keys.pack(kind))
        assert value is not None
        db.set(worker._store.keys.pack(kind), value)
    begin(worker)
    other = young.process(skew_ms=BEHIND_MS)
    young.watch(other, seconds=LEASE_S + GRACE_S)
    assert states(other) == {State.DEAD}


class Machine:
    """A clock that is wrong, and stands still while its machine is suspended."""

    def __init__(self, right: ManualClock, skew_ms: int) -> None:
        self._right = right
        self.skew_ms = skew_ms
        self.stood_s = 0.0  # by which the monotonic clock is behind

    def now_ms(self) -> int:
        return self._right.now_ms() + self.skew_ms

    def monotonic(self) -> float:
        return self._right.monotonic() - self.stood_s

    def sleep(self, seconds: float) -> None:
        self._right.sleep(seconds)


class Crowd:
    """Processes that are replaced, on machines that are suspended; and the cluster recovers."""

    def __init__(self, seed: int) -> None:
        self.place = Place()
        self.chance = random.Random(seed)
        self.engines: list[FoundationDbEngine] = []
        self.asleep: dict[int, int] = {}  # by place: for how many seconds
        for n in range(4):
            self.start(n)
        self.jumped_at = self.place.clock.monotonic()

    def start(self, n: int) -> None:
        db = fdb_sim.open(self.place.cluster)
        machine = Machine(self.place.clock, self.chance.randint(-30_000, 30_000))
        engine = FoundationDbEngine(fdb_sim, db, Settings(), machine, hybrid=True)
        self.engines[n : n + 1] = [engine]

    def step(self) -> None:
        self.place.clock.advance(1)
        if self.chance.random() < 0.03:
            for _ in range(self.chance.choice((1, 1, 2))):
                self.place.cluster.recover(self.chance.uniform(95, 99))
            self.jumped_at = self.place.clock.monotonic()
        for n in self.chance.sample(range(4), 4):
            self._step_of(n)

    def _step_of(self, n: int) -> None:
        if n in self.asleep:
            self.asleep[n] -= 1
            if not self.asleep[n]:
                del self.asleep[n]
        elif self.chance.random() < 0.02:
            self.asleep[n] = self.chance.choice((3, 30, 400))
            machine = self.engines[n]._store.clock
            assert isinstance(machine, Machine)
            if self.chance.random() < 0.3:  # its wall clock is set when it wakes up
                machine.stood_s += self.asleep[n]
        elif self.chance.random() < 0.02:
            self.start(n)
        elif self.chance.random() < 0.7:
            claim(self.engines[n])


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_renews_keeps_its_job_and_a_dead_one_does_not(seed: int) -> None:
    crowd = Crowd(seed)
    clock = crowd.place.clock
    worker = crowd.place.process()
    jobs = begin(worker)
    kept, left = jobs[:1], jobs[1:]
    renewed_at = clock.monotonic()
    for _ in range(200):
        crowd.step()
        if clock.monotonic() - renewed_at >= LEASE_S // 3:
            renew(worker, kept)
            renewed_at = clock.monotonic()
        found = {job.id: job.state for job in jobs_of(worker)}
        assert found[kept[0].id] is State.LEASED
        if clock.monotonic() > crowd.jumped_at + LEASE_S + 2 * GRACE_S:
            assert {found[job.id] for job in left} == {State.DEAD}
