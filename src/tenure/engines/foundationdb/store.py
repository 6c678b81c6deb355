"""What all transactions of one engine share."""

from __future__ import annotations

import itertools
import random
from typing import Any

from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.limits import Rules

VERSIONS_PER_MS = 1_000
NTP_GRACE_MS = 60_000  # between two machines whose clocks are wrong by up to 30 s each
VERSION_GRACE_MS = 6_000  # a transaction is up to 5 s older than its commit


class Store:
    """A directory of a cluster, seen by one client."""

    def __init__(
        self, handle: Any, db: Any, keys: Keys, *, sweep: int, hybrid: bool, chance: random.Random
    ) -> None:
        self.handle = handle  # the module: fdb, or its simulation
        self.db = db
        self.keys = keys
        self.sweep = sweep
        self.hybrid = hybrid  # judge leases by two clocks, neither of which is quite right
        self.chance = chance
        self.rules: dict[str, tuple[bytes, Rules]] = {}
        self.client = chance.getrandbits(31)
        self.count = itertools.count()

    def lease_is_over(
        self, now: int, lease_until: int, lease_ms: int, lease_version: int, read_version: int
    ) -> bool:
        """Whether nobody may rely on a lease any longer."""
        if not self.hybrid:
            return lease_until <= now
        age_ms = (read_version - lease_version) // VERSIONS_PER_MS
        return now > lease_until + NTP_GRACE_MS or age_ms > lease_ms + VERSION_GRACE_MS

    def sweep_until(self, now: int) -> int:
        """No lease that ends later than this can be over."""
        return now + NTP_GRACE_MS if self.hybrid else now
