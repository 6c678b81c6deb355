"""The dashboard below a path of an application in FastAPI or Django."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import tenure
from tests.browser.conftest import Open
from tests.workers.life import ROOT, until


class Site:
    def __init__(self, folder: Path, module: str) -> None:
        store = f"sqlite:///{folder}/jobs.db"
        self.queue = tenure.connect(store)
        self._log = folder / "site.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", module, "--port", "0"],
                cwd=ROOT,
                env={**os.environ, "SITE_STORE": store, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stderr=log,
                stdout=log,
            )
        until(lambda: self._address() is not None or self._process.poll() is not None)
        assert self._address() is not None, self._log.read_text()
        self.url = f"{self._address()}/ops/tenure/"

    def _address(self) -> str | None:
        found = re.search(r"running on (http://\S+)", self._log.read_text())
        return None if found is None else found[1]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.queue.close()


@pytest.fixture(params=["fastapi_site", "django_site"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, f"tests.browser.{request.param}:app")
    yield site
    site.close()


def test_the_dashboard_works_below_a_path(site: Site, tab: Open) -> None:
    site.queue.enqueue("mail", {"to": "ann"}, id="tenant/1 of 2", delay=3600)
    page = tab(site.url)
    expect(page.get_by_role("banner")).to_contain_text("mounted")
    page.get_by_role("main").get_by_role("link", name="mail").click()
    page.get_by_role("link", name="tenant/1 of 2").click()
    expect(page.get_by_role("region", name="Payload")).to_contain_text("ann")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("main").get_by_text("ready", exact=True)).to_be_visible()
    assert site.queue.stats("mail").ready == 1
    page.get_by_role("link", name="The API").click()
    expect(page.get_by_role("heading", name="Tenure")).to_be_visible()
    page.get_by_role("link", name="openapi.json").click()
    assert page.url == f"{site.url}openapi.json"
    page.goto(site.url)  # a page of JSON has none of the notes that `tab` checks
