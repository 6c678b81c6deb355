"""Which shard something is on: rendezvous hashing of names.

The shard with the largest hash of its own name and the key is chosen. So a key changes its shard
only if the new one is a shard that was added, or if its own was removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tenure.errors import InvalidInput
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Limit, SetLimit

_MOST_KNOWN = 100_000  # keys whose shard is remembered
END = 2**64  # after all positions


def position(tenant: str) -> int:
    """The place of a tenant in the order in which tenants are moved between rings."""
    text = f"position {tenant}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


class Placing:
    """Where tenants, scopes of slots and schedules are, by the number of the shard."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        spread: bool,
        ring: Sequence[int] | None = None,
        side: Sequence[int] | None = None,
        to: Sequence[int] = (),
        below: int = 0,
        upto: int = 0,
    ) -> None:
        """ring: the shards that are used, if not all are. side: those of slots and records. to: the
        ring that tenants are moved to. Tenants below a position are there; those up to another are
        being moved."""
        self._names = [name.encode() for name in names]
        self.names: Sequence[str] = names
        self.spread = spread  # jobs without a tenant are on all shards
        self._ring = range(len(names)) if ring is None else ring
        self._side = self._ring if side is None else side
        self._to = to
        self._below, self._upto = below, upto
        self.used: Sequence[int] = sorted({*self._ring, *to})
        self._known: dict[str, int] = {}

    def of(self, key: str) -> int:
        """The shard of a key that does not move with a tenant."""
        return self._remembered(key, self._ring)

    def of_side(self, key: str) -> int:
        """The shard of something beside the jobs, which stays there while tenants are moved."""
        return self._remembered(f"side {key}", self._side, key)

    def _remembered(self, name: str, among: Sequence[int], key: str | None = None) -> int:
        known = self._known.get(name)
        if known is None:
            known = self.chosen(name if key is None else key, among)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = known
        return known

    def chosen(self, key: str, among: Sequence[int]) -> int:
        """The shard of a key among these."""
        text = key.encode(errors="surrogatepass")
        return max(among, key=lambda number: self._weight(number, text))

    def _weight(self, number: int, text: bytes) -> bytes:
        return blake2b(self._names[number] + b"\0" + text, digest_size=8).digest()

    def of_tenant(self, tenant: str) -> int | None:
        """The shard of a tenant; None if its jobs are on all shards."""
        if self.spread and not tenant:
            return None
        key = f"tenant {tenant}"
        if self._to and key not in self._known:
            among = self._to if position(tenant) < self._below else self._ring
            return self._remembered(key, among)
        return self.of(key)

    def is_moving(self, tenant: str) -> bool:
        """Whether a tenant is being moved right now."""
        if not self._to or (self.spread and not tenant):
            return False
        if not self._below <= position(tenant) < self._upto:
            return False
        key = f"tenant {tenant}"
        return self.chosen(key, self._ring) != self.chosen(key, self._to)

    def of_job(self, job: JobSpec | Job) -> int | None:
        """The shard that a job must be on; None if it may be on any. Raises InvalidInput.

        Jobs without a tenant that share a unique key or a group are on one shard.
        """
        if job.tenant or not self.spread:
            return self.of_tenant(job.tenant)
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

    def divides(self, limit: Limit | SetLimit) -> bool:
        """Whether a limit counts jobs of several shards, which do not share a count."""
        bounded = limit.concurrency is not None or limit.rate is not None
        return (
            bounded
            and limit.group is None
            and limit.tenant != "*"
            and len(self.used) > 1
            and self.of_scope(limit.queue, limit.tenant, None) is None
        )

    def of_slots(self, scope: str) -> int | None:
        """The shard of slots; None for Tenure's own, which each shard has: who maintains it."""
        return None if scope == "tenure" else self.of_side(f"slots {scope}")

    def of_record(self, space: str, key: str) -> int:
        return self.of_side(f"record {space} {key}")

    def order_of_call(self, key: str) -> list[int]:
        """The shards in the order in which a keyed call prefers them. The first one stays the first
        while tenants are moved."""
        text = f"key {key}".encode(errors="surrogatepass")
        side = sorted(self._side, key=lambda number: self._weight(number, text), reverse=True)
        return side + [number for number in self.used if number not in self._side]

    def of_schedule(self, name: str, job: JobSpec) -> int:
        """The shard of a schedule: that of the jobs it enqueues."""
        place = self.of_job(job)
        return self.of(f"schedule {name}") if place is None else place
