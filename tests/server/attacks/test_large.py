"""Large changes of one token leave time for those of others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import tenure
from tenure.model import ops
from tenure.model.ops import Op
from tenure.queue import Layer, Store, Wanted, store_of
from tenure.server.auth import Tokens
from tenure.server.large import LARGE, Spaced
from tenure.server.routes import make_app
from tenure.server.traffic import Pace, Spacing
from tests.server.conftest import Client, token

SECONDS = 0.05  # that a commit takes
LARGE_ONE: Sequence[Op] = [
    ops.Cancel(tuple(map(str, range(100))))
] * 26  # one id counts as a quarter
SMALL_ONE = LARGE_ONE[:10]


class Noted(Layer):
    """A store whose commits take some time. Notes when each begins and ends."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.times: list[tuple[float, float]] = []
        self.error: Exception | None = None

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        return self._commit()

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        began, done = loop.time(), loop.create_future()
        loop.call_later(SECONDS, done.set_result, None)
        await done
        self.times.append((began, loop.time()))
        if self.error is not None:
            raise self.error


def times(*batches: Sequence[Op], error: Exception | None = None) -> list[tuple[float, float]]:
    """When commits of one token begin and end, in seconds since the first began."""

    async def act() -> None:
        spaced = Spaced(noted, Spacing(Pace(0.5, 1.0)))
        await asyncio.gather(*map(spaced.ado, batches), return_exceptions=True)

    with tenure.connect("memory://") as queue:
        noted = Noted(store_of(queue))
        noted.error = error
        asyncio.run(act())
    first = min(noted.times)[0]
    return sorted((began - first, ended - first) for began, ended in noted.times)


@pytest.mark.parametrize("error", [None, tenure.StoreError("away")])
def test_large_changes_are_made_one_after_the_other_with_rests(error: Exception | None) -> None:
    found = times(LARGE_ONE, LARGE_ONE, LARGE_ONE, error=error)
    for (began, ended), (following, _) in itertools.pairwise(found):
        assert following - ended >= 0.9 * (ended - began)


def test_small_changes_do_not_wait_for_large_ones() -> None:
    found = times(LARGE_ONE, SMALL_ONE, SMALL_ONE)
    assert max(began for began, _ in found) < SECONDS


@pytest.mark.parametrize("required", [True, False])
def test_only_with_tokens_are_large_changes_spaced_out(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    """Without tokens, nobody else would profit from the rest."""
    spaced: list[int] = []

    async def apply(self: Spacing, change: Callable[[], Awaitable[Any]]) -> Any:
        spaced.append(1)
        return await change()

    monkeypatch.setattr(Spacing, "apply", apply)
    tokens = Tokens([token("greedy")]) if required else Tokens([])
    with tenure.connect("memory://") as queue, asyncio.Runner() as runner:
        service = make_app(queue, tokens=tokens)
        client = Client(service, runner, "greedy" if required else None)
        client.post("/v1/jobs", [{"queue": "q"}] * (LARGE - 1))
        assert spaced == []
        client.post("/v1/jobs", [{"queue": "q"}] * LARGE)
        assert spaced == ([1] if required else [])
        service.close()
