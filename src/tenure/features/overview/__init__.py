"""The first page of the dashboard: all queues, and what needs attention."""

from tenure.features.feature import Feature

FEATURE = Feature()
