"""What an engine on FoundationDB is judged by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass
class Stats:
    """Counted from the opening of a database. Reads that own writes answer cost nothing, and are
    not counted; a commit that wrote nothing does not reach the cluster either."""

    commits_attempted: int = 0
    commits_committed: int = 0
    commits_conflicted: int = 0
    commits_unknown: int = 0  # answered with commit_unknown_result or cut off by a timeout
    commits_failed: int = 0  # too old, too large, or refused before it was sent
    commits_read_only: int = 0
    read_versions: int = 0
    point_reads: int = 0
    range_reads: int = 0
    keys_read: int = 0
    bytes_read: int = 0
    keys_written: int = 0  # mutations of commits that were applied; a cleared range is one
    bytes_written: int = 0
    watches_set: int = 0
    watches_fired: int = 0
    faults: int = 0  # put in on purpose

    @classmethod
    def sum(cls, parts: Iterable[Stats]) -> Stats:
        total = cls()
        for part in parts:
            for field in fields(cls):
                setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))
        return total

    def since(self, before: Stats) -> Stats:
        """What was added after `before` was copied."""
        return Stats(
            **{
                field.name: getattr(self, field.name) - getattr(before, field.name)
                for field in fields(self)
            }
        )
