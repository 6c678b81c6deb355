"""What axe-core finds on each page, light and dark, wide and narrow."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import Page, expect

from tenure import NewJob
from tests.browser import install
from tests.browser.conftest import Open, Place

PAGES = {
    "": "Queues",
    "queue/post": "post-1",
    "queue/post?state=dead": "post-2",
    "queue/post?view=tenants": "acme",
    "queue/post?view=groups": "may",
    "queue/post?view=limits": "each tenant",
    "job/post-1": "Payload",
    "job/post-2": "boom",
    "errors": "Errors",
    "workers": "Workers",
    "schedules": "nightly",
    "audit": "Audit",
    "search?q=post": "Queues",
    "nowhere": "Not found",
}


@pytest.fixture(scope="module")
def axe() -> str:
    if not install.AXE.exists():
        assert shutil.which("npm") is None, "`python -m tests.browser.install` installs axe-core"
        pytest.skip("there is no axe-core: `python -m tests.browser.install` says why")
    return install.AXE.read_text("utf-8")


@pytest.fixture(scope="module", autouse=True)
def jobs(place: Place) -> None:
    queue = place.queue
    queue.enqueue("post", id="post-2", tenant="bolt", max_attempts=1)
    queue.fail(queue.claim("post")[0], ValueError("boom"))
    queue.enqueue("post", {"to": ["ann", 1, None]}, id="post-1", tenant="acme", group="may")
    queue.limits.set("post", tenant="*", concurrency=3)
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="post"))
    queue.enqueue("reports")
    queue.pause("reports")


def violations(page: Page, axe: str) -> list[str]:
    page.evaluate(f"{axe}; null")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(tab: Open, place: Place, axe: str, scheme: str) -> None:
    page = tab(place.at(""), color_scheme=scheme)
    for path, sign in PAGES.items():
        page.goto(place.at(path))
        expect(page.get_by_role("main")).to_contain_text(sign)
        assert violations(page, axe) == [], path
    page.goto(place.at("job/post-1"))
    for name in ("Change…", "Delete…"):
        page.get_by_role("button", name=name).click()
        assert violations(page, axe) == [], name
        page.keyboard.press("Escape")


def test_a_narrow_page_does_not_scroll_sideways(tab: Open, place: Place, axe: str) -> None:
    page = tab(place.at(""), viewport={"width": 380, "height": 720})
    for path, sign in PAGES.items():
        page.goto(place.at(path))
        expect(page.get_by_role("main")).to_contain_text(sign)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path
    assert violations(page, axe) == []
