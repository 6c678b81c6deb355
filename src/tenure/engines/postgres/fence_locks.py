"""Fences: transactions share the mark of the store, and one that changes it waits for them."""

from __future__ import annotations

from tenure.core.fencing import KEY, SCOPE, Fence, refused
from tenure.engines.postgres.session import Db
from tenure.model.fields import MAX_SPAN_MS


def hold(db: Db, fence: Fence | None, given: int | None, elsewhere: Db | None = None) -> None:
    """Keep the mark from changing until this transaction ends, or change it. Raises Fenced.

    The lock is taken first, by a statement of its own: the next one sees what was committed before.
    elsewhere: another connection, if the snapshot of this one is fixed.
    """
    if fence is None:
        return
    lock = db.send("hold_ring", fence.become is not None)
    if elsewhere is not None:
        lock.fetchall()
    marks = [holder for (holder,) in (elsewhere or db).all("ring_marks", SCOPE, KEY)]
    if marks != ([fence.mark] if fence.mark else []):
        raise refused()
    if fence.become is not None:
        if fence.mark:
            db.send("change_slot", given, SCOPE, KEY, fence.mark, None, None)
        db.send("change_slot", given, SCOPE, KEY, fence.become, MAX_SPAN_MS, None)
