"""What a page shows while the service is away, and afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Open, Place, served


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Place]:
    """A service of one test, which may kill it."""
    yield from served(tmp_path)


def test_a_lost_connection_is_told_and_found_again(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("mail", id="mail-1")
    page = tab(alone.at("queue/mail"))
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()
    alone.process.kill()
    lost = page.get_by_text("Connection lost.")
    expect(lost).to_be_visible()
    expect(page.get_by_role("button", name="Live")).to_have_count(0)
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()  # what was known stays
    alone.queue.enqueue("mail", id="mail-2")
    alone.process.start()
    page.get_by_role("button", name="Try now").click()
    expect(page.get_by_role("link", name="mail-2")).to_be_visible()
    expect(lost).to_have_count(0)
    expect(page.get_by_role("button", name="Live")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Connected again.")).to_be_visible()


def test_a_page_that_is_opened_while_the_network_is_away_fills_later(
    tab: Open, alone: Place
) -> None:
    alone.queue.enqueue("mail", id="mail-1")
    page = tab(alone.at("workers"))
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    page.context.set_offline(True)
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_text("Connection lost.")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("Waiting for the service")
    page.context.set_offline(False)
    expect(page.get_by_role("row").nth(1)).to_contain_text("mail")


def test_live_updates_can_be_turned_off(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("mail", id="mail-1")
    page = tab(alone.at("queue/mail"))
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()
    page.get_by_role("button", name="Live").click()
    alone.queue.enqueue("mail", id="mail-2")
    page.wait_for_timeout(2500)  # longer than between two updates
    expect(page.get_by_role("link", name="mail-2")).to_have_count(0)
    page.keyboard.press("l")
    expect(page.get_by_role("link", name="mail-2")).to_be_visible()


def test_a_page_that_fails_does_not_ask_again_and_again(tab: Open, alone: Place) -> None:
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        body = '{"code": "error", "detail": "this should not have happened"}'
        route.fulfill(status=500, body=body)

    page = tab(alone.url)
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    page.route("**/v1/schedules", refuse)
    page.goto(alone.at("schedules"))
    expect(page.get_by_role("main")).to_contain_text("this should not have happened")
    for n in range(30):
        alone.queue.enqueue("mail", n)
        page.wait_for_timeout(100)
    assert 1 <= len(asked) <= 6
