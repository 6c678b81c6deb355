"""A machine that loses power keeps what was acknowledged. `make crash-power` makes 1,000 cuts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.power import Call, NoCompiler, problems_after, record

CUTS = 120


def recorded(folder: Path, synchronous: str) -> list[Call]:
    try:
        return record(folder, steps=15, synchronous=synchronous)
    except NoCompiler as error:
        pytest.skip(str(error))


def test_nothing_acknowledged_is_lost_with_the_power(tmp_path: Path) -> None:
    calls = recorded(tmp_path, "FULL")
    names = {call.id: Path(call.data.decode()).name for call in calls if call.op == "O"}
    kinds = Counter((names.get(call.id, ""), call.op) for call in calls)
    # The record contains commits, checkpoints, and truncated and removed logs to interrupt.
    for kind, least in {
        ("jobs.db-wal", "W"): 100,
        ("jobs.db-wal", "S"): 50,
        ("jobs.db-wal", "T"): 1,
        ("jobs.db", "W"): 50,
        ("jobs.db", "S"): 5,
        ("data", "S"): 1,  # the folder
        ("", "U"): 2,
        ("acks", "W"): 50,
    }.items():
        assert kinds[kind] >= least, (kind, kinds)
    assert problems_after(calls, CUTS, seed=0) == []


def test_a_store_that_did_not_wait_for_the_disk_would_be_found_out(tmp_path: Path) -> None:
    problems = problems_after(recorded(tmp_path, "OFF"), 20, seed=0)
    assert any("was enqueued, and is lost" in one for one in problems)
