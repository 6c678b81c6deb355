"""CONTRIBUTING.md names what exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_every_command_of_make_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    cells = re.findall(r"^\| (`make .*?) \|", TEXT, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(?:make )?([a-z-]+)", cell)}
    assert named >= {"lint", "test", "compare", "mutate", "crash-power", "fuzz", "simulate"}
    for name in named:
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def test_every_file_that_is_named_is_there() -> None:
    for path in re.findall(r"\b((?:tests|docs|src)/[\w/]+(?:\.\w+)?)", TEXT):
        assert (ROOT / path).exists(), path
