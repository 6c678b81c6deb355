"""Names of queues that people type: whether a queue exists, and which one was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tenure.errors import NotAllowed, QueueNotFound
from tenure.queue import Queue


def exists(store: Queue, name: str) -> bool:
    """Whether a store has a queue. True if the caller may not know."""
    try:
        store.stats(name)
    except QueueNotFound:
        return False
    except NotAllowed:
        return True
    return True


def require(store: Queue, name: str | None) -> None:
    """Raise QueueNotFound if a name is given and the store has no such queue. For commands that
    found nothing."""
    if name is not None and not exists(store, name):
        raise QueueNotFound(name)


def names_of(store: Queue) -> list[str]:
    """The queues of a store, or none if the caller may not list them."""
    try:
        return list(store.stats().queues)
    except NotAllowed:
        return []


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question that suggests the most similar of the names, or an empty string."""
    like = get_close_matches(name, [one for one in names if one != name], n=1)
    return f"did you mean {like[0]!r}?" if like else ""
