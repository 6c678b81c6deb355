"""Ready jobs that cannot run now, because they are paused or a limit is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from tenure.core.limits import Rules
from tenure.model.fields import MAX_LISTED
from tenure.model.ops import Limit
from tenure.model.queries import Counts, QueueStats
from tenure.queue import Queue

T = TypeVar("T")


class HeldBack(NamedTuple):
    """How many ready jobs are paused, and how many wait because a concurrency limit is reached."""

    paused: int = 0
    limited: int = 0

    def plus(self, other: HeldBack) -> HeldBack:
        return HeldBack(self.paused + other.paused, self.limited + other.limited)


def held_back(store: Queue, queue: QueueStats, limits: list[Limit]) -> HeldBack:
    """Count the ready jobs of a queue that are held back. limits: those of the queue."""
    rules = Rules(queue.queue, {(one.tenant, one.group): one for one in limits})
    whole = _of_scope(queue, queue.paused, rules.whole.concurrency)
    scopes = [one for one in limits if one.tenant is not None]
    if whole is not None or not queue.ready or not scopes:
        return whole or HeldBack()
    total = HeldBack()
    for tenant in every_name(store.tenants, "tenant", queue.queue):
        total = total.plus(_of_tenant(store, rules, tenant))
    return total


def _of_tenant(store: Queue, rules: Rules, tenant: Any) -> HeldBack:
    name = tenant.tenant
    whole = _of_scope(tenant, rules.tenant_paused(name), rules.tenant_concurrency(name))
    if whole is not None or not tenant.ready or all(group is None for _, group in rules.limits):
        return whole or HeldBack()
    total = HeldBack()
    for one in every_name(store.groups, "group", rules.queue, tenant=name):
        paused = rules.group_paused(name, one.group)
        bound = rules.group_concurrency(name, one.group)
        total = total.plus(_of_scope(one, paused, bound) or HeldBack())
    return total


def _of_scope(counts: Counts, paused: bool, bound: int | None) -> HeldBack | None:
    """What is held back if the whole scope is; None if it is not."""
    if paused:
        return HeldBack(paused=counts.ready)
    if bound is not None and counts.leased >= bound:
        return HeldBack(limited=counts.ready)
    return None


def every_name(call: Callable[..., list[T]], label: str, queue: str, **options: Any) -> Iterator[T]:
    """Everything that a call lists by name, page by page."""
    after = None
    while True:
        page = call(queue, limit=MAX_LISTED, after=after, **options)
        yield from page
        if len(page) < MAX_LISTED:
            return
        after = getattr(page[-1], label)
