"""Calls on rates."""

from __future__ import annotations

from datetime import datetime

from tenure.features.rates.data import ListRates, Per, Rates
from tenure.model.fields import moment_ms, validated
from tenure.model.ops import good
from tenure.queue.sync_async import Caller, Steps, both

_BY_DEFAULT: dict[Per, int] = {"minute": 3_600_000, "hour": 7 * 86_400_000}


class HasRates(Caller):
    """A part of FeatureCalls."""

    def _rates(
        self, queue: str | None = None, *, per: Per = "minute", since: datetime | None = None
    ) -> Steps[Rates]:
        """Return what happened in one queue, or in all: jobs enqueued, claimed, done, failed and
        dead, and how long they waited and ran, by minute or by hour. since: by default, an hour
        ago, or a week ago if by hour. Minutes are kept for a day, hours for 90 days."""
        now = self._store.clock.now_ms()
        start = now - _BY_DEFAULT[per] if since is None else moment_ms("since", since)
        wanted = validated(ListRates(max(0, start), now, queue, per))
        return good((yield wanted), Rates)

    rates, arates = both(_rates)


CALLS = HasRates
