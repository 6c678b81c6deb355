"""The examples that are scripts."""

from __future__ import annotations

import re
from pathlib import Path

import tenure
from tests.examples.programs import EXAMPLES, run


def test_the_plain_script_prints_its_results_each_time_it_is_run(tmp_path: Path) -> None:
    for times in (1, 2):
        printed = run(EXAMPLES / "plain_script.py", folder=tmp_path)
        assert "refused: add: Expected `int`, got `str` at `b`" in printed
        assert "2 + 3 = 5" in printed
        assert "example.com answered at attempt 3" in printed
        assert "is dead: there is no order 17" in printed
        assert "in an hour: pending" in printed
        assert printed.count("dead: order {'number': 17} there is no order 17") == times
    with tenure.connect(f"sqlite:///{tmp_path / 'plain_script.db'}") as queue:
        stats = queue.stats("default")
    assert (stats.done, stats.dead, stats.cancelled, stats.leased) == (4, 2, 2, 0)


def test_the_chain_and_the_group_read_what_came_before_them(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "chain_and_group.py", folder=tmp_path).splitlines()
    assert printed[:3] == ["front page: THE QUICK BROWN FOX", "words: [4, 2, 3]", "in all: 9"]
    assert re.fullmatch(r"called off: job '.*' is cancelled.*", printed[3])
    assert len(printed) == 4


def test_every_example_is_in_the_list() -> None:
    page = (EXAMPLES / "README.md").read_text()
    there = {path.name for path in EXAMPLES.iterdir() if path.name != "README.md"}
    named = set(re.findall(r"^\| \[\w+(?:\.py)?\]\(([\w.]+)\)", page, re.M))
    assert named == there - {"__pycache__"}
