"""What the core needs from an engine's transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from tenure.model.job import Job, JobSpec, State
from tenure.model.ops import Entry, Limit, Schedule
from tenure.model.records import Space
from tenure.model.states import Change, Event, Facts
from tenure.settings import Settings

UniqueKey = tuple[str, str, str]  # queue, tenant, unique key
Scope = tuple[str, str | None, str | None]  # queue, tenant, group
Owner = tuple[str, str]  # queue, tenant


class StoredJob(Facts, Protocol):
    """A job in a transaction. Saving a change updates it."""

    @property
    def unique_key(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def has_steps(self) -> bool: ...


class Lease(Protocol):
    """The part of a job that says who holds it."""

    @property
    def state(self) -> State: ...
    @property
    def token(self) -> int: ...
    @property
    def busy(self) -> bool:
        """Whether another transaction has locked the job, so that it cannot be changed now."""


class Edit(NamedTuple):
    """New values of a job that was not claimed. None: unchanged."""

    priority: int | None
    run_at: int | None
    payload: msgspec.Raw | None


class Existing(NamedTuple):
    """Data in the store that new jobs depend on."""

    ids: Collection[str]  # the requested ids that are taken
    holders: Mapping[UniqueKey, str]  # the jobs that hold the requested unique keys
    parents: Mapping[str, State]  # the requested parents that exist


J = TypeVar("J", bound=StoredJob)


class Transaction(Protocol[J]):
    """One transaction of a store. Reads see earlier writes of the same transaction."""

    news: list[tuple[J, Event]]  # jobs that ended, whose children have not been notified yet
    kept: dict[type, Any]  # what features keep until the end, by its type

    @property
    def settings(self) -> Settings: ...

    @property
    def writer(self) -> str:
        """A name for a new record that no concurrent transaction writes."""

    @property
    def now(self) -> int:
        """The time of this transaction, in milliseconds."""

    def forget(self) -> None:
        """Discard loaded jobs: an operation of another kind follows and may change them
        directly."""

    # Jobs ---------------------------------------------------------------------------------------

    def load(self, ids: Iterable[str]) -> None:
        """Lock and read these jobs in one step, for later calls of `job`."""

    def job(self, job_id: str) -> J | None:
        """A job, loaded if necessary; None if it does not exist."""

    def save(self, job: J, change: Change) -> None:
        """Store a change, and update counters, indexes and the unique key."""

    def edit(self, job: J, edit: Edit) -> None:
        """Change a waiting or pending job, and move it to its new place. A pending job becomes
        ready or delayed if its time changes."""

    def remove(self, job: J) -> None:
        """Delete a job in any state."""

    def put_result(self, job: J, result: msgspec.Raw) -> None:
        """Store the result of a job that is done."""

    def existing(
        self, ids: Sequence[str], keys: Sequence[UniqueKey], parents: Sequence[str]
    ) -> Existing:
        """Look up everything that new jobs depend on, in one step. The parents must not end
        before this transaction does."""

    def owners(self, ids: Sequence[str]) -> Mapping[str, Owner]:
        """The owners of these jobs, as far as they exist, without locking them."""

    def queue_of(self, job: J) -> str:
        """The name of the job's queue."""

    def insert(self, specs: Sequence[JobSpec], waits: Sequence[Sequence[str]] | None) -> None:
        """Add jobs. waits: the parents that each of them waits for; None if none waits."""

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        """Add jobs from another store unchanged, with what they wait for."""

    def key_holder(self, job: J) -> str | None:
        """The id of the job that currently holds this job's unique key."""

    # Dependencies -------------------------------------------------------------------------------

    def children(self, news: Sequence[tuple[J, Event]]) -> Sequence[tuple[J, str]]:
        """The jobs that wait for these parents, each with the parent's id, in the order of the
        parents. A parent may have been removed in this transaction. An UntoldTransaction may
        return only the first of them."""

    def strike(self, child: J, parent_id: str) -> None:
        """Stop the child from waiting for this parent."""

    def waits(self, child: J) -> bool:
        """Whether the child still waits for any job."""

    def await_jobs(self, job: J, ids: Sequence[str]) -> None:
        """Let a job that was suspended wait for these jobs, which `existing` has looked up as
        parents, or which were inserted."""

    # Leases -------------------------------------------------------------------------------------

    def hold(self, leases: Sequence[tuple[str, int]]) -> Mapping[str, Lease]:
        """Find the jobs with these ids and tokens, to renew their leases. Never blocks for long on
        another transaction."""

    def extend(self, lease_ms: Mapping[str, int]) -> None:
        """Set the leases of held jobs to expire this long from now."""

    def report(self, progress: Mapping[str, tuple[int | None, str | None]]) -> None:
        """Store the percentage and note of jobs that are held."""

    # Limits -------------------------------------------------------------------------------------

    def lock_queue(self, queue: str, *, create: bool) -> bool:
        """Block claims while limits change. Returns False if the queue does not exist."""

    def limit(self, scope: Scope) -> Limit:
        """The limit of a scope; an empty Limit if none is set."""

    def put_limit(self, old: Limit, new: Limit) -> None:
        """Store and apply a limit of a locked queue, or delete it if it is empty."""

    def fill_bucket(self, queue: str, tokens: int) -> None:
        """Set the tokens of a queue with a rate limit."""

    # Schedules ----------------------------------------------------------------------------------

    def by_store_time(self) -> AbstractContextManager[None]:
        """Within this context, `now` is the store's time and not a client's."""

    def schedule(self, name: str) -> Schedule | None: ...

    def put_schedule(self, schedule: Schedule) -> None: ...

    def drop_schedule(self, name: str) -> bool:
        """Delete a schedule. Returns whether it existed."""

    # Records ------------------------------------------------------------------------------------

    def record(self, space: Space, key: str) -> bytes | None:
        """The value of a record that has not expired. It is locked, if the store locks rows."""

    def put_record(self, space: Space, key: str, value: bytes, expires_at: int | None) -> None:
        """Store a record, or replace it."""

    def drop_record(self, space: Space, key: str) -> None:
        """Delete a record, if it exists."""

    def free_record(self, space: Space, first: str, last: str) -> tuple[str, bytes] | None:
        """A record with a key between these two that no concurrent transaction writes: its key and
        value, or None. In all keys, `first` is followed by the name of a writer."""

    def count_records(self, space: Space, first: str, last: str, most: int) -> int:
        """How many records have keys between these two, counting at most `most`. They are not
        locked, and may have expired."""

    def records(self, space: Space, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values of those of these records that exist, without locking them."""

    def list_records(self, space: Space, first: str, last: str) -> Sequence[tuple[str, bytes]]:
        """All records with keys between these two, sorted by key, without locking them."""

    def put_records(self, space: Space, values: Mapping[str, bytes]) -> None:
        """Store records that do not expire, or replace them."""

    def drop_records(self, space: Space, first: str, last: str) -> None:
        """Delete all records with keys between these two."""

    def note_steps(self, ids: Sequence[str]) -> None:
        """Note that these jobs, which are loaded or held, have steps."""

    # Time ---------------------------------------------------------------------------------------

    def overdue(self, queue: str, limit: int) -> Sequence[J]:
        """Jobs of a queue whose lease has expired."""

    def promote(self, queue: str, limit: int) -> int:
        """Make the due delayed jobs of a queue ready. Returns how many."""

    def expired(self, queue: str, limit: int) -> Sequence[J]:
        """Pending and waiting jobs of a queue that have expired."""

    # Once ---------------------------------------------------------------------------------------

    def answers_of(self, key: str) -> bytes | str | None:
        """The value stored under an idempotency key."""

    def put_answers(self, key: str, answers: bytes) -> None:
        """Store a value under an idempotency key."""

    def read_jobs(self, ids: Sequence[str]) -> Mapping[str, Job]:
        """The jobs with these ids that exist, complete, without locking them."""


class UntoldTransaction(Transaction[J], Protocol[J]):
    """A transaction that nobody else can write beside. It notifies a bounded number of children,
    and stores which others are due."""

    def next_untold(self) -> Sequence[tuple[J, str, Event]]:
        """The next jobs whose parents ended in earlier transactions: each with the parent's id and
        what happened to it. They count as notified."""


class SlotTransaction(Protocol):
    """What the core needs for slots. An engine with slot operations of its own, such as PostgreSQL,
    does not need to implement it."""

    @property
    def now(self) -> int: ...

    def count_slots(self, scope: str, key: str) -> int:
        """How many slots are held, after deleting expired ones."""

    def has_slot(self, scope: str, key: str, holder: str) -> bool: ...

    def put_slot(self, scope: str, key: str, holder: str, expires_at: int) -> None: ...

    def drop_slot(self, scope: str, key: str, holder: str) -> bool:
        """Delete a slot. Returns whether it existed."""
