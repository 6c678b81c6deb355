"""Enqueue: check a whole call, then add its jobs in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from tenure import ops, states
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.rows import (
    CANCELLED,
    DEAD,
    DELAYED,
    DONE,
    READY,
    STATES,
    WAITING,
    Row,
    options_of,
)
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.job import JobSpec, check_cycles
from tenure.ops import Answer

Key = tuple[str, str, str]  # queue, tenant, unique key


class Plan:
    """Calls that were found possible, to be carried out together."""

    def __init__(self, tx: Transaction, wanted: Iterable[JobSpec], leaving: str = "") -> None:
        self._tx = tx
        self._leaving = leaving  # a job that is about to end: its key is free
        named = [spec.id for spec in wanted if not spec.made_up_id]
        self._held = {row[0] for row in tx.db.all("known_ids", listed(named))} if named else set()
        self._accepted: list[JobSpec] = []
        self._named: set[str] = set()
        self._keys: dict[Key, str] = {}

    def add(self, op: ops.Enqueue) -> Answer:
        """Accept the jobs of one call, or answer why not."""
        jobs = op.jobs
        if all(spec.made_up_id and spec.unique_key is None and not spec.after for spec in jobs):
            self._accepted.extend(jobs)
            return ops.Enqueued([spec.id for spec in jobs], [True] * len(jobs), self._tx.now)
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
        return ops.Enqueued(ids, created, self._tx.now)

    def _duplicate(
        self, spec: JobSpec, accepted: dict[str, JobSpec], keys: dict[Key, str]
    ) -> Duplicate | None:
        if spec.id in self._held or spec.id in accepted or spec.id in self._named:
            return Duplicate("id", spec.id, spec.id)
        if spec.unique_key is not None:
            key = (spec.queue, spec.tenant, spec.unique_key)
            holder = keys.get(key) or self._keys.get(key)
            if holder is None:
                row = self._tx.db.one("key_holder", *key)
                holder = None if row is None or row[0] == self._leaving else row[0]
            if holder is not None:
                return Duplicate("unique_key", spec.unique_key, holder)
            keys[key] = spec.id
        return None

    def _bad_parents(self, accepted: dict[str, JobSpec]) -> TenureError | None:
        parents = {i: None for spec in accepted.values() for i in spec.after if i not in accepted}
        if parents:
            known = {row[0] for row in self._tx.db.all("known_ids", listed(parents))}
            for parent in parents:
                if parent not in known:
                    return DependencyNotFound(parent)
        try:
            check_cycles([spec for spec in accepted.values() if spec.after])
        except DependencyCycle as cycle:
            return cycle
        return None

    def carry_out(self) -> None:
        """Add every job that was accepted."""
        if not self._accepted:
            return
        before = self._tx.last_seq()
        families = self._insert_deps(before)
        self._insert_jobs(before, families)
        for child, parents in families.items():
            for _, parent, code in parents:
                if code in (DEAD, CANCELLED):
                    (row,) = self._tx.db.all("rows_by_seq", listed([child]))
                    self._tx.tell_child(Row(*row), parent, states.ParentFailed())
        self._tx.settle()

    def _insert_deps(self, before: int) -> dict[int, list[tuple[str, int, int]]]:
        """Note who waits for whom; answers, by the seq of the one that waits, with the (id, seq,
        state) of what it waits for."""
        if not any(spec.after for spec in self._accepted):
            return {}
        seqs = {spec.id: seq for seq, spec in enumerate(self._accepted, before + 1)}
        named = {i for spec in self._accepted for i in spec.after if i not in seqs}
        known = {row[0]: row for row in self._tx.db.all("known_ids", listed(named))}
        families: dict[int, list[tuple[str, int, int]]] = {}
        for spec in self._accepted:
            parents = [known.get(i) or (i, seqs[i], WAITING) for i in spec.after]
            unfinished = [(i, seq, code) for i, seq, code in parents if code != DONE]
            if unfinished:
                families[seqs[spec.id]] = unfinished
        self._tx.db.many(
            "insert_dep",
            [(seq, child) for child, rows in families.items() for _, seq, _ in rows],
        )
        return families

    def _insert_jobs(self, before: int, families: dict[int, Any]) -> None:
        now = self._tx.now
        plain: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        changing: list[tuple[Any, ...]] = []
        keys: list[tuple[int, str, int]] = []
        seq = before
        lines = [(names, list(specs)) for names, specs in groupby(self._accepted, key=_lane_of)]
        self._tx.books.load_names(dict.fromkeys(names for names, _ in lines))
        for names, specs in lines:
            lane = self._tx.books.lane(*names)
            lane_id = lane.id
            codes = [0] * len(STATES)
            for spec in specs:
                seq += 1
                priority, code = spec.priority, READY
                row = (seq, spec.id, lane_id, priority, now, spec.max_attempts, spec.kind,
                       str(spec.payload, "utf-8"))  # fmt: skip
                if astuple(spec)[_COMMON:] == _PLAIN:
                    plain.append(row)
                else:
                    key, run_at, ttl = spec.unique_key, spec.starts_at(now), spec.expires_in_ms
                    code = WAITING if seq in families else DELAYED if run_at > now else READY
                    expires_at = None if ttl is None else now + ttl
                    others.append((*row, key, options_of(spec)))
                    changing.append(
                        (seq, lane.tenant.queue.id, code, run_at, now, run_at, expires_at)
                    )
                    if key is not None:
                        keys.append((lane.tenant.id, key, seq))
                codes[code] += 1
                if code == READY and (lane.head is None or priority < lane.head[0]):
                    lane.joined(priority, seq)
            for code, n in enumerate(codes):
                if n:
                    self._tx.books.move(lane, None, code, n)
        self._tx.db.insert("insert_plain_job", plain)
        self._tx.db.run("ready_since", before)
        self._tx.db.insert("insert_job", others)
        self._tx.db.insert("insert_state", changing)
        ready = {row[0] for row in changing if row[2] == READY}
        self._tx.db.insert(
            "insert_ready", [(row[2], row[3], row[0]) for row in others if row[0] in ready]
        )
        self._tx.db.many("insert_key", keys)


# A job with nothing beyond these is ready at once, and needs no row of what changes.
_COMMON = JobSpec.__struct_fields__.index("delay_ms")
_PLAIN = astuple(JobSpec("", "", msgspec.Raw(b"")))[_COMMON:]
_lane_of = attrgetter("queue", "tenant", "group")


def enqueue(tx: Transaction, batch: Sequence[ops.Enqueue]) -> list[Answer]:
    """Calls in a row share one pass, but for those with dependencies, which may end jobs."""
    answers: list[Answer] = []
    for alone, run in groupby(batch, key=lambda op: any(spec.after for spec in op.jobs)):
        for calls in [[op] for op in run] if alone else [list(run)]:
            plan = Plan(tx, [spec for op in calls for spec in op.jobs])
            answers.extend(plan.add(op) for op in calls)
            plan.carry_out()
    return answers
