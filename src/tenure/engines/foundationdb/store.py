"""What all transactions of one engine share."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.limits import Rules

VERSIONS_PER_MS = 1_000
NTP_GRACE_MS = 60_000  # between two machines whose clocks are wrong by up to 30 s each
ASIDE_FROM = 32  # a claim passes over fewer lanes that are held back without putting them aside
VERSION_GRACE_MS = 6_000  # a transaction is up to 5 s older than its commit


class Lease(NamedTuple):
    """For how long a job was given out, by two clocks."""

    until: int  # by the clock of the claimer
    ms: int
    version: int  # of the store, when the lease began or was last extended


class Store:
    """A directory of a cluster, seen by one client."""

    def __init__(
        self,
        handle: Any,
        db: Any,
        keys: Keys,
        *,
        sweep: int,
        hybrid: bool,
        chance: random.Random,
        aside_from: int,
    ) -> None:
        self.handle = handle  # the module: fdb, or its simulation
        self.db = db
        self.keys = keys
        self.sweep = sweep
        self.hybrid = hybrid  # judge leases by two clocks, neither of which is quite right
        self.chance = chance
        self.aside_from = aside_from
        self.rules: dict[str, tuple[bytes, Rules]] = {}
        self.client = chance.getrandbits(31)
        self.count = itertools.count()

    def lease_is_over_at(self, now: int, lease: Lease, read_version: int) -> int:
        """When nobody may rely on a lease any longer, by this machine's clock."""
        if not self.hybrid:
            return lease.until
        age_ms = (read_version - lease.version) // VERSIONS_PER_MS
        by_version = now + lease.ms + VERSION_GRACE_MS - age_ms
        return 1 + min(lease.until + NTP_GRACE_MS, by_version)

    def sweep_until(self, now: int) -> int:
        """No lease that ends later than this can be over."""
        return now + NTP_GRACE_MS if self.hybrid else now
