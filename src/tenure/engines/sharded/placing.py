"""Which shard something is on: rendezvous hashing of names.

The shard with the largest hash of its own name and the key is chosen. So a key changes its shard
only if the new one is a shard that was added, or if its own was removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tenure.errors import InvalidInput
from tenure.model.job import Job, JobSpec

_MOST_KNOWN = 100_000  # keys whose shard is remembered


class Placing:
    """Where tenants, scopes of slots and schedules are, by the number of the shard."""

    def __init__(self, names: Sequence[str], *, spread: bool) -> None:
        self._names = [name.encode() for name in names]
        self.names: Sequence[str] = names
        self.spread = spread  # jobs without a tenant are on all shards
        self._known: dict[str, int] = {}

    def of(self, key: str) -> int:
        """The shard of a key."""
        known = self._known.get(key)
        if known is None:
            known = self._chosen(key)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        return known

    def _chosen(self, key: str) -> int:
        text = key.encode(errors="surrogatepass")

        def weight(number: int) -> bytes:
            return blake2b(self._names[number] + b"\0" + text, digest_size=8).digest()

        return max(range(len(self._names)), key=weight)

    def of_tenant(self, tenant: str) -> int | None:
        """The shard of a tenant; None if its jobs are on all shards."""
        return None if self.spread and not tenant else self.of(f"tenant {tenant}")

    def of_job(self, job: JobSpec | Job) -> int | None:
        """The shard that a job must be on; None if it may be on any. Raises InvalidInput.

        Jobs without a tenant that share a unique key or a group are on one shard.
        """
        if job.tenant or not self.spread:
            return self.of(f"tenant {job.tenant}")
        if job.unique_key is not None and job.group:
            raise InvalidInput(
                "tenant",
                "on shards, a job without a tenant cannot have both a unique key and a group: "
                "give it a tenant",
            )
        if job.unique_key is not None:
            return self.of(f"unique {job.queue}\0{job.unique_key}")
        return self.of_group(job.queue, job.group) if job.group else None

    def of_group(self, queue: str, group: str) -> int:
        """The shard of a group of jobs without a tenant."""
        return self.of(f"group {queue}\0{group}")

    def of_scope(self, queue: str, tenant: str | None, group: str | None) -> int | None:
        """The shard of a limit or a pause; None if it concerns all."""
        if tenant is None or tenant == "*":
            return None
        if tenant or not self.spread:
            return self.of_tenant(tenant)
        return self.of_group(queue, group) if group and group != "*" else None

    def of_slots(self, scope: str) -> int:
        return self.of(f"slots {scope}")

    def of_schedule(self, name: str, job: JobSpec) -> int:
        """The shard of a schedule: that of the jobs it enqueues."""
        place = self.of_job(job)
        return self.of(f"schedule {name}") if place is None else place
