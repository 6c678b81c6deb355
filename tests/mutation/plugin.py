"""For pytest, in a copy of the tree: ends a test that hangs, and shrinks no example.

It also makes sure that the code under test is that of the copy.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import tenure

HUNG = "a test hangs"
_stderr = os.fdopen(os.dup(2), "w")  # before pytest captures it


def pytest_configure(config: pytest.Config) -> None:
    copy = os.environ["TENURE_MUTATED"]
    assert Path(tenure.__file__).is_relative_to(copy), f"{tenure.__file__} is not in {copy}"
    settings.register_profile(
        "mutation", phases=[Phase.explicit, Phase.generate], database=None, print_blob=False
    )
    settings.load_profile("mutation")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    faulthandler.dump_traceback_later(
        float(os.environ["TENURE_TEST_SECONDS"]), exit=True, file=_stderr
    )
    yield
    faulthandler.cancel_dump_traceback_later()
