"""Signing in, and what each kind of token is offered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tenure.server.token_file import create_token, revoke_token
from tests.browser.conftest import Open, Place, served, sign_in


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    return {
        "file": str(file),
        "admin": create_token(file, "night shift", ["admin"]),
        "reader": create_token(file, "reader", ["read"]),
        "acme": create_token(file, "acme", ["read", "produce"], tenants=["acme"]),
        "worker": create_token(file, "worker", ["work"]),
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, secrets: dict[str, str]) -> Iterator[Place]:
    options = ["--tokens", secrets["file"], "--redact", "password,Token"]
    options += ["--environment", "production", "--banner", "Maintenance at 22:00 <b>UTC</b>"]
    for place in served(tmp_path_factory.mktemp("guarded"), *options):
        queue = place.queue
        payload = {"to": "ann", "password": "hunter2", "deep": [{"TOKEN": {"a": "tnr_1"}}]}
        queue.enqueue("mail", payload, tenant="acme", id="mail-1", delay=3600)
        queue.enqueue("mail", {"to": "bob"}, tenant="bolt", id="mail-2")
        queue.enqueue("secret", tenant="bolt", id="secret-1")
        queue.enqueue("mail", tenant="acme", id="mail-3")
        queue.cancel("mail-3")
        queue.pause("secret")
        yield place


ACTIONS = (
    "Pause",
    "Resume",
    "Cancel",
    "Delete…",
    "Replay",
    "Run now",
    "Change…",
    "Edit and replay…",
)


def offered(page: Page) -> list[str]:
    found = page.get_by_role("main").get_by_role("button").all_inner_texts()
    return [text for text in found if text in ACTIONS]


def test_a_token_is_asked_for_and_kept_for_the_tab(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at("queue/mail"))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()
    page.get_by_label("Token").fill("tnr_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This token is not known.")
    page.get_by_label("Token").fill(secrets["admin"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="mail")).to_be_visible()
    expect(page.get_by_role("banner")).to_contain_text("night shift")
    page.reload()
    expect(page.get_by_role("heading", name="mail")).to_be_visible()
    other = page.context.new_page()
    other.goto(guarded.at("queue/mail"))
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("[document.cookie, localStorage.length]") == ["", 0]


def test_an_admin_is_offered_every_action(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at("job/mail-1"), secrets["admin"])
    expect(page.get_by_role("heading", name="mail-1")).to_be_visible()
    assert offered(page) == ["Run now", "Change…", "Cancel", "Delete…"]
    page.goto(guarded.at("job/mail-3"))
    expect(page.get_by_role("heading", name="mail-3")).to_be_visible()
    assert offered(page) == ["Replay", "Edit and replay…", "Delete…"]


def test_a_reader_is_offered_no_action(tab: Open, guarded: Place, secrets: dict[str, str]) -> None:
    page = tab(guarded.at(""), secrets["reader"])
    expect(page.get_by_role("row").nth(2)).to_be_visible()
    expect(page.get_by_role("banner")).to_contain_text("(read only)")
    for path, sign in (
        ("", "secret"),
        ("queue/mail", "mail-1"),
        ("queue/mail?view=tenants", "acme"),
        ("queue/mail?view=limits", "queue"),
        ("job/mail-1", "Payload"),
        ("job/mail-3", "Payload"),
        ("schedules", "Schedules"),
        ("errors", "Errors"),
        ("workers", "Workers"),
    ):
        page.goto(guarded.at(path))
        expect(page.get_by_role("main")).to_contain_text(sign)
        assert offered(page) == [], path
        assert page.get_by_role("main").locator("input[type=number]").count() == 0
    page.goto(guarded.at("job/secret-1"))
    why = page.get_by_role("region", name="Why")
    expect(why).to_contain_text("paused")
    assert why.get_by_role("button").count() == 0


def test_a_token_of_a_tenant_sees_its_own_jobs_and_may_cancel_them(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at("queue/mail"), secrets["acme"])
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()
    expect(page.get_by_role("link", name="mail-2")).to_have_count(0)
    page.goto(guarded.at(""))
    expect(page.get_by_role("row").nth(1)).to_contain_text("mail")
    expect(page.get_by_role("main")).not_to_contain_text("secret")
    page.goto(guarded.at("job/secret-1"))
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    page.goto(guarded.at("job/mail-1"))
    expect(page.get_by_role("heading", name="mail-1")).to_be_visible()
    assert offered(page) == ["Cancel"]


def test_a_token_of_a_tenant_is_not_led_to_pages_of_all_tenants(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at(""), secrets["acme"])
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link")).to_have_text(["Overview", "Schedules"])
    expect(page.get_by_role("columnheader", name="Workers")).to_have_count(0)
    page.goto(guarded.at("queue/mail?view=groups"))
    parts = page.get_by_role("navigation", name="Parts of the queue")
    expect(parts.get_by_role("link")).to_have_count(4)  # without rates
    expect(page.get_by_role("main")).to_contain_text("No groups.")
    page.goto(guarded.at("workers"))
    expect(page.get_by_role("main")).to_contain_text("only workers that serve nobody else")
    expect(page.get_by_role("main")).not_to_contain_text("No worker is alive")


def test_a_token_that_may_not_read_is_told_so(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at(""), secrets["worker"])
    expect(page.get_by_role("heading", name="This cannot be shown")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("'read'")


def test_the_environment_and_the_banner_are_on_every_page(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    page = tab(guarded.at(""), secrets["reader"])
    for path in ("", "queue/mail", "workers"):
        page.goto(guarded.at(path))
        expect(page.get_by_role("banner")).to_contain_text("production")
        expect(page.locator("#banner")).to_have_text("Maintenance at 22:00 <b>UTC</b>")


def test_named_fields_are_hidden_from_everybody_who_looks(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    for who in ("admin", "reader"):
        page = tab(guarded.at("job/mail-1"), secrets[who])
        payload = page.get_by_role("region", name="Payload")
        expect(payload).to_contain_text("[redacted]")
        expect(payload).to_contain_text("ann")
        payload.get_by_role("button", name="Text").click()
        text = page.content()
        assert "hunter2" not in text
        assert "tnr_1" not in text


def test_a_token_that_is_revoked_ends_the_session(
    tab: Open, guarded: Place, secrets: dict[str, str]
) -> None:
    secret = create_token(Path(secrets["file"]), "leaving", ["read"])
    page = tab(guarded.at(""))
    for _ in range(20):  # the service reads the file every second
        page.reload()
        page.get_by_label("Token").fill(secret)
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        if page.get_by_role("heading", name="Sign in").count() == 0:
            break
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    revoke_token(Path(secrets["file"]), "leaving")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, guarded.url, secrets["reader"])
