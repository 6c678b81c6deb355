"""Counting equal values."""

from __future__ import annotations

import pytest

from tenure.model.tally import tally


@pytest.mark.parametrize("values", ["", "a", "aaa", "ab", "aab", "baa", "aba"])
def test_each_value_is_counted(values: str) -> None:
    found = tally(list(values))
    assert found == {letter: values.count(letter) for letter in values}
    assert list(found) == list(dict.fromkeys(values))
