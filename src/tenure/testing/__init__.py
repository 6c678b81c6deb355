"""Helpers for testing programs that use Tenure: a manual clock, and a sandbox for an app."""

from tenure.testing.crashes import CrashReport
from tenure.testing.sandbox import ManualClock, Sandbox

__all__ = ["CrashReport", "ManualClock", "Sandbox"]
