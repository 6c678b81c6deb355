"""The examples that are scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tenure
from tests.examples.programs import EXAMPLES, run
from tests.server.process import ServiceProcess
from tests.workers.life import until


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
    printed = run(EXAMPLES / "chain_and_fan_out.py", folder=tmp_path).splitlines()
    assert printed[:3] == ["front page: THE QUICK BROWN FOX", "words: [4, 2, 3]", "in all: 9"]
    assert re.fullmatch(r"cancelled: job '.*' is cancelled.*", printed[3])
    assert len(printed) == 4


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_worker_in_node_runs_jobs_over_http(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path).start()
    node = subprocess.Popen(
        ["node", EXAMPLES / "node_worker.mjs"], env={**os.environ, "TENURE_URL": service.url}
    )
    try:
        with tenure.connect(service.url) as queue:
            queue.enqueue("mail", {"to": "ann@example.com"}, id="good")
            queue.enqueue("mail", {}, id="bad", max_attempts=1)
            until(lambda: queue.stats("mail").unfinished == 0)
            assert queue.get("good").result == {"sent": True}
            (failure,) = queue.get("bad").errors
            assert (failure.type, failure.message) == ("TypeError", "there is no address")
            node.terminate()
            queue.enqueue("mail", {"to": "bob@example.com"})  # ends its wait
        assert node.wait(30) == 0
    finally:
        node.kill()
        node.wait(30)
        service.kill()


def test_every_example_is_in_the_list() -> None:
    page = (EXAMPLES / "README.md").read_text()
    there = {path.name for path in EXAMPLES.iterdir() if path.name != "README.md"}
    named = set(re.findall(r"^\| \[\w+(?:\.m?[jp][sy])?\]\(([\w.]+)\)", page, re.M))
    assert named == there - {"__pycache__"}
