"""What others are promised while a part fails, and how it is measured: they enqueue short and long
jobs all the time, and ask for the health of the service, if there is one."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

import tenure
from tests.blast.parts import Stage
from tests.crash.journal import Event, now_ms
from tests.crash.kill import everything
from tests.workers import errands

PROMISES = ("once", "leases", "p99", "memory")
MOST_RATIO = 5.0  # of the p99 with and without the failure
HEALTH_FLOOR = 0.5  # seconds that a health check may take, however short it was
MOST_MEMORY = 512  # MB of one process
PATIENCE = 60.0  # seconds until the jobs of the others must have ended
PAUSE = 0.02  # seconds between short jobs
FINAL = ("done", "dead", "cancelled", "expired")


class Verdict(NamedTuple):
    kept: bool
    figures: str


class Others(threading.Thread):
    """Those who are promised something."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self.short: dict[str, int] = {}  # jobs, and when they were tried to enqueue
        self.long: list[str] = []
        self.health: list[tuple[int, float]] = []  # when it was asked for, and how long that took
        self.errors: Counter[str] = Counter()
        self._enough = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)

    def run(self) -> None:
        if self._stage.service is not None:
            self._asking.start()
        tenant, seconds = self._stage.tenant, self._stage.lease * 1.3
        short = errands.quick.using(queue="q", tenant=tenant).job(0.0)
        long = [
            one.using(queue="q", tenant=tenant).job(seconds)
            for one in (errands.quick, errands.quick_in_a_thread)
        ]
        with self._stage.connect() as queue:
            next_long = time.monotonic() if self._stage.has_long_jobs else math.inf
            while not self._enough.wait(PAUSE):
                self.short |= dict.fromkeys(*self._enqueued(queue, [short]))
                if time.monotonic() >= next_long:
                    next_long = time.monotonic() + 1
                    self.long += self._enqueued(queue, long)[0]

    def _enqueued(
        self, queue: tenure.Queue, jobs: list[tenure.NewJob]
    ) -> tuple[Sequence[str], int]:
        """The ids of new jobs, and when that was tried; none, if it failed."""
        tried_at = now_ms()
        try:
            return queue.enqueue_many(jobs), tried_at
        except tenure.TenureError as error:
            self.errors[f"enqueue: {type(error).__name__}"] += 1
            return [], tried_at

    def _ask(self) -> None:
        """Each with a connection of its own, as health checks do."""
        assert self._stage.service is not None
        while not self._enough.wait(PAUSE * 2):
            at, began = now_ms(), time.monotonic()
            try:
                httpx.get(f"{self._stage.service.url}/healthz", timeout=10).raise_for_status()
            except httpx.HTTPError as error:
                self.errors[f"health: {type(error).__name__}"] += 1
            self.health.append((at, time.monotonic() - began))

    def stop(self) -> None:
        self._enough.set()
        self.join(PATIENCE)
        if self._asking.is_alive():
            self._asking.join(PATIENCE)


def tried_out(stage: Stage, quiet: float, on_phase: Callable[[str], None]) -> dict[str, Verdict]:
    """Let a part fail beside others. Returns what became of each promise."""
    with stage.running():
        others = Others(stage)
        others.start()
        on_phase("quiet")
        time.sleep(quiet)
        for pid in stage.pids():
            _forget_peak(pid)
        calm = now_ms() - 500  # what is enqueued later may be hit by the failure
        on_phase("preparing the failure")
        settled = others.errors.copy()
        assert not settled, settled
        with stage.failing():
            began = now_ms()
            on_phase(f"fails for {stage.seconds:g} s")
            time.sleep(stage.seconds)
            ended = now_ms()
            memory = max(map(_peak, stage.pids()))
        on_phase("recovers")
        others.stop()
        wanted = {*others.short, *others.long, *stage.own}
        jobs = _ended(stage, wanted)
        events = stage.place.events()
    warm = calm - quiet * 600  # the first jobs find everything cold
    return {
        "once": _once([*others.short, *stage.own], jobs, events, _tolerated(stage, others.errors)),
        "leases": _once(others.long, jobs, events, Counter()),
        "p99": _punctual(stage, others, events, ((warm, calm), (began, ended))),
        "memory": Verdict(memory <= MOST_MEMORY, f"{memory} MB"),
    }


def _ended(stage: Stage, wanted: Collection[str]) -> dict[str, tenure.Job]:
    """The jobs of the others, as soon as all have ended, or when the patience is over."""
    deadline = time.monotonic() + PATIENCE
    with tenure.connect(stage.place.url) as queue:
        while True:
            jobs = everything(queue)
            left = [id for id in wanted if id not in jobs or jobs[id].state not in FINAL]
            if not left or time.monotonic() > deadline:
                return {id: jobs[id] for id in wanted if id in jobs}
            time.sleep(0.2)


def _tolerated(stage: Stage, errors: Counter[str]) -> Counter[str]:
    """If the only store fails, calls that need it may fail, but health checks may not."""
    some = Counter({name: n for name, n in errors.items() if name.startswith("health")})
    return some if stage.only_store else errors


def _once(
    ids: Sequence[str], jobs: dict[str, tenure.Job], events: Sequence[Event], errors: Counter[str]
) -> Verdict:
    """Whether each job ran to its end, and no process began it that another has begun. Those that
    were running in a process that was killed are begun again by right."""
    killed = {event.data["pid"] for event in events if event.kind == "killed"}
    begun = Counter(
        event.id for event in events if event.kind == "began" and event.data["pid"] not in killed
    )
    wrong = errors.copy()
    for id in ids:
        if id not in jobs:
            wrong["lost"] += 1
        elif jobs[id].state != "done":
            wrong[str(jobs[id].state.value)] += 1
        if begun[id] > 1:
            wrong["begun again"] += 1
    said = ", ".join(f"{n} {name}" for name, n in sorted(wrong.items()))
    return Verdict(not wrong, f"of {len(ids)}: {said}" if wrong else f"{len(ids)} jobs")


def _punctual(
    stage: Stage,
    others: Others,
    events: Sequence[Event],
    phases: tuple[tuple[float, float], tuple[float, float]],
) -> Verdict:
    """How long jobs take to begin, and health checks, without and with the failure."""
    first_begun: dict[str, int] = {}
    for event in events:
        if event.kind == "began":
            first_begun[event.id] = min(event.at, first_begun.get(event.id, event.at))
    waits = [
        (at, (first_begun[id] - at) / 1000) for id, at in others.short.items() if id in first_begun
    ]
    measured = [] if stage.only_store else [("jobs", waits, stage.floor)]
    if stage.service is not None:
        measured.append(("health", others.health, HEALTH_FLOOR))
    kept, said = True, []
    for name, times, floor in measured:
        quiet, during = (
            _p99([took for at, took in times if since <= at < until]) for since, until in phases
        )
        kept = kept and during <= max(MOST_RATIO * quiet, floor)
        said.append(f"{name} {quiet * 1000:.0f} -> {during * 1000:.0f} ms")
    return Verdict(kept, ", ".join(said))


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] if times else float("inf")


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak(pid: int) -> int:
    """The most memory that a process took since then, in MB; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmHWM:")[2].split()[0]) // 1024 if "VmHWM:" in text else 0
