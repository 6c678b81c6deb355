"""Calls that limit and pause queues, tenants and groups."""

from __future__ import annotations

from tenure.model import ops, queries
from tenure.model.fields import POSITIVE_SPAN, span_ms, validated
from tenure.model.ops import Limit, good
from tenure.queue.arguments import Seconds, scope_of
from tenure.queue.sync_async import Caller, Steps, both


class LimitCalls(Caller):
    """The limits of queues, tenants and groups."""

    def _set(
        self,
        queue: str,
        *,
        tenant: str | None = None,
        group: str | None = None,
        concurrency: int | None = None,
        rate: int | None = None,
        per: Seconds | None = None,
        weight: int | None = None,
    ) -> Steps[None]:
        """Set limits on a queue, a tenant or a group. Limits that are not given stay unchanged.

        concurrency: how many jobs can be leased at once. rate: how many jobs of the queue can be
        claimed per `per` seconds. weight: the tenant's share of turns. tenant="*" or group="*"
        sets the default for each tenant or group.
        """
        per_ms = None if per is None else span_ms("per", per, POSITIVE_SPAN)
        bounds = (concurrency, rate, per_ms, weight)
        op = ops.SetLimit(queue, *scope_of(tenant, group), *bounds)
        (answer,) = yield [validated(op)]
        good(answer, ops.Ok)

    def _clear(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """Remove the limits set on a queue, a tenant or a group. A pause stays in place."""
        (answer,) = yield [validated(ops.ClearLimit(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    def _list(self, queue: str | None = None) -> Steps[list[Limit]]:
        """List all limits and pauses."""
        return good((yield validated(queries.ListLimits(queue))), list)

    set, aset = both(_set)
    clear, aclear = both(_clear)
    list, alist = both(_list)


class Pausing(Caller):
    """A part of Calls."""

    def _pause(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """Stop claims of jobs of a queue, or of one of its tenants or groups, until `resume`."""
        (answer,) = yield [validated(ops.Pause(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    def _resume(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """End a pause. Raises QueueNotFound."""
        (answer,) = yield [validated(ops.Resume(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    pause, apause = both(_pause)
    resume, aresume = both(_resume)
