"""The table of the sizes and times that tests change is true."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.support.sizes import WHERE, let


@pytest.mark.parametrize("name", WHERE)
def test_a_size_is_where_the_table_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, constant = f"tenure.{WHERE[name]}".rpartition(".")
    changed = object()
    let(monkeypatch, **{name: changed})
    assert getattr(importlib.import_module(module), constant) is changed


def test_every_size_is_changed_by_a_test() -> None:
    texts = [path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")]
    texts += [path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("conftest.py")]
    said = "\n".join(text for text in texts if "let(" in text)
    assert [name for name in WHERE if f"{name}=" not in said] == []
