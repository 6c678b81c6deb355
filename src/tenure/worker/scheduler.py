"""The scheduler: fires due schedules and runs the store's maintenance.

Any number of schedulers can run. Only one of them fires a given tick, because firing also moves the
schedule to its next time, in one transaction. Whether a schedule is due is decided by the store's
time, which is read with the schedules; the schedulers' own clocks do not matter. Maintenance is
done by the scheduler that holds a slot in the store; of several shards, in each of those that are
there.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection

from tenure.core.schedules import is_too_far
from tenure.errors import Busy, Closed, Forbidden, InvalidInput, StoreError, TenureError
from tenure.model.ops import Schedule
from tenure.queue import Queue
from tenure.worker.outage import Outage

log = logging.getLogger("tenure.scheduler")

LONGEST_SLEEP = 1.0  # seconds within which a schedule added by another process is noticed
GO_ON_SECONDS = 2.0  # for other schedules, if the store could not fire one
RETRY_MS = 1_000  # before a schedule that could not fire is tried again
UPKEEP_INTERVAL = 5.0  # seconds between two rounds
SLOT = ("tenure", "janitor")
SLOT_SECONDS = 60.0  # after which another scheduler takes over from one that died
RENEW_SECONDS = 20.0
MOST_AT_ONCE = 1_000  # jobs per maintenance step
MOST_STEPS = 10  # in a row, before schedules are checked again
LONGEST_PAUSE = 0.05  # seconds between two steps in a row
MOST_NEAR = 10_000  # times remembered


class Scheduler:
    """Fires schedules and maintains the store, in a separate thread."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        *,
        upkeep: bool = True,
        must_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """must_wait: whether maintenance has to wait, because it ends leases that have expired and
        this process has not renewed its own since it was suspended."""
        self._queue = queue
        self._must_wait = must_wait
        self._now = 0  # the store's time at the last check
        self._near: set[tuple[str, str, int]] = set()  # times known not to be too far ahead
        self._failed: Collection[str] = ()  # schedules that the store could not fire last time
        self._outage = Outage(log, queue.settings)
        self._stopped = threading.Event()
        self._janitor = Janitor(queue, name, self._stopped.wait) if upkeep else None
        self._thread = threading.Thread(target=self._work, name="tenure-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and let another scheduler do the maintenance."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._janitor is not None:
            self._janitor.release_slot()

    def _work(self) -> None:
        seconds = 0.0
        while not self._stopped.wait(seconds):
            seconds = LONGEST_SLEEP
            try:
                seconds = self.step()
                self._outage.is_over()
            except Forbidden as error:
                log.info("schedules and maintenance are left to the service: %s", error)
                return
            except TenureError as error:
                self._outage.goes_on("scheduling or maintenance failed", error)
            except Exception:
                log.exception("scheduling or maintenance failed, trying again")

    def step(self) -> float:
        """Run what is due. Returns the seconds until the next step."""
        began = self._queue.clock.monotonic()
        try:
            wait_ms = self.fire_due()
        finally:  # one shard of several may have failed
            if self._janitor is not None and not self._must_wait():
                self._janitor.step()
        if self._janitor is not None and self._janitor.has_more:
            return 0
        if wait_ms is None:
            return LONGEST_SLEEP
        left = wait_ms / 1000 - (self._queue.clock.monotonic() - began)
        return min(max(left, 0), LONGEST_SLEEP)

    def fire_due(self) -> int | None:
        """Fire due schedules. Returns the milliseconds until the next one is due, if any. If the
        store fails, raises its error after the other schedules: they may be on other shards."""
        waits: list[int] = []
        failed: dict[str, TenureError] = {}
        until = self._queue.clock.monotonic() + GO_ON_SECONDS
        found = self._queue.schedules.timetable()
        if found.now < self._now:
            self._near.clear()  # the store's clock was ahead, and may have set wrong times
        self._now = found.now
        for schedule in sorted(found.schedules, key=lambda one: one.name in self._failed):
            if schedule.disabled:
                continue
            if schedule.next_at > found.now and not self._is_too_far(schedule):
                waits.append(schedule.next_at - found.now)
                continue
            try:
                fired = self._queue.schedules.fire(schedule)
            except Closed:
                raise
            except (Busy, StoreError) as error:
                failed[schedule.name] = error
                if self._queue.clock.monotonic() > until:
                    break  # the next round begins with the others
            except TenureError as error:  # continue with the other schedules
                log.warning("schedule %s cannot fire: %s", schedule.name, error)
                waits.append(RETRY_MS)
            else:
                # If we fired it, its next time may have passed as well. Otherwise another
                # scheduler was first, or the next time was corrected.
                waits.append(0 if fired else RETRY_MS)
                if fired:
                    log.info("schedule %s has fired", schedule.name)
        self._failed = failed.keys()
        if failed:
            raise next(iter(failed.values()))
        return min(waits, default=None)

    def _is_too_far(self, schedule: Schedule) -> bool:
        """Whether the store has to correct the next time. A time that is near enough stays so
        while the store's clock moves forward, so it is checked only once."""
        times = (schedule.cron, schedule.tz, schedule.next_at)
        if times in self._near:
            return False
        try:
            if is_too_far(schedule, self._now):
                return True
        except InvalidInput:
            pass  # this machine does not know the time zone; the store may
        if len(self._near) >= MOST_NEAR:
            self._near.clear()
        self._near.add(times)
        return False


class Janitor:
    """Runs maintenance while it holds the slot."""

    def __init__(
        self, queue: Queue, name: str, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._queue = queue
        self._pause = pause
        self._name = f"{name}/{secrets.token_hex(4)}"  # unique even if names are not
        self._next_round = 0.0
        self._held_until = 0.0
        self._renew_at = 0.0
        self.has_more = False  # whether the last step ended before everything due was done

    def step(self) -> int:
        """Run a round of maintenance if it is due and we hold the slot. Returns how much was
        done."""
        now = self._queue.clock.monotonic()
        if now < self._next_round:
            return 0
        self._next_round = now + UPKEEP_INTERVAL
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            try:
                slots = self._queue.slots.take(*SLOT, self._name, SLOT_SECONDS, limit=1)
            except InvalidInput:  # a service, which maintains its store itself
                self._next_round = math.inf
                return 0
            # Counted from before the call, so that we never believe we hold it for too long.
            self._held_until = now + SLOT_SECONDS if slots.held else 0.0
        self.has_more = False
        done = 0
        for _ in range(MOST_STEPS):
            began = self._queue.clock.monotonic()
            if began >= self._held_until:
                return done
            found = self._queue.maintain(limit=MOST_AT_ONCE).total
            done += found
            if found < MOST_AT_ONCE:
                return done
            # A store may have one writer at a time, so leave some of the time to others.
            self._pause(min(self._queue.clock.monotonic() - began, LONGEST_PAUSE))
        self._next_round = now
        self.has_more = True
        return done

    def release_slot(self) -> None:
        """Give up the slot, so that another scheduler can take over."""
        if self._held_until:
            self._held_until = 0.0
            try:
                self._queue.slots.drop(*SLOT, self._name)
            except TenureError as error:
                log.warning("could not give up the maintenance slot: %s", error)
