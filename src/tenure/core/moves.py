"""Moving jobs from state to state, and telling the jobs that wait for them."""

from __future__ import annotations

from tenure.core.transaction import J, Transaction
from tenure.model import states
from tenure.model.job import State

PARENTS_DONE, PARENT_FAILED = states.ParentsDone(), states.ParentFailed()


def move(tx: Transaction[J], job: J, event: states.Event) -> bool:
    """Make the move that the table has for this event, if there is one. Follow it by `settle`."""
    change = states.decide(job, event, tx.now)
    if change is not None:
        _save(tx, job, change)
    return change is not None


def _save(tx: Transaction[J], job: J, change: states.Change) -> None:
    tx.save(job, change)
    if change.final:
        tx.news.append((job, news_of(change.state)))


def news_of(state: State) -> states.Event:
    """What the children of a job are told that ended in this state."""
    return PARENTS_DONE if state is State.DONE else PARENT_FAILED


def remove(tx: Transaction[J], job: J) -> None:
    """Delete a job, whatever its state. Follow it by `settle`."""
    tx.remove(job)
    if job.state is not State.DONE:
        tx.news.append((job, states.ParentDeleted(job.id)))


def settle(tx: Transaction[J]) -> None:
    """Tell children what became of their parents, and their children in turn."""
    while tx.news:
        news, tx.news = tx.news, []
        events = {parent.id: event for parent, event in news}
        for child, parent_id in tx.children([parent for parent, _ in news]):
            tell(tx, child, parent_id, events[parent_id])


def tell(tx: Transaction[J], child: J, parent_id: str, event: states.Event) -> None:
    """Tell a job what became of one that it waits for."""
    change = states.decide(child, event, tx.now)
    if change is None or change.state is State.WAITING:
        return
    tx.strike(child, parent_id)
    if change.state is not State.PENDING or not tx.waits(child):
        _save(tx, child, change)
