"""Enqueue: validate each call as a whole, then insert all jobs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from tenure.core.moves import PARENT_FAILED, settle, tell
from tenure.core.transaction import Existing, J, Transaction, UniqueKey
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.model import ops
from tenure.model.job import JobSpec, State, check_cycles
from tenure.model.ops import Answer

FAILED = (State.DEAD, State.CANCELLED)


class Accepted:
    """The result of an accepted call, without the time, which the store sets later."""

    __slots__ = ("created", "ids")

    def __init__(self, ids: list[str], created: list[bool]) -> None:
        self.ids: list[str] = ids
        self.created: list[bool] = created


class Plan(Generic[J]):
    """Accepted calls, which are carried out together."""

    def __init__(self, tx: Transaction[J], wanted: Sequence[JobSpec], leaving: str = "") -> None:
        """leaving: a job that is about to be done. Its unique key is free, and no job waits for
        it."""
        self._tx = tx
        self._leaving = leaving
        self._accepted: list[JobSpec] = []
        self._ids: set[str] = set()
        self._keys: dict[UniqueKey, str] = {}
        self._existing = _existing(tx, wanted)

    @property
    def ends_jobs(self) -> bool:
        """Whether a job may finish as soon as it is enqueued, because a parent has failed."""
        return any(state in FAILED for state in self._existing.parents.values())

    def add(self, op: ops.Enqueue) -> Accepted | TenureError:
        """Accept all jobs of a call, or none."""
        accepted: dict[str, JobSpec] = {}
        keys: dict[UniqueKey, str] = {}
        ids: list[str] = []
        created: list[bool] = []
        for spec in op.jobs:
            duplicate = self._duplicate(spec, accepted, keys)
            if duplicate is None:
                accepted[spec.id] = spec
                ids.append(spec.id)
            elif op.if_exists == "error":
                return duplicate
            else:
                ids.append(duplicate.job_id)
            created.append(duplicate is None)
        problem = self._bad_parents(accepted)
        if problem is not None:
            return problem
        self._accepted.extend(accepted.values())
        self._ids.update(accepted)
        self._keys.update(keys)
        return Accepted(ids, created)

    def _duplicate(
        self, spec: JobSpec, accepted: dict[str, JobSpec], keys: dict[UniqueKey, str]
    ) -> Duplicate | None:
        if spec.id in self._existing.ids or spec.id in accepted or spec.id in self._ids:
            return Duplicate("id", spec.id, spec.id)
        if spec.unique_key is not None:
            key = (spec.queue, spec.tenant, spec.unique_key)
            holder = keys.get(key) or self._keys.get(key) or self._existing.holders.get(key)
            if holder is not None and holder != self._leaving:
                return Duplicate("unique_key", spec.unique_key, holder)
            keys[key] = spec.id
        return None

    def _bad_parents(self, accepted: dict[str, JobSpec]) -> TenureError | None:
        for spec in accepted.values():
            for parent in spec.after:
                known = parent in accepted or parent in self._ids
                if not known and parent not in self._existing.parents:
                    return DependencyNotFound(parent)
        try:
            check_cycles([spec for spec in accepted.values() if spec.after])
        except DependencyCycle as cycle:
            return cycle
        return None

    def carry_out(self) -> None:
        """Insert all accepted jobs."""
        specs = self._accepted
        if not specs:
            return
        if not any(spec.after for spec in specs):
            self._tx.insert(specs, None)
            return
        parents = dict(self._existing.parents)
        if self._leaving:
            parents[self._leaving] = State.DONE
        waits = [
            [parent for parent in spec.after if parents.get(parent) is not State.DONE]
            for spec in specs
        ]
        self._tx.insert(specs, waits)
        self._tell_of_failed(specs, waits, parents)

    def _tell_of_failed(
        self, specs: list[JobSpec], waits: list[list[str]], parents: dict[str, State]
    ) -> None:
        failed = [
            (spec.id, parent)
            for spec, mine in zip(specs, waits, strict=True)
            for parent in mine
            if parents.get(parent) in FAILED
        ]
        if not failed:
            return
        self._tx.load(child for child, _ in failed)
        for child_id, parent in failed:
            child = self._tx.job(child_id)
            assert child is not None
            tell(self._tx, child, parent, PARENT_FAILED)
        settle(self._tx)


def _existing(tx: Transaction[J], wanted: Sequence[JobSpec]) -> Existing:
    ids = [spec.id for spec in wanted if not spec.made_up_id]
    keys = [
        (spec.queue, spec.tenant, spec.unique_key) for spec in wanted if spec.unique_key is not None
    ]
    parents = list(dict.fromkeys(parent for spec in wanted for parent in spec.after))
    return tx.existing(ids, keys, parents)


def needs_no_lookup(specs: Sequence[JobSpec]) -> bool:
    """Whether nothing in the store can prevent these jobs from being inserted."""
    return all(spec.made_up_id and spec.unique_key is None and not spec.after for spec in specs)


def enqueue(tx: Transaction[J], batch: Sequence[ops.Enqueue]) -> list[Answer]:
    """Run several calls in one pass, unless a job may finish as soon as it is enqueued."""
    specs = [spec for op in batch for spec in op.jobs]
    if needs_no_lookup(specs):
        if specs:
            tx.insert(specs, None)
        return [
            ops.Enqueued([spec.id for spec in op.jobs], [True] * len(op.jobs), tx.now)
            for op in batch
        ]
    plan = Plan(tx, specs)
    if len(batch) > 1 and plan.ends_jobs:
        return [answer for op in batch for answer in enqueue(tx, [op])]
    accepted = [plan.add(op) for op in batch]
    plan.carry_out()
    return [
        ops.Enqueued(one.ids, one.created, tx.now) if isinstance(one, Accepted) else one
        for one in accepted
    ]
