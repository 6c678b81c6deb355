"""The cells of the table that are quick and depend on no speed: what fails for one costs others no
job. For the whole table: make blast."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blast.parts import Crash, FullDisk, ShardAway, Skipped, Stage
from tests.blast.promises import tried_out


class BriefShardAway(ShardAway):
    least_seconds = 1.5
    has_long_jobs = False

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, seconds)
        self.lease = 30.0  # as on a busy machine nothing else may end it
        self.place.settings["TENURE_BUSY_TIMEOUT"] = "0.3"


class BriefFullDisk(FullDisk):
    least_seconds = 1.5
    has_long_jobs = False

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, seconds)
        self.lease = 30.0


class BriefCrash(Crash):
    has_long_jobs = False


@pytest.mark.parametrize("part", [BriefShardAway, BriefFullDisk, BriefCrash])
def test_what_fails_for_one_costs_others_no_job(tmp_path: Path, part: type[Stage]) -> None:
    try:
        found = tried_out(part(tmp_path, 1.0), quiet=0.2, on_phase=lambda phase: None)
    except Skipped as why:
        pytest.skip(str(why))
    assert found["once"].kept, found
