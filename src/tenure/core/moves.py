"""Moving jobs between states, and notifying the jobs that wait for them."""

from __future__ import annotations

from tenure.core import features
from tenure.core.transaction import J, Transaction, UntoldTransaction
from tenure.model import states
from tenure.model.job import State

PARENTS_DONE, PARENT_FAILED = states.ParentsDone(), states.ParentFailed()


def move(tx: Transaction[J], job: J, event: states.Event) -> bool:
    """Apply the transition that the table has for this event, if any. Call `settle` afterwards."""
    change = states.decide(job, event, tx.now)
    if change is not None:
        _save(tx, job, change)
    return change is not None


def _save(tx: Transaction[J], job: J, change: states.Change) -> None:
    if change.failure is not None:
        change = features.failed(tx, job, change)
    tx.save(job, change)
    if change.final:
        tx.news.append((job, news_of(change.state)))
        if change.state is not State.DONE and job.has_steps:
            features.note_given_up(tx, job)


def news_of(state: State) -> states.Event:
    """The event that children receive when a parent ends in this state."""
    return PARENTS_DONE if state is State.DONE else PARENT_FAILED


def remove(tx: Transaction[J], job: J) -> None:
    """Delete a job in any state. Call `settle` afterwards."""
    tx.remove(job)
    if job.has_steps:
        features.removed(tx, job)
    if job.state is not State.DONE:
        tx.news.append((job, states.ParentDeleted(job.id)))


def settle(tx: Transaction[J]) -> None:
    """Notify children of what happened to their parents, and their children in turn. A store that
    lets nobody else write meanwhile notifies only so many in a transaction, and stores that the
    rest are due (see `resume`)."""
    while tx.news:
        news, tx.news = tx.news, []
        events = {parent.id: event for parent, event in news}
        for child, parent_id in tx.children(news):
            tell(tx, child, parent_id, events[parent_id])
    if tx.kept:
        features.give_up(tx)


def resume(tx: UntoldTransaction[J]) -> None:
    """Notify the next children that earlier transactions left, and their children in turn."""
    for child, parent_id, event in tx.next_untold():
        tell(tx, child, parent_id, event)
    settle(tx)


# path: a child that learns of its parent
def tell(tx: Transaction[J], child: J, parent_id: str, event: states.Event) -> None:
    """Notify a job of what happened to one of its parents."""
    change = states.decide(child, event, tx.now)
    if change is None or change.state is State.WAITING:
        return
    tx.strike(child, parent_id)
    if change.state is not State.PENDING or not tx.waits(child):
        _save(tx, child, change)
