"""Enqueue: validate each call as a whole, then insert all jobs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from tenure.core.grants import Owners
from tenure.core.moves import PARENT_FAILED, settle, tell
from tenure.core.transaction import Existing, J, Transaction, UniqueKey
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.model import ops
from tenure.model.job import JobSpec, State, check_cycles
from tenure.model.ops import Answer, Grant

FAILED = (State.DEAD, State.CANCELLED)


class Accepted:
    """The result of an accepted call, without the time, which the store sets later."""

    __slots__ = ("created", "ids")

    def __init__(self, ids: list[str], created: list[bool]) -> None:
        self.ids: list[str] = ids
        self.created: list[bool] = created


class Plan(Generic[J]):
    """Accepted calls, which are executed together."""

    def __init__(self, tx: Transaction[J], batch: Sequence[ops.Enqueue], leaving: str = "") -> None:
        """leaving: a job that is about to be done. Its unique key is free, and no job waits for
        it."""
        self._tx = tx
        self._leaving = leaving
        self._accepted: list[JobSpec] = []
        self._ids: set[str] = set()
        self._keys: dict[UniqueKey, str] = {}
        named = [
            (op.grant, job_id)
            for op in batch
            if op.grant is not None
            for spec in op.jobs
            for job_id in (spec.id, *spec.after)
        ]
        self._owners = Owners(tx, named)
        self._existing = self._look_up(batch)
        self._owners.look_up()  # parents have been locked

    def _look_up(self, batch: Sequence[ops.Enqueue]) -> Existing:
        wanted = [spec for op in batch for spec in op.jobs]
        ids = [spec.id for spec in wanted if not spec.made_up_id]
        keys = [
            (spec.queue, spec.tenant, spec.unique_key)
            for spec in wanted
            if spec.unique_key is not None
        ]
        parents = [
            parent
            for op in batch
            for spec in op.jobs
            for parent in spec.after
            if self._owners.shows(op.grant, parent)
        ]
        return self._tx.existing(ids, keys, list(dict.fromkeys(parents)))

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
            elif op.if_exists == "error" or self._is_of_others(duplicate, accepted, op.grant):
                return duplicate
            else:
                ids.append(duplicate.job_id)
            created.append(duplicate is None)
        problem = self._bad_parents(accepted, op.grant)
        if problem is not None:
            return problem
        self._accepted.extend(accepted.values())
        self._owners.add(accepted.values())
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

    def _is_of_others(
        self, duplicate: Duplicate, accepted: dict[str, JobSpec], grant: Grant | None
    ) -> bool:
        """Whether an id is taken by a job that the call must not see. A unique key never is."""
        taken = duplicate.field == "id" and duplicate.job_id not in accepted
        return taken and not self._owners.shows(grant, duplicate.job_id)

    def _bad_parents(self, accepted: dict[str, JobSpec], grant: Grant | None) -> TenureError | None:
        for spec in accepted.values():
            for parent in spec.after:
                known = parent in self._ids or parent in self._existing.parents
                if parent not in accepted and not (known and self._owners.shows(grant, parent)):
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


def needs_no_lookup(specs: Sequence[JobSpec]) -> bool:
    """Whether nothing in the store can prevent these jobs from being inserted."""
    return all(spec.made_up_id and spec.unique_key is None and not spec.after for spec in specs)


# path: an enqueue by the rules
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
    plan = Plan(tx, batch)
    if len(batch) > 1 and plan.ends_jobs:
        return [answer for op in batch for answer in enqueue(tx, [op])]
    accepted = [plan.add(op) for op in batch]
    plan.carry_out()
    return [
        ops.Enqueued(one.ids, one.created, tx.now) if isinstance(one, Accepted) else one
        for one in accepted
    ]
