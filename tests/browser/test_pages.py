"""Each page of the dashboard, in a browser, over a service with workers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tenure import NewJob, fixed
from tests.browser.conftest import Open, Place
from tests.workers.life import until


def expect_soon(page: Page, text: str) -> None:
    expect(page.get_by_role("main")).to_contain_text(text)


@pytest.fixture(scope="module", autouse=True)
def jobs(place: Place) -> None:
    """Some jobs in each state, most of which no worker takes."""
    queue = place.queue
    queue.enqueue(
        "mail",
        {"to": "ann", "fails": True},
        kind="send",
        tenant="acme",
        id="dying",
        max_attempts=2,
        backoff=fixed(0.01),
    )
    queue.enqueue("reports", {"month": 5}, kind="report", tenant="acme", group="may", id="report-1")
    queue.enqueue("reports", {"month": 6}, tenant="bolt", id="report-2", delay=3600)
    queue.enqueue("reports", {"month": 7}, tenant="bolt", id="report-3", after=["report-1"])
    job = NewJob(queue="reports", payload={"all": True}, kind="report")
    queue.schedules.put("nightly", "0 3 * * *", job)
    until(lambda: queue.get("dying").state == "dead")


def test_the_overview_shows_queues_and_what_needs_attention(tab: Open, place: Place) -> None:
    page = tab(place.at(""))
    row = page.get_by_role("row").filter(has_text="reports")
    expect(row).to_contain_text("reports")
    attention = page.get_by_role("region", name="What needs attention")
    expect(attention).to_contain_text("mail: 1 job dead")
    expect(attention).to_contain_text("Most often ConnectionError: no route to ann")
    row.get_by_role("link", name="reports").click()
    expect(page.get_by_role("heading", name="reports")).to_be_visible()


def test_numbers_change_without_a_reload(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/live"))
    expect_soon(page, "Not found")
    place.queue.enqueue("live", id="live-1")
    page.goto(place.at("queue/live"))
    page.evaluate("window.same = true")
    expect(page.get_by_role("link", name="live-1")).to_be_visible()
    place.queue.enqueue("live", id="live-2")
    expect(page.get_by_role("link", name="live-2")).to_be_visible()
    place.queue.cancel("live-2")
    expect(page.get_by_role("link", name="live-2")).to_have_count(0)
    assert page.evaluate("window.same")


def test_a_queue_is_paused_and_resumed(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/reports"))
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Reason").fill("the printer is on fire")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("main").get_by_text("paused", exact=True)).to_be_visible()
    # Whoever comes next is told why.
    expect(page.get_by_role("region", name="attention")).to_contain_text("the printer is on fire")
    assert place.queue.stats("reports").queues["reports"].paused
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("main").get_by_text("paused", exact=True)).to_have_count(0)
    assert not place.queue.stats("reports").queues["reports"].paused


def test_filters_stand_in_the_address(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/reports"))
    expect(page.get_by_role("link", name="report-1")).to_be_visible()
    page.get_by_label("tenant", exact=True).fill("bolt")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("link", name="report-1")).to_have_count(0)
    assert "tenant=bolt" in page.url
    page.reload()
    expect(page.get_by_role("link", name="report-2")).to_be_visible()
    expect(page.get_by_label("tenant", exact=True)).to_have_value("bolt")
    page.get_by_role("link", name="waiting").click()
    expect(page.get_by_role("link", name="report-3")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("link", name="report-2")).to_be_visible()


def test_a_long_list_has_pages(tab: Open, place: Place) -> None:
    place.queue.enqueue_many([NewJob(queue="many", id=f"many-{n}") for n in range(120)])
    page = tab(place.at("queue/many"))
    expect(page.get_by_role("link", name="many-119")).to_be_visible()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="many-69")).to_be_visible()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="many-0", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    page.get_by_role("link", name="First page").click()
    expect(page.get_by_role("link", name="many-119")).to_be_visible()


def test_tenants_are_listed_by_depth_and_their_limits_are_set(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/reports?view=tenants"))
    expect(page.get_by_role("row").nth(1)).to_contain_text("bolt")
    page.get_by_role("button", name="Limits of bolt").click()
    page.get_by_label("Jobs at once").fill("4")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("0 / 4")
    page.get_by_role("link", name="limits").click()
    cell = page.get_by_label("Jobs at once of tenant bolt")
    expect(cell).to_have_value("4")
    cell.fill("6")
    cell.press("Enter")
    expect(page.get_by_role("status").filter(has_text="concurrency is 6")).to_be_visible()
    (limit,) = place.queue.limits.list("reports")
    assert (limit.tenant, limit.concurrency) == ("bolt", 6)
    page.get_by_role("button", name="Remove the limits of tenant").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(cell).to_have_count(0)
    assert place.queue.limits.list("reports") == []


def test_groups_are_listed(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/reports?view=groups"))
    page.get_by_role("link", name="may").click()
    expect(page.get_by_role("link", name="report-1")).to_be_visible()


def test_a_dead_job_shows_its_error_and_is_replayed(tab: Open, place: Place) -> None:
    page = tab(place.at("job/dying"))
    expect_soon(page, "no route to ann")
    expect_soon(page, "Traceback")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("created")
    expect(page.get_by_role("region", name="Payload")).to_contain_text('"ann"')
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="It will run again.")).to_be_visible()
    until(lambda: len(place.queue.get("dying").errors) >= 3)


def test_a_waiting_job_shows_its_parents(tab: Open, place: Place) -> None:
    page = tab(place.at("job/report-3"))
    parents = page.get_by_role("region", name="Dependencies")
    expect(parents).to_contain_text("report-1")
    parents.get_by_role("link").click()
    expect(page.get_by_role("heading", name="report-1")).to_be_visible()
    waiting = page.get_by_role("region", name="Dependencies")
    expect(waiting).to_contain_text("These wait for it")
    waiting.get_by_role("link", name="report-3").click()
    expect(page.get_by_role("heading", name="report-3")).to_be_visible()


def test_a_job_that_runs_is_cancelled_after_a_question(tab: Open, place: Place) -> None:
    place.queue.enqueue("held", id="held-1")
    place.queue.claim("held", lease=600, worker="me")
    page = tab(place.at("job/held-1"))
    page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Keep").click()
    assert place.queue.get("held-1").state == "leased"
    page.get_by_role("button", name="Cancel…").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("main").get_by_text("cancelled", exact=True).first).to_be_visible()
    place.queue.delete("held-1")


def test_a_job_is_found_by_its_unique_key(tab: Open, place: Place) -> None:
    place.queue.enqueue("reports", id="keyed", unique_key="order-4711", delay=3600)
    page = tab(place.at(""))
    page.keyboard.press("/")
    page.get_by_label("Search").fill("order-4711")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="keyed")).to_be_visible()
    place.queue.delete("keyed")


def test_a_delayed_job_is_run_now_cancelled_and_deleted(tab: Open, place: Place) -> None:
    place.queue.enqueue("reports", id="later", delay=3600)
    page = tab(place.at("job/later"))
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("main").get_by_text("ready", exact=True)).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("main").get_by_text("cancelled", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="reports")).to_be_visible()
    page.goto(place.at("job/later"))
    expect_soon(page, "Not found")


def test_progress_is_shown_live(tab: Open, place: Place) -> None:
    place.queue.enqueue("slow", {"pages": 30, "seconds": 0.1}, kind="crawl", id="crawl-1")
    page = tab(place.at("job/crawl-1"))
    expect(page.get_by_text(re.compile(r"\d+% page \d+"))).to_be_visible()
    expect(page.get_by_role("region", name="Result")).to_contain_text("30")


def test_large_numbers_are_shown_as_they_were_sent(tab: Open, place: Place) -> None:
    place.queue.enqueue("reports", 12345678901234567890123, id="large-number")
    page = tab(place.at("job/large-number"))
    expect(page.get_by_role("region", name="Payload")).to_contain_text("12345678901234567890123")


def test_a_schedule_is_paused_resumed_and_run(tab: Open, place: Place) -> None:
    page = tab(place.at("schedules"))
    row = page.get_by_role("row").filter(has_text="nightly")
    row.get_by_role("button", name="pause nightly").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    assert place.queue.schedules.list()[0].disabled
    row.get_by_role("button", name="resume nightly").click()
    expect(row.get_by_text("paused", exact=True)).to_have_count(0)
    row.get_by_role("button", name="Run now: nightly").click()
    expect(page.get_by_role("region", name="Payload")).to_contain_text("all")
    assert place.queue.get(page.url.rpartition("/")[2]).kind == "report"


def test_search_finds_jobs_queues_and_tenants(tab: Open, place: Place) -> None:
    page = tab(place.at(""))
    page.get_by_role("row").nth(1).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("report")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Jobs").get_by_role("link")).not_to_have_count(0)
    expect(page.get_by_role("region", name="Queues")).to_contain_text("reports")
    page.goto(place.at("search?q=bolt"))
    expect(page.get_by_role("region", name="Tenants")).to_contain_text("bolt in reports")
    page.goto(place.at("search?q=report-2"))
    expect(page.get_by_role("heading", name="report-2")).to_be_visible()
    page.goto(place.at("search?q=nowhere"))
    expect_soon(page, "Nothing found")


def test_the_keyboard_leads_everywhere(tab: Open, place: Place) -> None:
    page = tab(place.at(""))
    page.get_by_role("row").nth(1).wait_for()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    for key, heading in (("e", "Errors"), ("w", "Workers"), ("s", "Schedules"), ("a", "Audit")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("o")
    # The page before has rows, too.
    expect(page.get_by_role("heading", name="What needs attention")).to_be_visible()
    page.get_by_role("row").nth(1).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="States")).to_be_visible()


def test_a_page_that_does_not_exist_says_so(tab: Open, place: Place) -> None:
    page = tab(place.at(""))
    for path in ("nowhere", "queue/nowhere", "job/nowhere", "queue", "%E0%A4%A", "constructor"):
        page.goto(place.at(path))
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    page.goto(place.at("queue/mail?view=constructor"))
    expect(page.get_by_role("navigation", name="States")).to_be_visible()
    page.goto(place.at("queue/mail?state=constructor"))
    expect(page.get_by_role("heading", name="This cannot be shown")).to_be_visible()


def test_the_rates_of_a_queue_are_drawn(tab: Open, place: Place) -> None:
    page = tab(place.at("queue/mail?view=rates"))
    chart = page.get_by_role("region", name="Jobs per minute")
    expect(chart).to_contain_text(re.compile("[1-9] failed"))
    page.get_by_role("link", name="last week").click()
    expect(page.get_by_role("region", name="Jobs per hour")).to_be_visible()
