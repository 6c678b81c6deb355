"""A token that is bound: everything is decided in the store, where nothing comes in between."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest

import tenure
from tenure import Forbidden, Queue, Settings
from tenure.model import ops
from tenure.queue.sync_async import Wanted
from tenure.server.auth import Scope
from tenure.server.guard import Guarded
from tenure.testing import ManualClock
from tests.server.conftest import token
from tests.server.examples import OPS, Example, fill, request_of

MINE = token("mine", *Scope, tenants=("ours",))


class Watched(Queue):
    """Records the calls to the store."""

    calls: list[Wanted]

    async def ado(self, wanted: Wanted) -> Any:
        self.calls.append(wanted)
        return await super().ado(wanted)


@pytest.fixture
def watched() -> Watched:
    inner = tenure.connect("memory://", settings=Settings(), clock=ManualClock())
    fill(inner, "ours", "tenant")
    fill(inner, "theirs", "tenant")
    inner.__class__ = Watched
    assert isinstance(inner, Watched)
    inner.calls = []
    return inner


@pytest.mark.parametrize("n", range(len(OPS)))
def test_an_operation_is_one_call_to_the_store(watched: Watched, n: int) -> None:
    """It was one for each job that it names, and then one that changed them all."""
    request = request_of(watched, "POST", Example("/v1/ops", OPS[n]), "ours", "tenant")
    assert request.content is not None
    kind = next(kind for kind in get_args(ops.AnyOp) if kind.__name__ == OPS[n]["op"])
    op = msgspec.json.decode(request.content, type=kind)
    try:
        asyncio.run(Guarded(watched, MINE).ado([op]))
    except Forbidden:
        assert watched.calls == []
    else:
        assert len(watched.calls) == 1
