"""State shared by all transactions of one engine."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from tenure.clock import Clock
from tenure.engines.foundationdb.claimed_jobs import ClaimedJobs
from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.lease_limits import Rules
from tenure.engines.foundationdb.near import Scatter
from tenure.engines.foundationdb.versions import VERSIONS_PER_MS, Jumped, Pace
from tenure.settings import Settings

NTP_GRACE_MS = 60_000  # for two machines whose clocks are off by up to 30 s each
ASIDE_FROM = 32  # with fewer lanes held back, a claim skips them without putting them aside
VERSION_GRACE_MS = 6_000  # a transaction may be up to 5 s older than its commit


class Lease(NamedTuple):
    """The duration of a lease, by two clocks."""

    until: int  # by the claimer's clock
    ms: int
    version: int  # of the store, when the lease began or was last extended


class Store:
    """A directory of a cluster, as used by one client."""

    def __init__(
        self,
        handle: Any,
        db: Any,
        keys: Keys,
        *,
        settings: Settings,
        clock: Clock,
        hybrid: bool,
        chance: random.Random,
        aside_from: int,
        near_from: int,
    ) -> None:
        self.handle = handle  # the module fdb, or its simulation
        self.db = db
        self.keys = keys
        self.settings = settings
        self.sweep: int = settings.sweep
        self.clock = clock
        self.hybrid = hybrid  # judge leases by two clocks, neither of which is exact
        self.pace: Pace = Pace(clock)
        self.noted: Jumped | None = None  # the last jump found here that is noted in the store
        self.chance = chance
        self.aside_from = aside_from
        self.near_from = near_from
        self.rules: dict[str, tuple[bytes, Rules]] = {}
        self.scatter: Scatter = Scatter()
        self.claimed: ClaimedJobs = ClaimedJobs()
        self.client: int = chance.getrandbits(31)
        self.count: itertools.count[int] = itertools.count()
        self.writers: itertools.count[int] = itertools.count()

    def lease_is_over_at(self, now: int, lease: Lease, read_version: int, jump: int) -> int:
        """When a lease has expired for certain, by this machine's clock. jump: the version of the
        last jump, which gives leases their full time again."""
        if not self.hybrid:
            return lease.until
        age_ms = (read_version - max(lease.version, jump)) // VERSIONS_PER_MS
        by_version = now + lease.ms + VERSION_GRACE_MS - age_ms
        return 1 + min(lease.until + NTP_GRACE_MS, by_version)

    def sweep_until(self, now: int) -> int:
        """No lease that ends later than this can have expired."""
        return now + NTP_GRACE_MS if self.hybrid else now
