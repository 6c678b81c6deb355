"""The operation."""

from __future__ import annotations

from typing import ClassVar

from tenure.model.ops import JobsOp


class RunNow(JobsOp, frozen=True):
    """Make delayed jobs, and those that wait for their next attempt, ready now. Their attempts
    stay as they are."""

    words: ClassVar[str] = "run jobs now"
