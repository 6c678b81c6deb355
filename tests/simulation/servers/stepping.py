"""Actors that take turns by a seed: each runs in a thread of its own, but only while it has the
baton, which it gives back before and after every commit and whenever it begins to read. There, and
between any two such steps, it may crash."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any


class Crashed(BaseException):
    """The program is gone, at this very point."""


def _closed() -> threading.Lock:
    """A door that lets one through each time it is released: much cheaper than a semaphore."""
    door = threading.Lock()
    door.acquire()
    return door


class Actor:
    """A program."""

    def __init__(self, name: str, driver: Driver, work: Callable[[Actor], None]) -> None:
        self.name = name
        self._driver = driver
        self._work = work
        self._go = _closed()
        self.crash = False
        self.done = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work(self)
        except BaseException as error:
            self.error = error
        self.done = True
        self._driver.back.release()

    def step(self) -> None:
        """Let others have a turn."""
        self._driver.back.release()
        self._go.acquire()
        if self.crash:
            self.crash = False
            raise Crashed

    def resume(self) -> None:
        self._go.release()
        self._driver.back.acquire()


class Driver:
    """Gives the baton to one actor after the other."""

    def __init__(self, chance: random.Random, crashes: float) -> None:
        self._chance = chance
        self._crashes = crashes
        self.back = _closed()
        self.actors: list[Actor] = []
        self.steps = 0
        self.crashed = 0

    def add(self, name: str, work: Callable[[Actor], None]) -> None:
        self.actors.append(Actor(name, self, work))

    def run(self, between: Callable[[int], None]) -> None:
        """Until all are done; `between` is called after each step."""
        while running := [actor for actor in self.actors if not actor.done]:
            actor = self._chance.choice(running)
            if self._chance.random() < self._crashes:
                actor.crash = True
                self.crashed += 1
            actor.resume()
            self.steps += 1
            if actor.error is not None:
                raise actor.error
            between(self.steps)


class SteppedDatabase:
    """A database whose users take turns."""

    def __init__(self, db: Any, actor: Actor) -> None:
        self._db = db
        self._actor = actor

    def create_transaction(self) -> Any:
        self._actor.step()
        return SteppedTransaction(self._db.create_transaction(), self._actor)


class SteppedTransaction:
    """A transaction of such a database."""

    def __init__(self, tr: Any, actor: Actor) -> None:
        self._tr = tr
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def __getitem__(self, key: Any) -> Any:
        return self._tr[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tr[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._tr[key]

    def commit(self) -> Any:
        self._actor.step()
        return SteppedFuture(self._tr.commit(), self._actor)

    def on_error(self, error: Any) -> Any:
        self._actor.step()
        return self._tr.on_error(error)


class SteppedFuture:
    """The answer to a commit: a program may crash before it hears it."""

    def __init__(self, future: Any, actor: Actor) -> None:
        self._future = future
        self._actor = actor

    def wait(self) -> Any:
        try:
            return self._future.wait()
        finally:
            self._actor.step()
