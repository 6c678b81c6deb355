"""Run now: delayed jobs, and those that wait for their next attempt, become ready at once."""

from tenure.features.feature import Feature
from tenure.features.run_now.data import RunNow
from tenure.model.job import State

FEATURE = Feature(operations=(RunNow,), actions={"run_now": (RunNow, frozenset({State.PENDING}))})
