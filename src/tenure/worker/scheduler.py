"""What time asks for: schedules that are due, and the store's upkeep.

Any number may run. A tick of a schedule is fired by one of them, since the store moves it on with
the firing. What is due is judged by the store's time, which comes with the schedules: the clocks of
schedulers decide nothing. The upkeep is done by the one that holds a slot in the store.
"""

from __future__ import annotations

import logging
import secrets
import threading

from tenure.core.schedules import is_too_far
from tenure.errors import Busy, Closed, InvalidInput, StoreError, TenureError
from tenure.model.ops import Schedule
from tenure.queue import Queue

log = logging.getLogger("tenure.scheduler")

LONGEST_SLEEP = 1.0  # seconds until a schedule that another process put is noticed
RETRY_MS = 1_000  # until a schedule that could not fire is tried again
UPKEEP_INTERVAL = 5.0  # seconds between two rounds
SLOT = ("tenure", "janitor")
SLOT_SECONDS = 60.0  # after which another takes over from one that died
RENEW_SECONDS = 20.0
MOST_AT_ONCE = 1_000  # jobs that one step of the upkeep looks at
MOST_STEPS = 100  # in a row, before schedules are looked at again
MOST_NEAR = 10_000  # times that are remembered


class Scheduler:
    """Fires schedules and looks after the store, in a thread of its own."""

    def __init__(self, queue: Queue, name: str, *, upkeep: bool = True) -> None:
        self._queue = queue
        self._janitor = Janitor(queue, name) if upkeep else None
        self._now = 0  # of the store, when it was last looked at
        self._near: set[tuple[str, str, int]] = set()  # the times that are known not to be too far
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tenure-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, and let another do the upkeep."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._janitor is not None:
            self._janitor.resign()

    def _work(self) -> None:
        seconds = 0.0
        while not self._stopped.wait(seconds):
            seconds = LONGEST_SLEEP
            try:
                seconds = self.step()
            except TenureError as error:
                log.warning("the store could not be looked after, trying again: %s", error)
            except Exception:
                log.exception("the store could not be looked after, trying again")

    def step(self) -> float:
        """Do what is due; returns the seconds until something is again."""
        began = self._queue.clock.monotonic()
        wait_ms = self.fire_due()
        if self._janitor is not None:
            self._janitor.step()
        if wait_ms is None:
            return LONGEST_SLEEP
        left = wait_ms / 1000 - (self._queue.clock.monotonic() - began)
        return min(max(left, 0), LONGEST_SLEEP)

    def fire_due(self) -> int | None:
        """Fire what is due; returns the milliseconds until a schedule is due again, if there is
        one."""
        waits: list[int] = []
        found = self._queue.timetable()
        if found.now < self._now:
            self._near.clear()  # the store's clock was ahead, and may have left times behind
        self._now = found.now
        for schedule in found.schedules:
            if schedule.next_at > found.now and not self._is_too_far(schedule):
                waits.append(schedule.next_at - found.now)
                continue
            try:
                fired = self._queue.fire(schedule)
            except (Busy, Closed, StoreError):
                raise
            except TenureError as error:  # the other schedules must not suffer for it
                log.warning("schedule %s cannot fire: %s", schedule.name, error)
                waits.append(RETRY_MS)
            else:
                # If it was we who fired, its next time may have passed as well. Else another was
                # first, or it was corrected.
                waits.append(0 if fired else RETRY_MS)
                if fired:
                    log.info("schedule %s has fired", schedule.name)
        return min(waits, default=None)

    def _is_too_far(self, schedule: Schedule) -> bool:
        """Whether the store has to correct the next time. One that is near enough stays so while
        the store's time goes forward, and is looked at once."""
        times = (schedule.cron, schedule.tz, schedule.next_at)
        if times in self._near:
            return False
        try:
            if is_too_far(schedule, self._now):
                return True
        except InvalidInput:
            pass  # of this machine's time zones, not of the store's
        if len(self._near) >= MOST_NEAR:
            self._near.clear()
        self._near.add(times)
        return False


class Janitor:
    """Does the upkeep while it holds the slot."""

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue = queue
        self._name = f"{name}/{secrets.token_hex(4)}"  # two of one name are two
        self._next_round = 0.0
        self._held_until = 0.0
        self._renew_at = 0.0

    def step(self) -> int:
        """Do a round if it is time and it is ours to do; answers with how much was done."""
        now = self._queue.clock.monotonic()
        if now < self._next_round:
            return 0
        self._next_round = now + UPKEEP_INTERVAL
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            slots = self._queue.take_slot(*SLOT, self._name, SLOT_SECONDS, limit=1)
            # Counted from before it was asked for: it is never believed to be held for longer
            # than it is.
            self._held_until = now + SLOT_SECONDS if slots.held else 0.0
        done = 0
        for _ in range(MOST_STEPS):
            if self._queue.clock.monotonic() >= self._held_until:
                return done
            found = self._queue.maintain(limit=MOST_AT_ONCE).total
            done += found
            if found < MOST_AT_ONCE:
                return done
        self._next_round = now  # there is more
        return done

    def resign(self) -> None:
        """Let another do it."""
        if self._held_until:
            self._held_until = 0.0
            try:
                self._queue.drop_slot(*SLOT, self._name)
            except TenureError as error:
                log.warning("the upkeep could not be handed over: %s", error)
