"""The whole state of a store as its queries show it, to be compared and recounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tenure import GroupStats, Job, Limit, Queue, QueueStats, Schedule, Slot, TenantStats
from tenure.model.queries import Counts

PAGE = 10_000


class Dump(NamedTuple):
    """Everything that can be asked for."""

    jobs: list[dict[str, Any]]
    queues: dict[str, QueueStats]
    tenants: list[TenantStats]
    groups: list[GroupStats]
    limits: list[Limit]
    schedules: list[Schedule]
    slots: list[Slot]


def dump(queue: Queue, *, slots: tuple[str, str] = ("scope", "key")) -> Dump:
    """The state of all queues, and of the slots under one (scope, key)."""
    queues = queue.stats().queues
    tenants = [tenant for name in queues for tenant in all_tenants(queue, name)]
    return Dump(
        jobs=[as_dict(job) for job in all_jobs(queue)],
        queues=queues,
        tenants=tenants,
        groups=[group for one in tenants for group in all_groups(queue, one.queue, one.tenant)],
        limits=queue.limits.list(),
        schedules=queue.schedules.list(),
        slots=queue.slots.list(*slots),
    )


@contextmanager
def nothing_changes(queue: Queue) -> Iterator[None]:
    """What is done inside leaves the whole state as it was."""
    before = dump(queue)
    yield
    after = dump(queue)
    for field, was, is_now in zip(Dump._fields, before, after, strict=True):
        assert was == is_now, f"{field} changed from {was} to {is_now}"


def as_dict(job: Job) -> dict[str, Any]:
    """A job that can be compared and read in a failed assertion."""
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if "raw" not in name}
    return fields | {"payload": bytes(job.raw_payload), "result": bytes(job.raw_result)}


def all_jobs(queue: Queue, /, **filters: Any) -> list[Job]:
    """Every job that matches, page by page."""
    page = queue.jobs(limit=PAGE, **filters)
    jobs = list(page.jobs)
    while page.cursor is not None:
        page = queue.jobs(limit=PAGE, cursor=page.cursor, **filters)
        jobs += page.jobs
    return jobs


def all_tenants(queue: Queue, name: str) -> list[TenantStats]:
    found = queue.tenants(name, limit=PAGE)
    while len(found) % PAGE == 0 and (more := _more_tenants(queue, name, found)):
        found += more
    return found


def _more_tenants(queue: Queue, name: str, found: list[TenantStats]) -> list[TenantStats]:
    return queue.tenants(name, limit=PAGE, after=found[-1].tenant) if found else []


def all_groups(queue: Queue, name: str, tenant: str) -> list[GroupStats]:
    return queue.groups(name, tenant=tenant, limit=PAGE)


def wrong_counts(queue: Queue, *, exact: bool) -> list[str]:
    """Counters that a recount of the jobs does not bear out."""
    names = list(queue.stats().queues)
    wrong = []
    for name in names:
        corrected = queue.reconcile(name)
        if exact and corrected:
            wrong.append(f"reconcile corrected queue {name!r} by {corrected}")
    found: dict[tuple[str, ...], Counter[str]] = {}
    for job in all_jobs(queue):
        names_of = (job.queue, job.tenant, job.group)
        for length in (1, 2, 3):
            found.setdefault(names_of[:length], Counter())[job.state.value] += 1
    for key, counts in _counted(queue, names).items():
        if by_state(counts) != found.pop(key, Counter()):
            wrong.append(f"{key} is counted as {counts}")
    # A job without a group is of no group.
    wrong += [f"{key} is not counted at all" for key in found if key[2:] != ("",)]
    return wrong


def _counted(queue: Queue, names: list[str]) -> dict[tuple[str, ...], Counts]:
    counted: dict[tuple[str, ...], Counts] = {}
    for name in names:
        counted[name,] = queue.stats(name).queues[name]
        for tenant in all_tenants(queue, name):
            counted[name, tenant.tenant] = tenant
            for group in all_groups(queue, name, tenant.tenant):
                counted[name, tenant.tenant, group.group] = group
    return counted


def by_state(counts: Counts) -> Counter[str]:
    """Counts by the states of jobs: `delayed` and `ready` are both pending."""
    return +Counter(
        waiting=counts.waiting,
        pending=counts.pending,
        leased=counts.leased,
        done=counts.done,
        dead=counts.dead,
        cancelled=counts.cancelled,
    )
