"""What the dashboard says about causes: why a job waits, which errors belong together, and who
changed what."""

from __future__ import annotations

import re

import msgspec
import pytest
from playwright.sync_api import expect

from tenure import fixed
from tenure.features.steps.data import Checkpoint, Suspend
from tenure.queue import store_of
from tenure.worker.beats import BEAT_SECONDS
from tests.browser.conftest import Open, Place
from tests.workers.life import until


@pytest.fixture(scope="module", autouse=True)
def jobs(place: Place) -> None:
    """Jobs that fail, and jobs that are held back."""
    queue = place.queue
    for n in range(3):
        queue.enqueue(
            "mail", {"to": f"{n}", "fails": True}, kind="send", id=f"dying-{n}", max_attempts=2,
            backoff=fixed(0.01),
        )  # fmt: skip
    queue.limits.set("tight", concurrency=1)
    queue.enqueue("tight", id="first")
    queue.claim("tight", worker="somebody", lease=1000)
    queue.enqueue("tight", id="second")
    queue.enqueue("tight", id="third", after=["second"])
    until(lambda: all(queue.get(f"dying-{n}").state == "dead" for n in range(3)))


def test_a_job_says_what_holds_it_back(tab: Open, place: Place) -> None:
    page = tab(place.at("job/second"))
    why = page.get_by_role("region", name="Why")
    expect(why.get_by_role("listitem").first).to_contain_text("1 of 1")
    why.get_by_role("link", name="first").click()
    expect(page.get_by_role("region", name="Why")).to_contain_text("somebody")
    page.goto(place.at("job/third"))
    expect(page.get_by_role("region", name="Why").get_by_role("link")).to_have_text("second")


def test_what_holds_a_job_back_changes_while_one_looks(tab: Open, place: Place) -> None:
    place.queue.enqueue("quiet", id="quiet-1")
    page = tab(place.at("job/quiet-1"))
    why = page.get_by_role("region", name="Why")
    expect(why).to_be_visible()
    place.queue.pause("quiet")
    expect(why).to_contain_text("paused")
    place.queue.resume("quiet")
    expect(why).not_to_contain_text("paused")


def test_failures_of_one_cause_are_one_row(tab: Open, place: Place) -> None:
    page = tab(place.at("errors"))
    row = page.get_by_role("row").filter(has_text="no route to")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("ConnectionError")
    expect(row.get_by_role("cell").nth(1)).to_have_text("6")
    expect(row.get_by_role("cell").nth(3)).to_have_text("3")
    row.get_by_role("button", name="mute").click()
    expect(row).to_have_count(0)
    page.get_by_role("link", name="Show 1 muted").click()
    expect(row).to_have_count(1)
    row.get_by_role("button", name="unmute").click()
    expect(row.get_by_role("button", name="mute", exact=False)).to_have_text("Mute")
    row.get_by_role("link", name="dying-").click()
    expect(page.get_by_role("region", name="Errors")).to_contain_text("no route to")


def test_the_audit_has_what_was_done_here_and_why(tab: Open, place: Place) -> None:
    place.queue.enqueue("audited", id="doomed")
    page = tab(place.at("queue/audited"))
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    page.goto(place.at("job/doomed"))
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("Reason").fill("a test: <b>50%</b> caf\u00e9")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="audited")).to_be_visible()
    page.goto(place.at("audit"))
    deleted = page.get_by_role("row").filter(has_text="delete")
    expect(deleted).to_contain_text("doomed")
    expect(deleted).to_contain_text("a test: <b>50%</b> caf\u00e9")
    expect(page.get_by_role("row").filter(has_text="pause").first).to_contain_text("audited")


def test_workers_and_what_they_run_are_listed(tab: Open, place: Place) -> None:
    place.queue.enqueue("slow", {"pages": 300}, kind="crawl", id="crawl-2")
    page = tab(place.at("workers"))
    row = page.get_by_role("row").filter(has_text="slow")
    # A worker reports every five seconds, and the page reads every two.
    soon = (BEAT_SECONDS + 10) * 1000
    expect(row).to_have_count(1, timeout=soon)
    expect(row.get_by_role("link", name="crawl-2")).to_be_visible(timeout=soon)
    row.get_by_role("link", name="slow").click()
    expect(page.get_by_role("heading", name="slow")).to_be_visible()


