"""A program's connection: what its transactions share."""

from __future__ import annotations

import random
import weakref

from tenure.clock import Clock
from tests.fdb_sim.cluster import Cluster
from tests.fdb_sim.faults import Dice, Faults
from tests.fdb_sim.futures import WatchFuture
from tests.fdb_sim.options import DatabaseOptions
from tests.fdb_sim.stats import Stats


class SkewedClock:
    """A machine's clock that is wrong by a constant."""

    def __init__(self, clock: Clock, skew_ms: int) -> None:
        self._clock = clock
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.skew_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class Client:
    """One of the programs that use a cluster."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self.cluster = cluster
        self.dice = Dice(faults)
        self.chance = random.Random(faults.seed)  # of what the binding draws by chance
        self.options = DatabaseOptions()
        self.stats = Stats()
        self.watches: weakref.WeakSet[WatchFuture] = weakref.WeakSet()
        cluster.join(self.stats)

    def may_watch(self) -> bool:
        """Whether there is room for another watch."""
        most = self.options.max_watches
        if len(self.watches) < most:
            return True
        return sum(1 for watch in self.watches if not watch.answered) < most
