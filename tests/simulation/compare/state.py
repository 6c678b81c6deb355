"""Compares the results and the whole state of an engine with those of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.engines import Engine
from tenure.engines.memory import MemoryEngine
from tenure.errors import TenureError
from tenure.features.errors.data import ListErrors
from tenure.features.steps import data
from tenure.features.steps.data import ListSteps, Step, Suspension
from tenure.model import ops, queries, wire
from tenure.model.job import Job
from tenure.model.summary import Summary
from tests.simulation.compare.tokens import Tokens

MOST_PAGES = 40
_PAGES = (queries.Page, queries.Summaries, queries.Ids, queries.Exported)
_NO_JOBS = (
    str,
    queries.Counts,
    ops.Limit,
    queries.Slot,
    ops.Schedule,
)  # nothing in them has a token


class Difference(AssertionError):
    """The engine differs from the model. `kind` identifies the failure for the shrinker."""

    def __init__(self, kind: str, about: str) -> None:
        super().__init__(f"{kind}: {about}")
        self.kind = kind


class Compare:
    """Compares an engine with the model."""

    def __init__(self, model: MemoryEngine, tokens: Tokens, age_slack_ms: int = 0) -> None:
        self.model = model
        self.tokens = tokens
        self.age_slack_ms = age_slack_ms

    def same(self, kind: str, expected: Any, found: Any) -> None:
        """Raise a Difference unless both results mean the same."""
        problems = list(self._problems("", expected, found))
        if problems:
            raise Difference(kind, "; ".join(problems[:5]))

    def _problems(self, at: str, expected: Any, found: Any) -> Iterator[str]:
        if isinstance(expected, TenureError) or isinstance(found, TenureError):
            if _error(expected) != _error(found):
                yield f"{at} expected {_shown(expected)}, found {_shown(found)}"
        elif type(expected) is not type(found):
            yield f"{at} expected {_shown(expected)}, found {_shown(found)}"
        elif isinstance(expected, Job | Summary):
            yield from self._job(at, expected, found)
        elif isinstance(expected, ops.Recalled):
            mine, its = (data.decode_steps(one.steps) for one in (expected, found))
            yield from self._problems(at, mine, its)
        elif isinstance(expected, Step | Suspension):
            if replace(expected, token=0) != replace(found, token=0):
                yield f"{at} expected {_shown(expected)}, found {_shown(found)}"
        elif isinstance(expected, msgspec.Struct):
            for name in expected.__struct_fields__:
                mine, its = getattr(expected, name), getattr(found, name)
                yield from self._problems(f"{at}.{name}", mine, its)
        elif isinstance(expected, list | tuple):
            if expected == found and all(isinstance(one, _NO_JOBS) for one in expected):
                return
            if len(expected) != len(found):
                yield f"{at} expected {_shown(expected)}, found {_shown(found)}"
                return
            for n, (mine, its) in enumerate(zip(expected, found, strict=True)):
                yield from self._problems(f"{at}[{n}]", mine, its)
        elif expected != found:
            yield f"{at} expected {_shown(expected)}, found {_shown(found)}"

    def _job(self, at: str, expected: Any, found: Any) -> Iterator[str]:
        if expected.id == found.id:
            problem = self.tokens.meet(expected, found)
            if problem is not None:
                yield f"{at} {expected.id}: token {found.token} for {expected.token}: {problem}"
        if replace(found, token=expected.token) == expected:
            return
        for name in expected.__struct_fields__:
            mine, its = getattr(expected, name), getattr(found, name)
            if name != "token" and mine != its:
                yield f"{at} {expected.id}.{name}: expected {_shown(mine)}, found {_shown(its)}"

    # Queries ------------------------------------------------------------------------------------

    def ask(self, engine: Engine, query: queries.Query, ahead_ms: int = 0) -> None:
        """Compare the results of a query. Cursors are valid only for the engine that returned them.
        Due times follow the clock of the caller, which may be ahead."""
        kind = f"query {type(query).__name__}"
        mine: Any = query
        its: Any = query
        for _ in range(MOST_PAGES):
            expected: Any = self.model.read(mine)
            found: Any = engine.read(its)
            if isinstance(expected, queries.Due) and expected.at is not None:
                expected = queries.Due(expected.at + ahead_ms)
            if isinstance(query, queries.OldestReady) and self._is_close(expected, found):
                return
            if not isinstance(expected, _PAGES):
                self.same(kind, expected, found)
                return
            ends = isinstance(found, type(expected)) and (
                (expected.cursor is None) == (found.cursor is None)
            )
            if not ends:
                raise Difference(kind, f"expected {_shown(expected)}, found {_shown(found)}")
            self.same(kind, _without_numbers(expected), _without_numbers(found))
            if expected.cursor is None or (
                isinstance(expected, queries.Exported) and len(expected.entries) < mine.limit
            ):
                return
            mine = replace(mine, cursor=expected.cursor)
            its = replace(its, cursor=found.cursor)

    def _is_close(self, expected: Any, found: Any) -> bool:
        if not self.age_slack_ms or expected.at is None or found.at is None:
            return False
        return abs(int(expected.at) - int(found.at)) <= self.age_slack_ms

    def jobs(self, engine: Engine, ids: list[str]) -> None:
        """Compare single jobs."""
        for job_id in ids:
            self.ask(engine, queries.GetJob(job_id))

    def everything(self, engine: Engine, ahead_ms: int, *, transfers: bool) -> None:
        """Compare the whole state."""
        model = self.model
        self.ask(engine, queries.GetStats())
        some = sorted({record.job.tenant for record in model._records.values()})[::2]
        self.ask(engine, queries.GetStats(tenants=tuple(some)))
        self.ask(engine, queries.ListLimits())
        self.ask(engine, queries.ListSchedules())
        self.ask(engine, ListErrors(limit=1_000))
        for unique_key in sorted({key for *_, key in model._unique}):
            self.ask(engine, queries.FindByKey(unique_key))
        parents = {one for record in model._records.values() for one in record.waits_for}
        for job_id in sorted(parents & set(model._records))[:3]:
            self.ask(engine, queries.ListRelated(job_id, 1_000))
        durable = [job_id for job_id, record in model._records.items() if record.job.has_steps]
        for job_id in durable[-5:]:
            self.ask(engine, ListSteps(job_id))
        for scope, key in sorted(model._slots):
            self.ask(engine, queries.ListSlots(scope, key))
        tenants: dict[str, set[str]] = {queue: set() for queue in model._queues}
        for record in model._records.values():
            if record.job.group:
                tenants[record.job.queue].add(record.job.tenant)
        for queue in sorted(tenants):
            self.ask(engine, queries.ListTenants(queue))
            self.ask(engine, queries.ListGroupTotals(queue))
            self.ask(engine, queries.NextDue((queue,)), ahead_ms)
            self.ask(engine, queries.OldestReady((queue,)), ahead_ms)
            for tenant in sorted(tenants[queue]):
                self.ask(engine, queries.ListGroups(queue, tenant))
        self.ask(engine, queries.Export(500) if transfers else queries.ListJobs(limit=500))


def _without_numbers(page: Any) -> Any:
    """A page without its cursor, and without how many jobs the engine looked at for it."""
    if isinstance(page, queries.Exported):
        return replace(page, cursor=None)
    return replace(page, cursor=None, scanned=0)


def _error(value: Any) -> Any:
    """The parts of an error that are compared."""
    if not isinstance(value, TenureError):
        return None
    return value.code, value.details, wire.refusal(value).carries


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 600 else f"{text[:600]}..."
