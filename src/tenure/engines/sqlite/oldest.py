"""When the longest-waiting ready job of a queue became ready.

Only the first job of each *line* counts: the ready jobs of a lane with the same priority.

Jobs that have changed since they were enqueued are found by an index. An index of all others would
slow down every enqueue and claim. These became ready in the order of their seqs, and can be added
only at the end. So a process that asks repeatedly remembers the first job of each line in a heap.
It looks at the lines with the oldest ones, and corrects these lines until their first jobs are
still ready. Lines that it does not know are newer than all that it remembers.

With 10,000 lanes this takes 0.2 ms instead of 8, and with 50,000 0.3 ms instead of 43; with 100,
0.5 ms instead of 0.1.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from tenure.engines.sqlite.db import Db, listed

MOST_LINES = 10_000  # of a queue that are remembered, those with the oldest jobs
MOST_REMEMBERED = 100_000  # of all queues: about 15 MB
MOST_CHANGED = 500  # jobs of the index that are looked at
AT_ONCE = 100  # lines that are looked at together
MOST_ROUNDS = 20
# Clocks of programs may differ this much. One that is set back further is noticed when it is read
# before it has caught up; otherwise a result may be wrong by as much, and no longer than KEPT_MS.
CLOCK_MS = 10_000
KEPT_MS = 600_000

Line = tuple[int, int, int]  # the seq of its first job, its lane and priority
First = tuple[int, int, bool]  # seq, when it was enqueued, and whether it has changed since


class Lines(NamedTuple):
    """The lines of a queue that had jobs at one time, as a heap."""

    heap: list[Line]
    seen_at: int
    last_seq: int  # of the store, at that time
    upto: int  # lines whose first jobs have higher seqs, or are newer than `until`, are not known
    until: int

    def are_valid(self, last_seq: int, now: int) -> bool:
        """Whether they were seen in an earlier snapshot than this, and not long ago."""
        return self.last_seq <= last_seq and self.seen_at <= now < self.seen_at + KEPT_MS

    def oldest(self, db: Db, changed: int | None) -> int | None:
        """When the oldest first job became ready; None if that is not known. `changed` is the same
        of jobs that have changed."""
        aside: list[Line] = []  # their first jobs have changed
        found: int | None = None
        for _ in range(MOST_ROUNDS):
            if not self.heap:
                found = changed
                break
            firsts, are_same = self._look_at_next(db)
            lines = [(seq, *line) for line, (seq, _, _) in firsts.items()]
            times = [at for _, at, has_changed in firsts.values() if not has_changed]
            all_times = [at for _, at, _ in firsts.values()]
            if are_same and (times or (changed is not None and changed <= min(all_times))):
                found = min(times if changed is None else [*times, changed])
                aside += lines
                break
            if are_same:
                aside += lines
            else:
                self._push(lines)
        self._push(aside)
        return found

    def _look_at_next(self, db: Db) -> tuple[dict[tuple[int, int], First], bool]:
        """The first jobs of the next lines, which leave the heap, and whether all of them are
        unchanged."""
        some = [heapq.heappop(self.heap) for _ in range(min(AT_ONCE, len(self.heap)))]
        asked = listed([(lane, priority) for _, lane, priority in some])
        firsts: dict[tuple[int, int], First] = {
            (lane, priority): (seq, created_at, bool(has_changed))
            for lane, priority, seq, created_at, has_changed in db.all("first_in_lines", asked)
            if seq <= self.upto and created_at <= self.until  # even if a seq was used again
        }
        are_same = len(firsts) == len(some) and all(
            firsts[lane, priority][0] == seq for seq, lane, priority in some
        )
        return firsts, are_same

    def _push(self, lines: list[Line]) -> None:
        for line in lines:
            heapq.heappush(self.heap, line)


class OldestReady:
    """What a process remembers of each queue. Threads that ask at the same time do not share it."""

    def __init__(self) -> None:
        self._lines: dict[int, Lines] = {}

    def find(self, db: Db, queue: int, now: int) -> int | None:
        """When the oldest first job of a queue became ready, in the snapshot of `db`."""
        params = {"queue": queue, "most": MOST_CHANGED}
        row = db.named("oldest_changed", params)
        changed: int | None = row[0][0] if row else None
        if not row and db.named("are_many_changed", params)[0][0]:
            return _in_all_lines(db, queue)
        ((last_seq,),) = db.all("last_seq")
        lines = self._lines.pop(queue, None)
        if lines is not None and lines.are_valid(last_seq, now):
            found = lines.oldest(db, changed)
            if found is not None and found <= lines.until - CLOCK_MS:
                self._keep(queue, lines)
                return found
        lines = _all_lines(db, queue, now, last_seq)
        if not lines.heap:
            return None
        found = lines.oldest(db, changed)
        self._keep(queue, lines)
        is_known = found is not None and found <= lines.until
        return found if is_known else _in_all_lines(db, queue)

    def _keep(self, queue: int, lines: Lines) -> None:
        others = sum(len(kept.heap) for kept in list(self._lines.values()))
        if others + len(lines.heap) > MOST_REMEMBERED:
            self._lines.clear()
        self._lines[queue] = lines


def _all_lines(db: Db, queue: int, now: int, last_seq: int) -> Lines:
    heap: list[Line] = db.named("lines_of_queue", {"queue": queue, "most": MOST_LINES})
    if len(heap) < MOST_LINES:
        return Lines(heap, now, last_seq, last_seq, now)  # a sorted list is a heap
    upto, lane, priority = heap[-1]
    ((_, _, _, created_at, _),) = db.all("first_in_lines", listed([(lane, priority)]))
    return Lines(heap, now, last_seq, upto, min(now, created_at))


def _in_all_lines(db: Db, queue: int) -> int | None:
    ((found,),) = db.named("oldest_in_lines", {"queue": queue})
    return None if found is None else int(found)
