"""What the caller of an operation or a query wants to do, in words, for messages."""

from __future__ import annotations

import re

from tenure.model import ops
from tenure.model.ops import Op
from tenure.model.queries import Query


def asked_for(kind: type[Op] | type[Query]) -> str:
    """In words: Enqueue -> enqueue jobs."""
    name = kind.__name__
    words = (
        getattr(kind, "words", "") or _WORDS.get(name) or _CAPITAL.sub(r" \1", name).strip().lower()
    )
    return f"{words} jobs" if issubclass(kind, ops.JobsOp) and words.count(" ") < 1 else words


_CAPITAL = re.compile(r"([A-Z])")
_WORDS = {
    **{name: f"{name.lower()} jobs" for name in ("Enqueue", "Claim")},
    **{name: f"{name.lower()} queues" for name in ("Pause", "Resume")},
    "Ack": "finish jobs",
    "PutSchedule": "store schedules",
    "DropSchedule": "drop schedules",
    "Fail": "fail jobs",
    "Extend": "extend leases",
    "Release": "give jobs back",
    "Progress": "report progress",
    "GetJob": "read jobs",
    "GetJobs": "read jobs",
    "FindIds": "find jobs",
    "FindByPrefix": "find jobs",
    "FindByKey": "find jobs",
    "ListRelated": "read jobs",
    "GetStats": "read the counts of queues",
    "NextDue": "see what is due",
    "OldestReady": "see how long jobs wait",
    "LongestWaits": "see how long jobs wait",
    "ListSchedules": "read schedules",
    "GetTimetable": "read schedules",
}
