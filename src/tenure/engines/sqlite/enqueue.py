"""Enqueue: check a whole call, then add its jobs in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from tenure import ops, states
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.rows import (
    CANCELLED,
    DEAD,
    DELAYED,
    DONE,
    READY,
    WAITING,
    Row,
    options_of,
)
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import DependencyCycle, DependencyNotFound, Duplicate, TenureError
from tenure.job import JobSpec, check_cycles
from tenure.ops import Answer

INLINE_PAYLOAD = 1024  # characters; a longer payload is kept out of the row that changes

Key = tuple[str, str, str]  # queue, tenant, unique key


class Plan:
    """Calls that were found possible, to be carried out together."""

    def __init__(self, tx: Transaction, wanted: Iterable[JobSpec], leaving: str = "") -> None:
        self._tx = tx
        self._leaving = leaving  # a job that is about to end: its key is free
        named = [spec.id for spec in wanted if not spec.made_up_id]
        self._held = {row[0] for row in tx.db.all("known_ids", listed(named))} if named else set()
        self._accepted: dict[str, JobSpec] = {}
        self._keys: dict[Key, str] = {}

    def add(self, op: ops.Enqueue) -> Answer:
        """Accept the jobs of one call, or answer why not."""
        accepted: dict[str, JobSpec] = {}
        keys: dict[Key, str] = {}
        ids: list[str] = []
        created: list[bool] = []
        for spec in op.jobs:
            held = None
            if not spec.made_up_id or spec.unique_key is not None:
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
        self._accepted.update(accepted)
        self._keys.update(keys)
        return ops.Enqueued(ids, created, self._tx.now)

    def _duplicate(
        self, spec: JobSpec, accepted: dict[str, JobSpec], keys: dict[Key, str]
    ) -> Duplicate | None:
        if spec.id in self._held or spec.id in accepted or spec.id in self._accepted:
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
        specs = self._accepted
        if not specs:
            return
        seq = self._tx.next_numbers("seq", len(specs))
        seqs = {job_id: seq + n for n, job_id in enumerate(specs, 1)}
        families = self._insert_deps(seqs)
        self._insert_jobs(seqs, families)
        for child, parents in families.items():
            lost = [row for row in parents if row[2] in (DEAD, CANCELLED)]
            for parent in lost:
                (row,) = self._tx.db.all("rows_by_seq", listed([seqs[child]]))
                self._tx.tell_child(Row(*row), parent[1], states.ParentFailed())
        self._tx.settle()

    def _insert_deps(self, seqs: dict[str, int]) -> dict[str, list[tuple[str, int, int]]]:
        """Note who waits for whom; answers with the (id, seq, state) of what each waits for."""
        families: dict[str, list[tuple[str, int, int]]] = {}
        waiting = [spec for spec in self._accepted.values() if spec.after]
        if not waiting:
            return families
        named = {i for spec in waiting for i in spec.after if i not in seqs}
        known = {row[0]: row for row in self._tx.db.all("known_ids", listed(named))}
        for spec in waiting:
            parents = [known.get(i) or (i, seqs[i], WAITING) for i in spec.after]
            families[spec.id] = [
                (job_id, seq, code) for job_id, seq, code in parents if code != DONE
            ]
        self._tx.db.many(
            "insert_dep",
            [(row[1], seqs[child]) for child, rows in families.items() for row in rows],
        )
        return families

    def _insert_jobs(self, seqs: dict[str, int], families: dict[str, Any]) -> None:
        books, now = self._tx.books, self._tx.now
        rows: list[tuple[Any, ...]] = []
        payloads: list[tuple[int, str]] = []
        keys: list[tuple[int, str, int]] = []
        by_lane: dict[tuple[int, int], int] = {}
        for spec in self._accepted.values():
            seq = seqs[spec.id]
            lane = books.lane(spec.queue, spec.tenant, spec.group)
            run_at = spec.starts_at(now)
            if families.get(spec.id):
                code = WAITING
            elif run_at > now:
                code = DELAYED
            else:
                code = READY
                lane.joined(spec.priority, seq)
            payload: str | None = bytes(spec.payload).decode()
            if len(payload) > INLINE_PAYLOAD:  # type: ignore[arg-type]
                payloads.append((seq, payload))  # type: ignore[arg-type]
                payload = None
            if spec.unique_key is not None:
                keys.append((lane.tenant.id, spec.unique_key, seq))
            expires_at = None if spec.expires_in_ms is None else now + spec.expires_in_ms
            by_lane[lane.id, code] = by_lane.get((lane.id, code), 0) + 1
            rows.append(
                (seq, spec.id, lane.id, lane.tenant.queue.id, code, run_at, spec.priority, run_at,
                 now, now, spec.max_attempts, spec.kind, expires_at, spec.unique_key,
                 options_of(spec), payload)
            )  # fmt: skip
        self._tx.db.many("insert_job", rows)
        if payloads:
            self._tx.db.many("insert_payload", payloads)
        if keys:
            self._tx.db.many("insert_key", keys)
        for (lane_id, code), n in by_lane.items():
            books.move(books.lane_by_id(lane_id), None, code, n)


def enqueue(tx: Transaction, batch: Sequence[ops.Enqueue]) -> list[Answer]:
    """Calls in a row share one pass, but for those with dependencies, which may end jobs."""
    answers: list[Answer] = []
    for alone, run in groupby(batch, key=lambda op: any(spec.after for spec in op.jobs)):
        for calls in [[op] for op in run] if alone else [list(run)]:
            plan = Plan(tx, [spec for op in calls for spec in op.jobs])
            answers.extend(plan.add(op) for op in calls)
            plan.carry_out()
    return answers
