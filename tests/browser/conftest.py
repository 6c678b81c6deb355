"""A browser, and a service with workers that it looks at.

Fixtures of a browser last for one module at most: while Playwright is active, its event loop runs
in this thread, and tests elsewhere run loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import tenure
from tests.browser import install
from tests.server.process import ServiceProcess

# The first is for root; the others keep the browser from talking to its maker.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PATIENCE_MS = 15_000
# Everything that the policy of a page forbids is noted, as is a script that should not have run.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(event.violatedDirective + " " + event.blockedURI + " " + event.sample));
window.alert = (text) => window.violations.push("alert " + text);
"""
EXPECTED = (
    "400",
    "401",
    "403",
    "404",
    "500",
    "ERR_CONNECTION",
    "ERR_INTERNET",
    "ERR_EMPTY_RESPONSE",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if install.is_skipped():
        pytest.skip("TENURE_BROWSER=none")
    path = install.browser()
    assert path is not None, "there is no browser: `python -m tests.browser.install` installs one"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Tab:
    """A page, with all that went wrong in it."""

    def __init__(self, context: BrowserContext) -> None:
        self.troubles: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", lambda said: self._heard(said.type, said.text))
        self.page.on("request", lambda request: self._requested(request.url))
        self.hosts: set[str] = set()

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and not any(one in text for one in EXPECTED):
            self.troubles.append(f"console: {text}")

    def _requested(self, url: str) -> None:
        self.hosts.add(url.split("/")[2] if "//" in url else url[:30])

    def check(self) -> None:
        """Nothing was forbidden, nothing failed, and nothing came from elsewhere."""
        assert self.page.evaluate("window.violations") == []
        assert self.troubles == []
        assert len(self.hosts) == 1, self.hosts


Open = Callable[..., Page]


@pytest.fixture
def tab(browser: Browser) -> Iterator[Open]:
    """Opens pages, and checks at the end that none had trouble."""
    tabs: list[tuple[BrowserContext, Tab]] = []

    def open(url: str, token: str | None = None, **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options}
        context = browser.new_context(**options)
        context.add_init_script(WATCH)
        tabs.append((context, Tab(context)))
        page = tabs[-1][1].page
        if token is not None:
            sign_in(page, url, token)
        page.goto(url)
        return page

    yield open
    for context, tab in tabs:
        tab.check()
        context.close()


def sign_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Pages").wait_for()


class Place:
    """A service that works, and the store that it serves."""

    def __init__(self, process: ServiceProcess, queue: tenure.Queue) -> None:
        self.process = process
        self.queue = queue

    @property
    def url(self) -> str:
        return self.process.url

    def at(self, path: str) -> str:
        """The address of a page."""
        return f"{self.url}/#/{path}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service with workers, without tokens."""
    folder = tmp_path_factory.mktemp("place")
    yield from served(folder, "--workers-in-process", "tests.browser.errands:app")


def served(folder: Path, *options: str) -> Iterator[Place]:
    """A service with these options."""
    process = ServiceProcess(folder, *options)
    try:
        process.start()
        with tenure.connect(process.store) as queue:
            yield Place(process, queue)
    finally:
        process.kill()
