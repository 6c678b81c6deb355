"""What the core needs from a transaction of an engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from tenure.model.job import JobSpec, State
from tenure.model.ops import Entry, Limit, Schedule
from tenure.model.states import Change, Event, Facts

UniqueKey = tuple[str, str, str]  # queue, tenant, unique key
Scope = tuple[str, str | None, str | None]  # queue, tenant, group


class StoredJob(Facts, Protocol):
    """A job in a transaction. Saving a change updates it."""

    @property
    def token(self) -> int: ...
    @property
    def unique_key(self) -> str | None: ...


class Lease(Protocol):
    """The part of a job that tells who holds it."""

    @property
    def state(self) -> State: ...
    @property
    def token(self) -> int: ...
    @property
    def busy(self) -> bool:
        """Whether another transaction has locked the job, so that it cannot be changed now."""


class Existing(NamedTuple):
    """What is in the store and matters to new jobs."""

    ids: Collection[str]  # those of the requested ids that are taken
    holders: Mapping[UniqueKey, str]  # the jobs that hold the requested unique keys
    parents: Mapping[str, State]  # those of the requested parents that exist


J = TypeVar("J", bound=StoredJob)


class Transaction(Protocol[J]):
    """One transaction of a store. Whatever is written is seen by what is read later in it."""

    news: list[tuple[J, Event]]  # what ended, of which children have not been told yet

    @property
    def now(self) -> int:
        """The time of this transaction, in milliseconds."""

    def forget(self) -> None:
        """Drop what was loaded: an operation of another kind follows, which may write past it."""

    # Jobs ---------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> None:
        """Lock these jobs and read them, all at once, for `job`."""

    def job(self, job_id: str) -> J | None:
        """A job, loaded if it was not; None if it does not exist."""

    def save(self, job: J, change: Change) -> None:
        """Store a change, with the counters, indexes and the unique key that go with it."""

    def remove(self, job: J) -> None:
        """Delete a job, whatever its state."""

    def put_result(self, job: J, result: msgspec.Raw) -> None:
        """Store the result of a job that is done."""

    def existing(
        self, ids: Sequence[str], keys: Sequence[UniqueKey], parents: Sequence[str]
    ) -> Existing:
        """Look up, all at once, what matters to new jobs. The parents must not end meanwhile."""

    def insert(self, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None) -> None:
        """Add jobs. waits: for each of them the parents it waits for; None if none waits."""

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        """Add jobs of another store as they are, and what they wait for."""

    def key_holder(self, job: J) -> str | None:
        """The job that holds the unique key of this one now."""

    # Dependencies -------------------------------------------------------------------------------

    def children(self, parents: Sequence[J]) -> Sequence[tuple[J, str]]:
        """The jobs that wait for these, each with the id of the parent, in the order of the
        parents. A parent may have been removed in this transaction."""

    def strike(self, child: J, parent_id: str) -> None:
        """The child waits for this parent no longer."""

    def waits(self, child: J) -> bool:
        """Whether the child waits for any job."""

    # Leases -------------------------------------------------------------------------------------

    def hold(self, leases: Sequence[tuple[str, int]]) -> Mapping[str, Lease]:
        """Find the jobs of these ids and tokens, to keep their leases. Never waits long for
        another transaction."""

    def extend(self, lease_ms: Mapping[str, int]) -> None:
        """Have the leases of jobs that are held end so much later than now."""

    def report(self, progress: Mapping[str, tuple[int | None, str | None]]) -> None:
        """Store the percentage and note of jobs that are held."""

    # Limits -------------------------------------------------------------------------------------

    def lock_queue(self, queue: str, *, create: bool) -> bool:
        """Keep claims away while limits change; False if there is no such queue."""

    def limit(self, scope: Scope) -> Limit:
        """The limit of a scope; an empty one if none is set."""

    def put_limit(self, old: Limit, new: Limit) -> None:
        """Store a limit of a locked queue, or drop it if it is empty, and apply it."""

    def fill_bucket(self, queue: str, tokens: int) -> None:
        """Set the tokens of a queue that has a rate."""

    # Schedules ----------------------------------------------------------------------------------

    def by_store_time(self) -> AbstractContextManager[None]:
        """Within this, `now` is the time of the store and not that of a client."""

    def schedule(self, name: str) -> Schedule | None: ...

    def put_schedule(self, schedule: Schedule) -> None: ...

    def drop_schedule(self, name: str) -> bool:
        """Whether there was one."""

    # Time ---------------------------------------------------------------------------------------

    def overdue(self, queue: str, limit: int) -> Sequence[J]:
        """Jobs of a queue whose lease has ended."""

    def promote(self, queue: str, limit: int) -> int:
        """Make jobs of a queue ready whose delay has ended: how many."""

    def expired(self, queue: str, limit: int) -> Sequence[J]:
        """Jobs of a queue that wait to run, or for others, and have expired."""

    # Once ---------------------------------------------------------------------------------------

    def answers_of(self, key: str) -> bytes | str | None:
        """What is stored under an idempotency key."""

    def put_answers(self, key: str, answers: bytes) -> None:
        """Store something under an idempotency key."""


class SlotTransaction(Protocol):
    """What the core needs for slots. An engine that has operations of its own for them, as
    PostgreSQL, does without."""

    @property
    def now(self) -> int: ...

    def count_slots(self, scope: str, key: str) -> int:
        """How many slots are held, after dropping those that ended."""

    def has_slot(self, scope: str, key: str, holder: str) -> bool: ...

    def put_slot(self, scope: str, key: str, holder: str, expires_at: int) -> None: ...

    def drop_slot(self, scope: str, key: str, holder: str) -> bool:
        """Whether there was one."""
