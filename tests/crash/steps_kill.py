"""Workers are killed before and after each step of tasks of ten steps, and put to sleep past their
leases. Then every step must have one result, recorded once, and every job must have ended.

    python -m tests.crash.steps_kill --seconds 300 --seed 7 [--store postgresql]

In each round, one job for each boundary kills its worker there, once. Between the rounds, only the
seed decides; within one, timing does.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec

import tenure
from tenure.model.job import FINAL
from tests.crash.journal import Event, Journal, read
from tests.crash.kill import everything, say, told
from tests.crash.stores import STORES, Store
from tests.crash.watched import until

ROOT = Path(__file__).parents[2]
FOLDER = "TENURE_TEST_FOLDER"
WORKERS = 2
LEASE_SECONDS = 1.0
DRAIN_SECONDS = 120.0
KILLS_PER_SECOND = 1.0  # by others, in a round
NOW = tenure.fixed(0.01)
STEPS = 10
BOUNDARIES = [
    *((n, when) for n in range(STEPS) for when in ("before", "after")),
    *((n, "within") for n in (0, 1, 2, 7, 8, 9)),  # a function that was called, and not recorded
]

app = tenure.Tenure()

# Tasks --------------------------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ[FOLDER])


@functools.cache
def _journal(pid: int) -> Journal:
    return Journal(folder() / f"{pid}.journal")


def note(kind: str, step: str = "", value: object = None) -> None:
    job = tenure.current_job().job
    _journal(os.getpid()).note(kind, job.id, job.token, step=step, value=value)


def die_at(n: int, when: str, kill: tuple[int, str] | None) -> None:
    """Kill this process, if this is the place, and it was not killed there before."""
    if kill is None or tuple(kill) != (n, when):
        return
    sign = folder() / f"killed-{tenure.current_job().job.id}"
    with suppress(FileExistsError):
        sign.touch(exist_ok=False)
        note("killed", f"s{n}", when)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="others", max_attempts=100, backoff=NOW)
async def child(n: int) -> int:
    return n


@app.task(queue="others", max_attempts=100, backoff=NOW)
async def take_back(what: str) -> None:
    note("undone", what)


@app.task(queue="ten", max_attempts=100, backoff=NOW)
async def ten_steps(kill: tuple[int, str] | None = None, ends_dead: bool = False) -> list[str]:
    run = tenure.current_job()
    values: list[str] = []

    async def work(n: int) -> str:
        note("ran", f"s{n}")
        die_at(n, "within", kill)
        await asyncio.sleep(0)
        return uuid.uuid4().hex

    for n in range(STEPS):
        die_at(n, "before", kill)
        value = ""
        match n:
            case 3:
                await run.sleep("s3", 0.01)
            case 4:
                value = str(await run.gather("s4", [child.job(one) for one in range(2)]))
            case 5:
                value = await run.wait_for("s5")
            case 6:
                with suppress(tenure.WaitTimeout):
                    await run.wait_for("s6", timeout=0.05)
            case 7:
                some = [run.step(work, n, name="s7", key=str(one)) for one in range(3)]
                value = " ".join(await asyncio.gather(*some))
            case _:
                value = await run.step(work, n, name=f"s{n}")
                if n == 1:
                    run.undo(take_back, value)
        note("got", f"s{n}", value)
        values.append(value)
        die_at(n, "after", kill)
    if ends_dead:
        raise tenure.Dead("as told")
    return values


@app.task(queue="asleep", max_attempts=100, backoff=NOW)
async def put_to_sleep() -> str:
    """The first process stops within a step, until its lease has been lost for long."""
    run = tenure.current_job()

    async def work() -> str:
        note("ran", "only")
        with suppress(FileExistsError):
            (folder() / "slept").touch(exist_ok=False)
            note("sleeps", "only", os.getpid())
            while not run.cancelled.is_set():  # the lease was lost
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.005)
            with suppress(asyncio.CancelledError):  # goes on whatever it is told
                await asyncio.sleep(0.02)
        return uuid.uuid4().hex

    try:
        value: str = await run.step(work)
    except BaseException as error:
        note("refused", "only", type(error).__name__)
        raise
    note("got", "only", value)
    return value


# Processes ----------------------------------------------------------------------------------------


def nursery(queues: list[str]) -> None:
    """Run a worker in a fork, and another one whenever it has died: nothing is imported again."""
    while True:
        pid = os.fork()
        if pid == 0:
            _journal(os.getpid()).note("worker")
            app.move_to(os.environ["TENURE_URL"])
            asyncio.run(app.worker(queues=queues, lease=LEASE_SECONDS, poll_interval=0.2).run())
            os._exit(0)
        os.waitpid(pid, 0)


class Arena:
    """A store, and the workers on it."""

    def __init__(self, place: Path, store: Store, seed: int, boundaries: int) -> None:
        self.place = place
        self.store = store
        self.chance = random.Random(seed)
        self.boundaries = self.chance.sample(BOUNDARIES, boundaries)
        self.counted: Counter[str] = Counter()
        self.nurseries: list[subprocess.Popen[bytes]] = []
        app.move_to(store.url)

    def start(self, *queues: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TENURE_URL": self.store.url, FOLDER: str(self.place)}
        log = self.place / f"log-{len(self.nurseries)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.steps_kill", "--nursery", *queues],
                cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.nurseries.append(process)
        return process

    def stop(self) -> None:
        for process in self.nurseries:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        app.close()

    def round(self, seconds: float) -> list[str]:
        """Kill workers at each boundary, and at other times for so long. Returns what is wrong."""
        for _ in range(WORKERS):
            self.start("ten", "others")
        wrong = self._sleepers()
        made = [
            ten_steps.enqueue(kill, ends_dead=n % 5 == 0) for n, kill in enumerate(self.boundaries)
        ]
        for handle in made:
            handle.signal("s5", "signal")
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._unfinished():
            time.sleep(self.chance.expovariate(KILLS_PER_SECOND))
            self._kill_one()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._unfinished() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.counted["jobs"] += len(made)
        wrong += self._check()
        if self.counted["killed at a boundary"] != len(self.boundaries):
            wrong.append(f"only {self.counted['killed at a boundary']} were killed at a boundary")
        self.stop()
        return wrong + self.store.audit()

    def _unfinished(self) -> int:
        return app.queue.stats().unfinished

    def _kill_one(self) -> None:
        process = self.chance.choice(self.nurseries)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
                self.counted["kills by others"] += 1

    def _sleepers(self) -> list[str]:
        """A worker stops within a step; another one takes over; then the first one goes on."""
        handle = put_to_sleep.enqueue()
        self.start("asleep")
        until(lambda: bool(self._events("sleeps")))
        (event,) = self._events("sleeps")
        pid = int(event.data["value"])
        self._stop(pid)
        self.start("asleep")
        until(lambda: handle.job().state in FINAL)
        os.kill(pid, signal.SIGCONT)
        until(lambda: bool(self._events("refused")))
        (refused,) = self._events("refused")
        self.counted["sleepers"] += 1
        got = [event.data["value"] for event in self._events("got")]
        job = handle.job()
        is_refused = (refused.token, refused.data["value"]) == (event.token, "LeaseLost")
        if is_refused and got == [job.result] == self._recorded(job.id)["only"]:
            return []
        return [f"a sleeper met {refused}; what was recorded is {got}; {job}"]

    def _stop(self, pid: int) -> None:
        """Stop a process while it does not hold the lock of the store."""
        os.kill(pid, signal.SIGSTOP)
        while self.store.is_locked_by(pid):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)

    # What must be true

    def _events(self, kind: str) -> list[Event]:
        return [event for event in read(self.place) if event.kind == kind]

    def _recorded(self, job_id: str) -> dict[str, list[object]]:
        """The results of all steps, by name, in the order of their keys."""
        found: defaultdict[str, list[object]] = defaultdict(list)
        for step in sorted(app.queue.steps(job_id).steps, key=lambda step: (step.name, step.key)):
            found["only" if step.name == "work" else step.name].append(
                msgspec.json.decode(step.result)
            )
        return found

    def _check(self) -> list[str]:
        jobs = everything(app.queue)
        wrong = [f"{id} has not ended: {job}" for id, job in jobs.items() if job.state not in FINAL]
        got: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        ran: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in read(self.place):
            if event.kind in ("got", "ran"):
                (got if event.kind == "got" else ran)[event.id, event.data["step"]].append(event)
            elif event.kind == "undone":
                self.counted["undone"] += 1
            elif event.kind in ("killed", "worker"):
                self.counted["workers" if event.kind == "worker" else "killed at a boundary"] += 1
        for (id, name), events in got.items():
            values = {event.data["value"] for event in events}
            if len(values) != 1:
                wrong.append(f"{id} has had several results of {name}: {values}")
            first = min(event.token for event in events)
            again = [event for event in ran[id, name] if event.token > first]
            if again:
                wrong.append(f"{id} ran {name} again after it was recorded: {again}")
            recorded = " ".join(map(str, self._recorded(id)[name]))
            if name in ("s0", "s1", "s2", "s8", "s9", "only") and recorded not in values:
                wrong.append(f"{id} has recorded {recorded} for {name}, and was given {values}")
        self.counted["steps"] += len(got)
        for job in jobs.values():
            if job.kind == "ten_steps":
                wrong += self._check_job(job)
        children = [job for job in jobs.values() if job.kind == "child"]
        if len(children) != 2 * len(self.boundaries):
            wrong.append(f"{len(children)} children instead of {2 * len(self.boundaries)}")
        undos = [job for job in jobs.values() if job.kind == "take_back"]
        dead = [job for job in jobs.values() if job.state == "dead"]
        if len(undos) != len(dead):
            wrong.append(f"{len(undos)} undos of {len(dead)} dead jobs")
        return wrong

    def _check_job(self, job: tenure.Job) -> list[str]:
        wrong: list[str] = []
        if (job.state == "dead") != job.payload["ends_dead"]:
            wrong.append(f"{job.id} is {job.state}: {job.errors[-1:]}")
        names = Counter((step.name, step.key) for step in app.queue.steps(job.id).steps)
        if len(names) != STEPS - 1 + 2 + 1 or set(names.values()) != {1}:
            wrong.append(f"{job.id} has the steps {names}")  # no s5: its signal was there
        return wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.steps_kill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--store", choices=sorted(STORES), default="sqlite")
    parser.add_argument("--boundaries", type=int, default=len(BOUNDARIES), help="in each round")
    parser.add_argument("--nursery", nargs="+")
    options = parser.parse_args(arguments)
    if options.nursery:
        nursery(options.nursery)
    say(f"--seed {options.seed}")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0 or not total:
        place = Path(tempfile.mkdtemp(prefix="tenure-steps-kill-"))
        store = STORES[options.store](place)
        store.start()
        arena = Arena(place, store, options.seed + total["rounds"], options.boundaries)
        try:
            failures = arena.round(max(left, 0))
        finally:
            arena.stop()
            store.stop()
        total += arena.counted
        total["rounds"] += 1
        say(f"{max(0, end - time.monotonic()):.0f} s left: {told(total)}")
        if failures:
            for text in failures[:20]:
                say(text)
            say(f"{len(failures)} failures; see {place}")
            return 1
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
