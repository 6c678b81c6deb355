"""Actions on all jobs that a filter matches, in the background."""

from tenure.features.feature import Feature

FEATURE = Feature()
