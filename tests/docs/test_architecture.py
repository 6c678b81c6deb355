"""The architecture page matches the code."""

from __future__ import annotations

import pytest

from tests.touched import ADDITIONS, SOURCE, Addition, found, listed

MOST = {"An operation": 6, "A query": 6, "A stored field": 6}


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda one: one.what)
def test_the_files_to_touch_are_those_that_were_touched_before(addition: Addition) -> None:
    assert found(addition) - addition.uses == listed(addition.what)


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda one: one.what)
def test_an_addition_touches_no_more_files_than_it_did(addition: Addition) -> None:
    assert len(listed(addition.what)) <= MOST[addition.what]


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda one: one.what)
def test_every_file_that_is_named_is_there(addition: Addition) -> None:
    for path in listed(addition.what) | addition.uses:
        assert (SOURCE / path).exists(), path
