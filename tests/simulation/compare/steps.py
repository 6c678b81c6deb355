"""The steps of a history as data, so that it can be stored, run again and shrunk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenure import features
from tenure.model import ops, queries

AnyOp = features.AnyOp | ops.Once | ops.Import
AnyQuery = features.AnyQuery | queries.Export
Call = tuple[AnyOp, ...]  # operations that one caller submits together


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Apply the calls of several callers as one batch; with `commit`, through a committer, which
    decides their order. `standing` claims wait there for jobs that the calls enqueue. Tokens are
    those of the model."""

    caller: int  # whose handle and clock
    calls: tuple[Call, ...]
    commit: bool = False
    standing: tuple[ops.Claim, ...] = ()


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Move the time forwards or back."""

    ms: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Compare the results of a query. Lists are read to their end."""

    caller: int
    query: AnyQuery


Step = Run | Wait | Ask


class History(msgspec.Struct, frozen=True):
    """Steps, and the engine and seed that they ran with."""

    engine: str
    seed: int
    steps: list[Step]

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @staticmethod
    def load(path: Path) -> History:
        return msgspec.json.decode(path.read_bytes(), type=History)
