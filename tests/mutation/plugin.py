"""A pytest plugin for a copy of the tree: ends a test that hangs, and stops after the first
failure.

It turns off shrinking, and makes sure that the code under test is that of the copy.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import tenure

_stderr = os.fdopen(os.dup(2), "w")  # before pytest captures it


def pytest_configure(config: pytest.Config) -> None:
    copy = os.environ["TENURE_MUTATED"]
    assert Path(tenure.__file__).is_relative_to(copy), f"{tenure.__file__} is not in {copy}"
    settings.register_profile(
        "mutation", phases=[Phase.explicit, Phase.generate], database=None, print_blob=False
    )
    settings.load_profile("mutation")

    _watch()


def _watch() -> None:
    """Exit if nothing happens for too long, including between tests and after the last one."""
    seconds = float(os.environ["TENURE_TEST_SECONDS"])
    faulthandler.dump_traceback_later(seconds, exit=True, file=_stderr)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _watch()
    yield
    _watch()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Exit at the first failure. A mutated program may hang after it, and one failure is enough."""
    if report.failed and "TENURE_TEST_ALL" not in os.environ:
        _stderr.write(f"\nFAILED {report.nodeid}\n")
        _stderr.flush()
        os._exit(pytest.ExitCode.TESTS_FAILED)