def test_a_waiting_job_is_changed(tab: Open, place: Place) -> None:
    place.queue.enqueue("quiet", {"to": "ann"}, id="changed", delay=3600)
    page = tab(place.at("job/changed"))
    page.get_by_role("button", name="Change…").click()
    page.get_by_label("Priority").fill("7")
    page.get_by_role("textbox", name="Payload").fill('{"to": "bob", "n": 12345678901234567890}')
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("region", name="Payload")).to_contain_text("12345678901234567890")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("updated")
    job = place.queue.get("changed")
    assert (job.priority, job.payload) == (7, {"to": "bob", "n": 12345678901234567890})
    page.get_by_role("button", name="Change…").click()
    page.get_by_role("textbox", name="Payload").fill("{")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("alert")).to_contain_text("is not JSON")
    page.keyboard.press("Escape")


def test_a_dead_job_is_edited_and_replayed(tab: Open, place: Place) -> None:
    page = tab(place.at("job/dying-0"))
    page.get_by_role("button", name="Edit and replay…").click()
    page.get_by_role("textbox", name="Payload").fill('{"to": "carl"}')
    page.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_text("Replay of")).to_be_visible()
    expect(page.get_by_role("region", name="Result")).to_contain_text("carl")
    page.get_by_role("link", name="dying-0").click()
    expect(page.get_by_role("heading", name="dying-0")).to_be_visible()


def test_all_jobs_that_match_are_replayed_after_a_dry_run(tab: Open, place: Place) -> None:
    queue = place.queue
    for n in range(30):
        queue.enqueue("batch", id=f"batch-{n:02}", max_attempts=1, tenant="acme" if n else "bolt")
    for job in queue.claim("batch", limit=100):
        queue.fail(job, ValueError("boom"))
    page = tab(place.at("queue/batch?state=dead&tenant=acme"))
    page.get_by_role("button", name="Replay…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay 29 jobs?")
    expect(dialog.get_by_role("row")).to_have_count(11)
    assert queue.stats("batch").dead == 30
    dialog.get_by_label("Reason").fill("the mail server is back")
    dialog.get_by_role("button", name="Replay 29 jobs").click()
    expect(page.get_by_role("dialog")).to_contain_text("29 jobs changed")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("main")).to_contain_text("No jobs here.")
    assert (queue.stats("batch").dead, queue.stats("batch").ready) == (1, 29)
    page.goto(place.at("audit"))
    expect(page.get_by_role("region", name="Bulk actions")).to_contain_text("mail server is back")


def test_the_dead_jobs_of_an_error_are_deleted(tab: Open, place: Place) -> None:
    queue = place.queue
    for n in range(4):
        queue.enqueue("broken", id=f"broken-{n}", max_attempts=1)
    for job in queue.claim("broken", limit=10):
        queue.fail(job, KeyError("missing") if job.id == "broken-3" else OSError("disk full"))
    page = tab(place.at("errors?queue=broken"))
    row = page.get_by_role("row").filter(has_text="disk full")
    row.get_by_role("link", name="OSError").click()
    expect(page.get_by_role("link", name="broken-0")).to_be_visible()
    expect(page.get_by_role("link", name="broken-3")).to_have_count(0)
    page.go_back()
    row.get_by_role("button", name="Delete the dead jobs").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 3 jobs").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 jobs changed")
    page.get_by_role("button", name="Close").click()
    assert [job.id for job in queue.jobs(queue="broken").jobs] == ["broken-3"]


def test_a_job_shows_its_steps_and_is_woken_by_a_signal(tab: Open, place: Place) -> None:
    queue = place.queue
    queue.enqueue("durable", id="order")
    (job,) = queue.claim("durable", worker="somebody")
    lease, paid = (job.id, job.token), msgspec.Raw(b'{"paid":3}')
    store_of(queue).do(
        [
            Checkpoint(*lease, "charge", result=paid, took_ms=1_200),
            Checkpoint(*lease, "reserve", "<b>sku</b>"),
            Suspend(*lease, "approval", kind="wait", delay_ms=86_400_000),
        ]
    )
    page = tab(place.at("job/order"))
    steps = page.get_by_role("region", name="Steps")
    expect(steps.get_by_role("listitem")).to_have_count(3)
    expect(steps).to_contain_text('{"paid":3}')
    expect(steps).to_contain_text("<b>sku</b>")
    expect(steps.get_by_role("listitem").last).to_have_text(
        re.compile("for a signal, until in 2[34] h")
    )
    why = page.get_by_role("region", name="Why")
    expect(why).to_contain_text("waits for the signal 'approval'")
    why.get_by_role("button", name="Send approval").click()
    page.get_by_role("dialog").get_by_label("Value").fill('{"by": "ann"}')
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(steps.get_by_role("list", name="Signals")).to_contain_text('{"by":"ann"}')
    assert queue.claim("durable", worker="somebody")[0].id == "order"
