"""Fences: transactions share the mark of the store, and one that changes it waits for them."""

from __future__ import annotations

from tenure.core.fencing import MARK, SPACE, Fence, refused
from tenure.engines.postgres.session import Db


def hold(db: Db, fence: Fence | None, elsewhere: Db | None = None) -> None:
    """Keep the mark from changing until this transaction ends, or change it. Raises Fenced.

    The lock is taken first, by a statement of its own: the next one sees what was committed before.
    elsewhere: another connection, if the snapshot of this one is fixed.
    """
    if fence is None:
        return
    lock = db.send("hold_ring", fence.become is not None)
    if elsewhere is not None:
        lock.fetchall()
    mark = (elsewhere or db).one("ring_mark", SPACE, MARK)
    if (mark[0] if mark else "") != fence.mark:
        raise refused()
    if fence.become is not None:
        db.send("put_records", SPACE, [MARK], [fence.become])
