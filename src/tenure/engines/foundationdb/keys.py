"""All keys of the store, in one directory of the directory layer, each a tuple of the tuple layer.

The first element is the kind of the key. `seq` below means the three numbers of a job's place in
enqueue order: the read version of the transaction that enqueued it, a number of the client, and a
count. An enqueue that starts after another has returned reads at a later version, so these sort in
the order of calls, and are known before the commit.

| kind | key, and an example | value |
|---|---|---|
| JOB | (0, id): (0, "mail-7") | the record, without large values |
| BODY | (1, id, part): (1, "mail-7", 0) | the payload and `after`, in parts |
| ERRORS | (2, id, part): (2, "mail-7", 0) | the failures kept, in parts |
| RESULT | (3, id, part): (3, "mail-7", 0) | the result, in parts |
| CLAIM | (4, id, versionstamp): (4, "mail-7", <00 00 3c 2f 00 11 22 33 00 00 00 00>) | who wants \
the pending job and for how long; the lowest key wins |
| READY | (5, queue, tenant, group, priority, seq, id): (5, "mail", "acme", "", 0, 66000000, 77, \
1, "mail-7") | nothing: a job that can be claimed |
| LANE | (6, queue, tenant, hash of group, group): (6, "mail", "acme", 4711, "g") | nothing: there \
may be READY keys with this tenant and group |
| TURN | (7, queue, hash of tenant, tenant): (7, "mail", 815, "acme") | nothing: there may be LANE \
keys of this tenant |
| LEASE | (8, queue, tenant, group, id): (8, "mail", "acme", "", "mail-7") | nothing: the job is \
leased |
| ENDING | (9, queue, lease_until, seq, id): (9, "mail", 1700000060000, 66000000, 77, 1, "mail-7") \
| nothing: the lease ends then, unless it is a lost claim |
| DELAYED | (10, queue, run_at, seq, id): (10, "mail", 1700000060000, 66000000, 77, 1, "mail-7") | \
nothing: pending, but not READY |
| EXPIRING | (11, queue, expires_at, seq, id): (11, "mail", 1700000060000, 66000000, 77, 1, \
"mail-7") | nothing: waiting or pending, and expires then |
| LISTED | (12, queue, seq, id): (12, "mail", 66000000, 77, 1, "mail-7") | nothing: any job |
| ENDED | (13, queue, state, finished_at, seq, id): (13, "mail", "done", 1700000060000, 66000000, \
77, 1, "mail-7") | nothing: a finished job |
| UNIQUE | (14, queue, tenant, unique_key): (14, "mail", "acme", "welcome-5") | the id of the live \
job that holds the key |
| WAITS | (15, id, parent): (15, "mail-7", "mail-6") | nothing: waits for the parent |
| CHILD | (16, parent, id): (16, "mail-6", "mail-7") | nothing: the same from the other side |
| QUEUE_COUNT | (17, queue, what): (17, "mail", "done") | a count, 8 bytes, changed by atomic adds |
| TENANT_COUNT | (18, queue, tenant, what): (18, "mail", "acme", "active") | the same of a tenant |
| GROUP_COUNT | (19, queue, tenant, group, what): (19, "mail", "acme", "g", "dead") | of a group |
| QUEUE | (20, queue): (20, "mail") | when maintenance found the queue without jobs and limits; \
nothing if it is in use |
| LIMIT | (21, queue, tenant or None, group or None): (21, "mail", "acme", None) | a Limit as JSON |
| RULES | (22, queue): (22, "mail") | random bytes, new with each change of a limit; then the \
first key of PARKED that must be looked at because of it, if any |
| TAKEN | (23, queue, tenant or None, group or None): (23, "mail", None, None) | leases taken \
under a limit, 8 bytes |
| FREED | (24, queue, tenant or None, group or None): (24, "mail", None, None) | of these, given \
back; the difference is in use |
| BUCKET | (25, queue): (25, "mail") | the tokens of a rate, and at which version (without those \
that jumps have skipped) they were counted |
| SLOT | (26, scope, key, holder): (26, "team", "acme", "worker-1") | when it ends |
| SLOT_END | (27, expires_at, scope, key, holder): (27, 1700000060000, "team", "acme", "worker-1") \
| nothing |
| SCHEDULE | (28, name): (28, "nightly") | a Schedule as JSON |
| ONCE | (29, key, part): (29, "9f0c", 0) | the results of keyed operations, in parts |
| ONCE_AT | (30, when, key): (30, 1700000000000, "9f0c") | nothing: when the key was used |
| DID | (31, bytes): (31, <16 random bytes>) | the versionstamp of a batch that was committed |
| WAKE | (32, shard): (32, 3) | a count that waiting processes watch |
| FORMAT | (33,) | the version of this table |
| PARKED | (34, queue, tenant, group or None): (34, "mail", "acme", None) | nothing: has ready \
jobs, but is paused or full, so that its LANE, or without a group its TURN, is missing |
| CLOCK | (35, client): (35, 4711) | the time of a scheduler's clock, and at which version |
| GROUP_TOTAL | (36, queue, group, what): (36, "mail", "g", "unfinished") | how many jobs a group \
has, all tenants together: "unfinished" or "finished" |
| RECORD | (37, space, key): (37, "worker", "host-1") | when the record ends, if ever, and its \
value |
| RECORD_END | (38, expires_at, space, key): (38, 1700000060000, "worker", "host-1") | nothing: \
the record ends then, unless it was replaced |
| ERROR | (39, error group, seq, id): (39, "0a1b2c3d4e5f", 66000000, 77, 1, "mail-7") | nothing: \
the last failure of the job is of this group |
| SEEN | (40,) | up to which version all jumps of versions are noted, and the time then: twice 8 \
bytes |
| JUMP | (41,) | the version at which the last jump was found, and how many versions all jumps \
have skipped: twice 8 bytes |
"""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

