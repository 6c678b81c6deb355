"""The calls that features add to a queue."""

from tenure.features.audit.calls import HasAudit
from tenure.features.bulk.calls import Matching
from tenure.features.errors.calls import HasErrors
from tenure.features.live_workers.calls import HasWorkers
from tenure.features.rates.calls import HasRates
from tenure.features.run_now.calls import RunsNow
from tenure.features.why.calls import Explaining


class FeatureCalls(Explaining, HasErrors, HasWorkers, HasRates, RunsNow, Matching, HasAudit):
    """A part of Calls."""
