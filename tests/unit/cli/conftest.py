from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.cli.terminal import Terminal


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal whose store does not exist yet."""
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    return Terminal(tmp_path)


@pytest.fixture
def cli(fresh: Terminal) -> Terminal:
    """A terminal with an empty store."""
    fresh.open().close()
    return fresh
