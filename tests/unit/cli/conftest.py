from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.cli.terminal import Terminal


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    return Terminal(tmp_path)
