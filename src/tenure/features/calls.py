"""The calls that features add to a queue: `CALLS` of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.features import parts

if TYPE_CHECKING:  # what editors and type checkers see
    from tenure.features.audit.calls import HasAudit
    from tenure.features.bulk.calls import Matching
    from tenure.features.errors.calls import HasErrors
    from tenure.features.live_workers.calls import HasWorkers
    from tenure.features.rates.calls import HasRates
    from tenure.features.run_now.calls import RunsNow
    from tenure.features.steps.calls import HasSteps
    from tenure.features.why.calls import Explaining

    class FeatureCalls(
        Explaining, HasErrors, HasWorkers, HasRates, RunsNow, HasSteps, Matching, HasAudit
    ):
        """A part of Calls."""
else:
    FeatureCalls = type("FeatureCalls", tuple(part.CALLS for part in parts("calls")), {})
