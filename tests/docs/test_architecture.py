"""The architecture page matches the code: its lists are those of additions that
`python -m tests.touched` makes."""

from __future__ import annotations

import ast

import pytest

from tests.touched import ADDITIONS, ROOT, Addition, listed


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda one: one.what)
def test_the_files_to_touch_are_those_that_an_addition_touches(addition: Addition) -> None:
    assert addition.sources == listed(addition.what)


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda one: one.what)
def test_an_addition_can_still_be_made(addition: Addition) -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in addition.paths}
    for edit in addition.edits:
        texts[edit.path] = edit.of(texts[edit.path])
    for path, text in texts.items():
        if path.endswith(".py"):
            ast.parse(text)
