"""How many jobs ran at once, from the records of those who ran them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import tenure
from tenure import Limit
from tests.crash.journal import Event

Scope = tuple[str, str | None, str | None]  # queue, tenant, group
ENDS, STARTS = 0, 1  # in this order within one millisecond


def limits_were_kept(
    jobs: dict[str, tenure.Job], events: Iterable[Event], limits: Iterable[Limit]
) -> Iterator[str]:
    """At no time did more jobs run than the limits of their queue, tenant and group allow. The
    start of a run is recorded after the lease, and its end before the ack."""
    bounds = {(limit.queue, limit.tenant, limit.group): limit.concurrency for limit in limits}
    times: dict[Scope, list[tuple[int, int, str]]] = defaultdict(list)
    for id, start, end in _runs(events):
        for scope in _scopes_of(jobs[id]):
            times[scope] += [(start, STARTS, id), (end, ENDS, id)]
    for scope, moments in times.items():
        bound = bounds.get(scope, bounds.get(_default(scope)))
        running: set[str] = set()
        for at, what, id in sorted(moments):
            (running.add if what == STARTS else running.discard)(id)
            if bound is not None and len(running) > bound:
                yield f"{scope} has a limit of {bound}, but at {at} there ran {sorted(running)}"
                break


def _runs(events: Iterable[Event]) -> Iterator[tuple[str, int, int]]:
    """Each job with the start and end of one run. Runs shorter than a millisecond do not count;
    those without a recorded end have none."""
    noted: dict[str, dict[tuple[str, int], int]] = {"began": {}, "did": {}}
    for event in events:
        if event.kind in noted:
            noted[event.kind][event.id, event.token] = event.at
    for run, start in noted["began"].items():
        end = noted["did"].get(run, 2**63)
        if end > start:
            yield run[0], start, end


def _scopes_of(job: tenure.Job) -> list[Scope]:
    scopes: list[Scope] = [(job.queue, None, None), (job.queue, job.tenant, None)]
    return [*scopes, (job.queue, job.tenant, job.group)] if job.group else scopes


def _default(scope: Scope) -> Scope:
    """The limit that applies if there is no specific one."""
    queue, tenant, group = scope
    return queue, None if tenant is None else "*", None if group is None else "*"
