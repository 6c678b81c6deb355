"""A service is killed and restarted under many callers; then their journals must agree with it.

    python -m tests.crash.service_kill --seconds 60 --seed 7

The seed decides what is requested, and when the service is killed; the rest depends on timing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tenure
from tests.crash import service_checks
from tests.crash.checks import Evidence, broken, stuck
from tests.crash.journal import Journal, read
from tests.crash.kill import Tomorrow, everything, say, told
from tests.crash.service_callers import QUEUE, Caller, FirecrawlCaller, NativeCaller
from tests.server.process import ServiceProcess
from tests.support.audit import audit

ROUND_SECONDS = 60.0  # then everything is checked, and a new file is used
CONNECTIONS = 200
KILLS = 5  # in each round; it is also stopped gracefully once
COUNTED = ("enqueued", "claimed", "acked", "removed", "refused", "refused again", "cut")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.service_kill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--kills", type=int, default=KILLS, help="in each round of 60 seconds")
    options = parser.parse_args(arguments)
    say(f"--seed {options.seed}")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 1 or not total:
        folder = Path(tempfile.mkdtemp(prefix="tenure-service-kill-"))
        arena = Arena(folder, options.seed + total["rounds"], options.connections)
        failures = arena.round(min(left, ROUND_SECONDS), options.kills)
        total += arena.counted
        total["rounds"] += 1
        say(f"{max(0, end - time.monotonic()):.0f} s left: {told(total)}")
        if failures:
            for text in failures[:20]:
                say(text)
            say(f"{len(failures)} failures with --seed {arena.seed}; see {folder}")
            return 1
        shutil.rmtree(folder)
    return 0


class Arena:
    """One service on one file, and its callers."""

    def __init__(self, folder: Path, seed: int, connections: int) -> None:
        self.folder = folder
        self.seed = seed
        self.counted: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._wrong: list[str] = []
        self._service = ServiceProcess(folder)
        journal = Journal(folder / "callers.journal")
        kinds: tuple[type[Caller], ...] = (NativeCaller, FirecrawlCaller)
        self._callers = [
            kinds[n % 2](f"c{n}", self._service, journal, seed) for n in range(connections)
        ]

    def round(self, seconds: float, kills: int) -> list[str]:
        """Kill the service so many times. Returns what is wrong afterwards."""
        self._service.start()
        try:
            asyncio.run(self._live(seconds, kills))
            return self._check()
        finally:
            self._service.kill()

    async def _live(self, seconds: float, kills: int) -> None:
        over = asyncio.Event()
        calls = [asyncio.create_task(one.call_until(over)) for one in self._callers]
        blows = [self._kill] * kills + [self._stop]
        self._random.shuffle(blows)
        start, pause = time.monotonic(), seconds / (len(blows) + 1)
        for n, blow in enumerate(blows, 1):
            # At any moment: what else would be worth a kill?
            at = start + pause * (n + self._random.uniform(-0.3, 0.3))
            await asyncio.sleep(max(0, at - time.monotonic()))
            await asyncio.to_thread(blow)
            await asyncio.sleep(self._random.random() * 0.3)
            await asyncio.to_thread(self._service.start)
        await asyncio.sleep(max(0, start + seconds - time.monotonic()))
        over.set()
        await asyncio.gather(*calls)

    def _kill(self) -> None:
        self._service.kill()
        self.counted["kills"] += 1

    def _stop(self) -> None:
        """Stop the service gracefully while all are calling."""
        if self._service.stop() != 0:
            self._wrong.append(f"the service did not end well:\n{self._service.log}")
        self.counted["stops"] += 1

    def _check(self) -> list[str]:
        """Check what the service reports, what is in the file, and that everything that can run
        does."""
        url = self._service.url
        jobs, stats = service_checks.asked_of(url)
        active = service_checks.active_of(url)
        seen = Evidence(read(self.folder), jobs)
        failures = broken(seen)
        failures += service_checks.counts_agree(url, jobs, stats)
        failures += service_checks.what_is_refused_the_second_time_was_done_the_first(seen)
        failures += service_checks.every_lease_is_somebodys(seen)
        failures += service_checks.marks_are_as_they_were_told(seen, active)
        self.counted += Counter({name: len(seen.events[name]) for name in COUNTED})
        self._stop()
        return failures + self._wrong + audit(self.folder / "jobs.db") + self._run_the_rest(seen)

    def _run_the_rest(self, seen: Evidence) -> list[str]:
        """Nothing is stuck: once all leases have expired, every job can be done."""
        wrong: list[str] = []
        with tenure.connect(self._service.store, clock=Tomorrow()) as queue:
            while jobs := queue.claim([QUEUE, "firecrawl"], limit=1000):
                wrong += [str(error) for error in queue.ack_many(jobs) if error is not None]
            found = everything(queue)
        acked = {event.id for event in seen.events["acked"]}
        missing = [id for id in acked if id not in found or found[id].state != "done"]
        wrong += [f"{id} was done, and is not any more" for id in missing]
        return wrong + stuck(found) + audit(self.folder / "jobs.db")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
