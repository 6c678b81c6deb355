"""Durable steps: what a job has done is kept with it, and it can be suspended."""

from tenure.features.feature import Feature
from tenure.features.steps.data import (
    Checkpoint,
    ListSteps,
    Recall,
    ReplayFrom,
    Signal,
    Suspend,
    list_steps,
)

FEATURE = Feature(
    operations=(Checkpoint, Recall, Suspend, Signal, ReplayFrom), finders={ListSteps: list_steps}
)
