"""The claims of a batch: what each still needs, and what it got so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tenure.engines.foundationdb import keyed_calls
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Answer


class Keyed:
    """A keyed call (ops.Once) that ends with claims."""

    def __init__(self, op: ops.Once) -> None:
        self.op = op
        self.calls: list[Call] = [
            Call(claim, self, number) for number, claim in keyed_calls.claims_of(op)
        ]
        self.stamps: set[bytes] = set()  # of the commits that included its claims
        self.answer: Answer | None = None

    @property
    def jobs(self) -> list[Job]:
        return [job for call in self.calls for job in call.jobs]


class Call:
    """A claim."""

    def __init__(self, op: ops.Claim, keyed: Keyed | None = None, number: int = 0) -> None:
        self.op = op
        self.keyed = keyed
        self.number = number  # its index among the operations of the keyed call
        self.left: int = op.limit
        self.jobs: list[Job] = []


def calls_of(batch: Sequence[ops.Claim | ops.Once]) -> tuple[list[Call], list[Keyed]]:
    """All claims in order, and the keyed calls among them."""
    calls: list[Call] = []
    keyed: list[Keyed] = []
    for op in batch:
        if isinstance(op, ops.Once):
            keyed.append(Keyed(op))
            calls += keyed[-1].calls
        else:
            calls.append(Call(op))
    return calls, keyed


def apart(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Claims one by one; those of one keyed call stay together."""
    for _, run in groupby(enumerate(calls), key=lambda one: one[1].keyed or one[0]):
        yield [call for _, call in run]
