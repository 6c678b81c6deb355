"""What explain says is what the next claim does, on random stores; and it says the same on every
engine."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

import tenure
from tenure import Job, Queue, Settings
from tenure.features import ACTIONS
from tenure.testing import ManualClock
from tests.conformance.conftest import Backend

TENANTS = ("a", "b", "c")
GROUPS = ("", "g", "h")
STEPS = 40


class History:
    """Random calls, the same for the same seed as long as the answers are the same."""

    def __init__(self, queue: Queue, clock: ManualClock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.chance = random.Random(seed)
        self.parents: list[str] = []
        self.held: list[Job] = []
        self.ids: list[str] = []

    def run(self) -> None:
        calls = [
            *[self._enqueue] * 6, *[self._claim] * 3, self._finish, self._limit, self._pause,
            self._wait, self._finish_parent, self._operate,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(calls)()

    def _id(self) -> str:
        self.ids.append(f"job-{len(self.ids)}")
        return self.ids[-1]

    def _enqueue(self) -> None:
        chance = self.chance
        for _ in range(chance.choice((1, 1, 3))):
            after = []
            if chance.random() < 0.15:
                self.parents.append(self._id())
                self.queue.enqueue("parents", id=self.parents[-1])
                after = chance.sample(self.parents, min(2, len(self.parents)))
            self.queue.enqueue(
                "q",
                id=self._id(),
                tenant=chance.choice(TENANTS),
                group=chance.choice(GROUPS),
                priority=chance.choice((0, 0, 0, 1, -1)),
                delay=chance.choice((0, 0, 0, 2, 20)),
                expires_in=chance.choice((None, None, None, 3, 30)),
                max_attempts=chance.choice((1, 2, 9)),
                if_parent_fails=chance.choice(("wait", "cancel", "run")),
                after=after,
            )

    def _claim(self) -> None:
        lease = self.chance.choice((1, 5, 60))
        many = self.chance.choice((1, 1, 2, 4))
        tenant = self.chance.choice((None, None, None, "a"))
        self.held += self.queue.claim("q", worker="w", lease=lease, limit=many, tenant=tenant)

    def _finish(self) -> None:
        if self.held:
            job = self.held.pop(self.chance.randrange(len(self.held)))
            end = self.chance.choice((self.queue.ack, self.queue.fail, self.queue.release))
            with suppress(tenure.LeaseLost):
                end(job)

    def _finish_parent(self) -> None:
        for job in self.queue.claim("parents", worker="w"):
            if self.chance.random() < 0.5:
                self.queue.ack(job)
            else:
                self.queue.fail(job, "no", fatal=True)

    def _operate(self) -> None:
        job = self.chance.choice(self.ids or ["none"])
        if job in self.ids:
            act = self.chance.choice(sorted(ACTIONS.keys() - {"delete"}))
            call = getattr(self.queue, act)
            call(job)

    def _scope(self) -> dict[str, Any]:
        return self.chance.choice(
            [{}, {"tenant": "a"}, {"tenant": "*"}, {"tenant": "a", "group": "g"},
             {"tenant": "*", "group": "h"}, {"tenant": "b", "group": "*"}]
        )  # fmt: skip

    def _limit(self) -> None:
        scope = self._scope()
        self.queue.limits.set("q", concurrency=self.chance.choice((1, 2, 3, 5)), **scope)
        if not scope and self.chance.random() < 0.5:
            self.queue.limits.set("q", rate=self.chance.choice((1, 3, 10)), per=5)
        if scope.get("tenant") and "group" not in scope:
            self.queue.limits.set("q", weight=self.chance.choice((1, 2, 5)), **scope)
        if self.chance.random() < 0.3:
            self.queue.limits.clear("q", **self._scope())

    def _pause(self) -> None:
        scope = self._scope()
        if "*" not in scope.values() or scope.get("group") == "h":
            self.queue.pause("q", **scope)
            if self.chance.random() < 0.8:
                self.queue.resume("q", **scope)

    def _wait(self) -> None:
        self.clock.advance(self.chance.choice((0.2, 1, 4, 25)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.one_store
def test_explain_says_what_the_next_claim_does(
    queue: Queue, clock: ManualClock, backend: Backend, seed: int
) -> None:
    history = History(queue, clock, seed)
    history.run()
    told = {id: queue.explain(id) for id in history.ids if _exists(queue, id)}
    claimed = {job.id for job in queue.claim("q", worker="w", limit=1000)}
    claimable = {id for id, one in told.items() if one.claimable and queue.get(id).queue == "q"}
    if backend.strict_turns:
        assert claimed == claimable
    else:
        assert claimed <= claimable
        assert bool(claimed) == bool(claimable)


def _exists(queue: Queue, id: str) -> bool:
    try:
        queue.get(id)
    except tenure.JobNotFound:
        return False
    return True


@pytest.mark.usefixtures("needs_strict_turns")
@pytest.mark.parametrize("seed", range(100, 112))
def test_explain_says_the_same_as_on_the_model(queue: Queue, clock: ManualClock, seed: int) -> None:
    model_clock = ManualClock()
    with tenure.connect("memory://", settings=Settings(), clock=model_clock) as model:
        histories = [History(queue, clock, seed), History(model, model_clock, seed)]
        for history in histories:
            history.run()
        assert histories[0].ids == histories[1].ids
        for id in histories[0].ids:
            if _exists(model, id):
                assert queue.explain(id) == model.explain(id)
