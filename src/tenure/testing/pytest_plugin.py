"""A pytest fixture, registered automatically when Tenure is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tenure.tasks.app import Tenure
from tenure.testing import Sandbox


@pytest.fixture
def tenure_sandbox() -> Iterator[Callable[..., Sandbox]]:
    """Put an app into a sandbox for the rest of the test: `box = tenure_sandbox(app)`. Takes the
    options of `tenure.testing.Sandbox`."""
    with ExitStack() as stack:

        def enter(app: Tenure, **options: Any) -> Sandbox:
            return stack.enter_context(Sandbox(app, **options))

        yield enter
