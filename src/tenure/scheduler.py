"""What time asks for: schedules that are due, and the store's upkeep.

Any number may run. A tick of a schedule is fired by one of them, since the store moves it on with
the firing. The upkeep is done by the one that holds a slot in the store.
"""

from __future__ import annotations

import logging
import secrets
import threading

from tenure.errors import Busy, Closed, StoreError, TenureError
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


class Scheduler:
    """Fires schedules and looks after the store, in a thread of its own."""

    def __init__(self, queue: Queue, name: str, *, upkeep: bool = True) -> None:
        self._queue = queue
        self._janitor = Janitor(queue, name) if upkeep else None
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
        """Do what is due; answers with the seconds until something is again."""
        next_at = self.fire_due()
        if self._janitor is not None:
            self._janitor.step()
        if next_at is None:
            return LONGEST_SLEEP
        return min(max(next_at - self._queue.clock.now_ms(), 0) / 1000, LONGEST_SLEEP)

    def fire_due(self) -> int | None:
        """Fire what is due; answers with the next time of any schedule."""
        times: list[int] = []
        for schedule in self._queue.schedules():
            now = self._queue.clock.now_ms()
            if schedule.next_at > now:
                times.append(schedule.next_at)
                continue
            try:
                fired = self._queue.fire(schedule)
            except (Busy, Closed, StoreError):
                raise
            except TenureError as error:  # the others shall not suffer for it
                log.warning("schedule %s cannot fire: %s", schedule.name, error)
                times.append(now + RETRY_MS)
            else:
                # It has a new time now, which may have passed as well, if it was we who fired.
                # Else another was first, or it is not yet time by the clock of the store.
                times.append(0 if fired else now + RETRY_MS)
                if fired:
                    log.info("schedule %s has fired", schedule.name)
        return min(times, default=None)


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
