"""Enqueue: check calls that come in a row together, then add their jobs in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from tenure import ops, states
from tenure.engines.postgres.rows import CANCELLED, DEAD, DONE, WAITING, options_of
from tenure.engines.postgres.transaction import Transaction
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.job import JobSpec, check_cycles
from tenure.ops import Answer

Key = tuple[str, str, str]  # queue, tenant, unique key
Parent = tuple[int, int]  # place and state of a job that others wait for


class Plan:
    """Calls that were found possible, to be carried out together."""

    def __init__(self, tx: Transaction, wanted: Sequence[JobSpec], leaving: str = "") -> None:
        self._tx = tx
        self._leaving = leaving  # a job that is about to end: its key is free
        self._accepted: list[JobSpec] = []
        self._named: set[str] = set()
        self._keys: dict[Key, str] = {}
        self._look(wanted)

    def _look(self, wanted: Sequence[JobSpec]) -> None:
        """Read, in one go, what stands against these jobs, and what they wait for."""
        named = [spec.id for spec in wanted if not spec.made_up_id]
        keys = [_key_of(spec) for spec in wanted if spec.unique_key is not None]
        after = list({i: None for spec in wanted for i in spec.after})
        db = self._tx.db
        held = db.send("held_ids", named) if named else None
        holders = db.send("key_holders", *map(list, zip(*keys, strict=True))) if keys else None
        parents = db.send("parents", after) if after else None
        self._held: set[str] = {row[0] for row in held.fetchall()} if held else set()
        self._holders: dict[Key, str] = (
            {(q, t, k): job_id for q, t, k, job_id in holders.fetchall()} if holders else {}
        )
        self._parents: dict[str, Parent] = (
            {job_id: (seq, code) for job_id, seq, code in parents.fetchall()} if parents else {}
        )

    @property
    def ends_jobs(self) -> bool:
        """Whether a job may end as soon as it is enqueued, since one it waits for failed."""
        return any(code in (DEAD, CANCELLED) for _, code in self._parents.values())

    @property
    def adds(self) -> bool:
        """Whether any job was accepted."""
        return bool(self._accepted)

    def add(self, op: ops.Enqueue) -> Answer:
        """Accept the jobs of one call, or answer why not. Its time is filled in when it is
        carried out."""
        jobs = op.jobs
        if all(spec.made_up_id and spec.unique_key is None and not spec.after for spec in jobs):
            self._accepted.extend(jobs)
            return ops.Enqueued([spec.id for spec in jobs], [True] * len(jobs), 0)
        accepted: dict[str, JobSpec] = {}
        keys: dict[Key, str] = {}
        ids: list[str] = []
        created: list[bool] = []
        for spec in jobs:
            held = self._duplicate(spec, accepted, keys)
            if held is None:
                accepted[spec.id] = spec
                ids.append(spec.id)
            elif op.if_exists == "error":
                return held
            else:
                ids.append(held.job_id)
            created.append(held is None)
        problem = self._bad_parents(accepted)
        if problem is not None:
            return problem
        self._accepted.extend(accepted.values())
        self._named.update(accepted)
        self._keys.update(keys)
        return ops.Enqueued(ids, created, 0)

    def _duplicate(
        self, spec: JobSpec, accepted: dict[str, JobSpec], keys: dict[Key, str]
    ) -> Duplicate | None:
        if spec.id in self._held or spec.id in accepted or spec.id in self._named:
            return Duplicate("id", spec.id, spec.id)
        if spec.unique_key is not None:
            key = _key_of(spec)
            holder = keys.get(key) or self._keys.get(key) or self._holders.get(key)
            if holder is not None and holder != self._leaving:
                return Duplicate("unique_key", spec.unique_key, holder)
            keys[key] = spec.id
        return None

    def _bad_parents(self, accepted: dict[str, JobSpec]) -> TenureError | None:
        for spec in accepted.values():
            for parent in spec.after:
                known = parent in accepted or parent in self._named or parent in self._parents
                if not known:
                    return DependencyNotFound(parent)
        try:
            check_cycles([spec for spec in accepted.values() if spec.after])
        except DependencyCycle as cycle:
            return cycle
        return None

    def carry_out(self) -> None:
        """Add every job that was accepted."""
        specs = self._accepted
        if not specs:
            return
        if self._leaving in self._parents:
            self._parents[self._leaving] = (self._parents[self._leaving][0], DONE)
        new = {spec.id for spec in specs} if any(spec.after for spec in specs) else set()
        waits = [
            bool(spec.after) and any(i in new or self._parents[i][1] != DONE for i in spec.after)
            for spec in specs
        ]
        self._tx.free_keys()
        now, seqs = self._insert(specs, waits)
        if self._tx.given is None:
            self._tx.now = now
        if any(waits):
            self._wait(specs, seqs, waits)

    def _insert(self, specs: list[JobSpec], waits: list[bool]) -> tuple[int, list[int]]:
        columns = columns_of(specs, waits)
        row = self._tx.db.one("enqueue", self._tx.given, *columns)
        assert row is not None
        return row[0], row[1]

    def _wait(self, specs: list[JobSpec], seqs: list[int], waits: list[bool]) -> None:
        """Note who waits for whom, and tell those whose parent has failed already."""
        new = {spec.id: (seq, WAITING) for spec, seq in zip(specs, seqs, strict=True)}
        known = self._parents | new
        pairs: list[tuple[int, int]] = []
        bad: list[tuple[int, int]] = []
        for spec, seq, waiting in zip(specs, seqs, waits, strict=True):
            parents = [known[i] for i in spec.after] if waiting else []
            pairs += [(parent, seq) for parent, code in parents if code != DONE]
            bad += [(seq, parent) for parent, code in parents if code in (DEAD, CANCELLED)]
        self._tx.db.send("insert_deps", [p for p, _ in pairs], [child for _, child in pairs])
        self._tx.have_children(i for spec in specs for i in spec.after)
        if bad:
            self._tx.flush()  # and keep what is loaded: other acknowledgements go on with it
            children = {row.seq: row for row in self._tx.load_places([seq for seq, _ in bad])}
            for seq, parent in bad:
                self._tx.tell_child(children[seq], parent, states.ParentFailed())
            self._tx.settle()
            self._tx.flush()


# A job with nothing beyond these is ready at once.
_COMMON = JobSpec.__struct_fields__.index("delay_ms")
_PLAIN = astuple(JobSpec("", "", msgspec.Raw(b"")))[_COMMON:]
_lane_of = attrgetter("queue", "tenant", "group")


def columns_of(specs: list[JobSpec], waits: list[bool]) -> list[list[Any]]:
    """All that the server needs to know of new jobs."""
    lanes: dict[tuple[str, str, str], int] = {}
    numbers: list[int] = []
    for names, run in groupby(specs, key=_lane_of):
        number = lanes.setdefault(names, len(lanes) + 1)
        numbers.extend([number] * sum(1 for _ in run))
    rest: list[list[Any]] = [[] for _ in range(6)]
    if not all(astuple(spec)[_COMMON:] == _PLAIN for spec in specs):
        rest = [
            [spec.unique_key for spec in specs],
            [options_of(spec) for spec in specs],
            [spec.run_at for spec in specs],
            [spec.delay_ms for spec in specs],
            [spec.expires_in_ms for spec in specs],
            waits,
        ]
    return [
        *map(list, zip(*lanes, strict=True)),
        numbers,
        [spec.id for spec in specs],
        [str(spec.payload, "utf-8") for spec in specs],
        [spec.kind for spec in specs],
        [spec.priority for spec in specs],
        [spec.max_attempts for spec in specs],
        *rest,
    ]


def _key_of(spec: JobSpec) -> Key:
    assert spec.unique_key is not None
    return spec.queue, spec.tenant, spec.unique_key


def enqueue(tx: Transaction, batch: Sequence[ops.Enqueue]) -> list[Answer]:
    """Calls in a row share one pass, unless a job may end as soon as it is enqueued."""
    tx.forget()
    plan = Plan(tx, [spec for op in batch for spec in op.jobs])
    if len(batch) > 1 and plan.ends_jobs:
        return [answer for op in batch for answer in enqueue(tx, [op])]
    answers = [plan.add(op) for op in batch]
    if not plan.adds:
        tx.read_clock()  # which is otherwise read with the insert
    plan.carry_out()
    return [_at(answer, tx.now) for answer in answers]


def _at(answer: Answer, now: int) -> Answer:
    if isinstance(answer, ops.Enqueued):
        return ops.Enqueued(answer.ids, answer.created, now)
    return answer
