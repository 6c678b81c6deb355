"""Calls on slots."""

from __future__ import annotations

from tenure.model import ops, queries
from tenure.model.fields import POSITIVE_SPAN, span_ms, validated
from tenure.model.ops import good
from tenure.model.queries import Slot
from tenure.queue.arguments import Seconds
from tenure.queue.sync_async import Caller, Steps, both


class SlotCalls(Caller):
    """The slots of a store."""

    def _take(
        self, scope: str, key: str, holder: str, ttl: Seconds, *, limit: int | None = None
    ) -> Steps[ops.Slots]:
        """Take a slot under (scope, key) for `holder`, for `ttl` seconds, or renew it.

        With a limit, the slot is only taken or renewed if fewer than `limit` others are held.
        Returns the count and whether the holder has a slot.
        """
        op = ops.TakeSlot(scope, key, holder, span_ms("ttl", ttl, POSITIVE_SPAN), limit)
        (answer,) = yield [validated(op)]
        return good(answer, ops.Slots)

    def _drop(self, scope: str, key: str, holder: str) -> Steps[int]:
        """Give up a holder's slot, and return how many are left."""
        (answer,) = yield [validated(ops.DropSlot(scope, key, holder))]
        return good(answer, ops.Slots).count

    def _list(self, scope: str, key: str) -> Steps[list[Slot]]:
        """List the slots held under (scope, key)."""
        return good((yield validated(queries.ListSlots(scope, key))), list)

    def _reconcile(self, scope: str, key: str) -> Steps[int]:
        """Recount the slots under (scope, key). Returns the correction."""
        (answer,) = yield [validated(ops.ReconcileSlots(scope, key))]
        return good(answer, ops.Corrected).by.get("slots", 0)

    take, atake = both(_take)
    drop, adrop = both(_drop)
    list, alist = both(_list)
    reconcile, areconcile = both(_reconcile)
