"""For tests of programs that use Tenure: a clock that tests move, and a sandbox for an app."""

from tenure.testing.sandbox import ManualClock, Sandbox

__all__ = ["ManualClock", "Sandbox"]
