"""Two SQLite files as one queue, and tenants that are known to be on different ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tenure
from tenure import Queue
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.shard import Shard
from tenure.queue import store_of
from tests.support import shards


class Tenants(NamedTuple):
    """The first two are on shard 0, the others on shard 1."""

    here: str
    here_too: str
    there: str
    there_too: str


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    names = [f"t{n}" for n in range(40)]
    on = [[name for name in names if shards.shard_of(tmp_path, name) == n] for n in (0, 1)]
    return Tenants(*on[0][:2], *on[1][:2])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs-{{0..1}}.db"


@pytest.fixture
def queue(url: str, tmp_path: Path) -> Iterator[Queue]:
    with tenure.connect(url) as queue:
        yield queue
    assert shards.audit(tmp_path) == []


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Callable[[int], Queue]]:
    """Opens one of the files alone, as no user should, to see what is in it."""
    opened: list[Queue] = []

    def open_one(number: int) -> Queue:
        opened.append(tenure.connect(f"sqlite:///{shards.files_of(tmp_path)[number]}"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def shards_of(queue: Queue) -> list[Shard]:
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    return list(engine._cluster.shards)