from tenure.engines.foundationdb.tuple_layer import (
    Subspace,
    append_versionstamp,
    pack,
    pack_int,
    pack_str,
    unpack,
)

JOB, BODY, ERRORS, RESULT, CLAIM, READY, LANE, TURN, LEASE, ENDING = range(10)
DELAYED, EXPIRING, LISTED, ENDED, UNIQUE, WAITS, CHILD = range(10, 17)
QUEUE_COUNT, TENANT_COUNT, GROUP_COUNT, QUEUE, LIMIT, RULES, TAKEN, FREED, BUCKET = range(17, 26)
SLOT, SLOT_END, SCHEDULE, ONCE, ONCE_AT, DID, WAKE, FORMAT, PARKED, CLOCK = range(26, 36)
GROUP_TOTAL, RECORD, RECORD_END, ERROR, SEEN, JUMP = range(36, 42)

# No transaction conflicts on these keys: they are found by snapshot reads, and checked against the
# job's own key.
HINTS = frozenset((BODY, READY, ENDING, DELAYED, EXPIRING, LISTED, ENDED, ERRORS, RESULT, ERROR))

_MOST_KNOWN = 2_000  # prefixes

RING = 1 << 16  # hashes of tenants and groups are below this

Seq = tuple[int, int, int]
E = TypeVar("E")


def hash_of(name: str) -> int:
    """The position of a name on the ring of names."""
    return zlib.crc32(name.encode()) % RING


def stamp_of(claim: bytes) -> bytes:
    """The versionstamp of a CLAIM key, without its user version."""
    return claim[-12:-2]


def _remember(known: dict[E, bytes], elements: E, packed: bytes) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[elements] = packed


class Keys:
    """The keys of one store."""

    def __init__(self, root: Subspace) -> None:
        self._prefix = root.key()
        self._kinds = [pack((kind,), self._prefix) for kind in range(JUMP + 1)]
        self._length = len(self._prefix)
        self._hints = frozenset(self._kinds[kind][self._length :] for kind in HINTS)
        self._known: dict[tuple[Any, ...], bytes] = {}
        self._ids: dict[str, bytes] = {}
        self._begins: dict[tuple[int, int], bytes] = {}

    def pack(self, kind: int, *elements: Any) -> bytes:
        """The key of a tuple."""
        return pack(elements, self._kinds[kind])

    def of_job(self, kind: int, job_id: str) -> bytes:
        """The key of a job, or what its keys of this kind begin with."""
        return self._kinds[kind] + self.own(job_id)

    def own(self, job_id: str) -> bytes:
        """The part of a key that encodes the id of a job."""
        known = self._ids.get(job_id)
        if known is None:
            known = pack_str(job_id)
            _remember(self._ids, job_id, known)
        return known

    def span_of_job(self, kind: int, job_id: str) -> tuple[bytes, bytes]:
        """The range of all longer keys of a job."""
        prefix = self._kinds[kind] + self.own(job_id)
        return prefix + b"\x00", prefix + b"\xff"

    def prefix(self, *elements: Any) -> bytes:
        """Like `pack`, and remembered, for what many keys begin with."""
        known = self._known.get(elements)
        if known is None:
            known = pack(elements[1:], self._kinds[elements[0]])
            _remember(self._known, elements, known)
        return known

    def seq(self, seq: Seq) -> bytes:
        """The part of a key that encodes a place in enqueue order."""
        begin, count = seq[:2], seq[2]
        known = self._begins.get(begin)
        if known is None:
            known = pack(begin)
            _remember(self._begins, begin, known)
        return known + pack_int(count)

    def kind(self, kind: int) -> bytes:
        """What keys of this kind begin with."""
        return self._kinds[kind]

    def unpack(self, key: bytes) -> tuple[Any, ...]:
        """The tuple of a key, without the first element."""
        return unpack(key, self._length)[1:]

    def span(self, kind: int, *elements: Any) -> tuple[bytes, bytes]:
        """The range of all longer tuples that begin with these elements."""
        prefix = pack(elements, self._kinds[kind])
        return prefix + b"\x00", prefix + b"\xff"

    def is_hint(self, key: bytes) -> bool:
        """Whether writes to this key need no write conflict range."""
        return key[self._length : self._length + 2] in self._hints

    def new_claim(self, job_id: str) -> bytes:
        """A CLAIM key whose versionstamp the commit fills in."""
        return append_versionstamp(self.of_job(CLAIM, job_id))

    def lane(self, queue: str, tenant: str, group: str) -> bytes:
        known = self._known.get((LANE, queue, tenant, group))
        if known is None:
            known = self.pack(LANE, queue, tenant, hash_of(group), group)
            _remember(self._known, (LANE, queue, tenant, group), known)
        return known

    def turn(self, queue: str, tenant: str) -> bytes:
        known = self._known.get((TURN, queue, tenant))
        if known is None:
            known = self.pack(TURN, queue, hash_of(tenant), tenant)
            _remember(self._known, (TURN, queue, tenant), known)
        return known
