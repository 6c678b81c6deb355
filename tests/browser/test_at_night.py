"""What somebody who is woken at night needs: from what is stuck to its cause, and to the cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tenure import NewJob
from tenure.model import ops
from tenure.queue import store_of
from tests.browser.conftest import Open, Place, served


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Place]:
    """A service of one test, without workers."""
    yield from served(tmp_path)


def attention(page: Page) -> Locator:
    return page.get_by_role("region", name="What needs attention")


def why(page: Page) -> Locator:
    return page.get_by_role("region", name="Why")


def test_a_pause_that_nobody_remembers_is_found_and_ended(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue("invoices", id="invoice-1")
    queue.audited(by="ann", reason="a migration").pause("invoices")
    page = tab(alone.at(""))
    expect(attention(page)).to_contain_text("by ann: a migration")
    attention(page).get_by_role("link", name="invoices").click()
    expect(attention(page)).to_contain_text("by ann: a migration")
    page.get_by_role("link", name="invoice-1").click()
    why(page).get_by_role("button", name="Resume the queue").click()
    expect(why(page)).not_to_contain_text("was paused")
    assert not queue.stats().queues["invoices"].paused


def test_a_limit_is_raised_where_it_holds_a_job_back(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.limits.set("exports", tenant="acme", concurrency=1)
    queue.enqueue_many([NewJob(queue="exports", tenant="acme", id=f"{n}") for n in range(3)])
    queue.claim("exports", lease=600)
    page = tab(alone.at("job/1"))
    expect(why(page)).to_contain_text("The tenant 'acme' has reached its limit: 1 of 1 run.")
    why(page).get_by_role("button", name="Change the limit…").click()
    expect(page.get_by_label("Jobs at once")).to_have_value("1")
    page.get_by_label("Jobs at once").fill("5")
    page.get_by_label("Reason").fill("a big customer")
    page.get_by_role("button", name="Set").click()
    expect(why(page)).not_to_contain_text("has reached its limit")
    assert [one.concurrency for one in queue.limits.list("exports")] == [5]
    assert queue.audit().entries[0].reason == "a big customer"


def test_a_job_that_nobody_will_run_is_not_said_to_be_able_to_run(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("video", id="video-1")
    page = tab(alone.at("job/video-1"))
    expect(why(page).get_by_role("heading")).to_have_text("Why it does not run")
    expect(why(page)).to_contain_text("No live worker listens to the queue 'video'")


def test_a_task_that_no_worker_has_is_told_with_what_to_do(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue("mail", kind="old_task", id="old-1")
    (job,) = queue.claim("mail", worker="w1")
    text = "no worker has a task named 'old_task' yet"
    store_of(queue).do([ops.Release(job.id, job.token, 600_000, text, ops.UNKNOWN_KIND)])
    page = tab(alone.at(""))
    told = attention(page).get_by_role("listitem").filter(has_text="no worker has the task")
    told.get_by_role("link", name="mail").click()
    page.get_by_role("link", name="old-1").click()
    expect(why(page)).to_contain_text("Start a worker whose app has this task")
    page.goto(alone.at("errors"))
    row = page.get_by_role("row").filter(has_text="UnknownKind")
    expect(row.get_by_role("button")).to_have_text(["Mute"])  # no job of it is dead
    row.get_by_role("link", name="UnknownKind").click()
    expect(page.get_by_role("link", name="old-1")).to_be_visible()


def test_a_dead_parent_is_replayed_from_the_job_that_waits_for_it(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue("etl", id="extract", max_attempts=1)
    queue.enqueue("etl", id="load", after=["extract"])
    queue.fail(queue.claim("etl")[0], "504")
    page = tab(alone.at(""))
    told = attention(page).get_by_role("listitem").filter(has_text="load never runs")
    told.get_by_role("link", name="etl").click()
    page.get_by_role("link", name="load", exact=True).click()
    expect(why(page)).to_contain_text("which is dead")
    why(page).get_by_role("button", name="Replay extract").click()
    expect(why(page)).to_contain_text("which is pending")
    assert queue.get("extract").state == "pending"


def test_dead_jobs_lead_to_their_causes_the_most_frequent_first(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue_many([NewJob(queue="mail", max_attempts=1) for _ in range(12)])
    for n, job in enumerate(queue.claim("mail", limit=12)):
        queue.fail(job, ConnectionError("no route") if n < 11 else ValueError("rare"))
    page = tab(alone.at(""))
    expect(attention(page)).to_contain_text("Most often ConnectionError: no route")
    page.goto(alone.at("queue/mail?state=dead"))
    page.get_by_role("link", name="By cause").click()
    page.get_by_role("button", name="died").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("no route")
    page.get_by_role("button", name="Replay the dead jobs of ConnectionError").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("ConnectionError: no route")
    dialog.get_by_role("button", name="Replay 11 jobs").click()
    expect(page.get_by_role("dialog")).to_contain_text("11 jobs changed")


def test_jobs_that_are_ready_are_not_offered_to_run_now(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("mail", id="ready-1")
    page = tab(alone.at("queue/mail"))
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    expect(page.get_by_role("button", name="Run now…")).to_have_count(0)
    alone.queue.enqueue("mail", delay=600)
    expect(page.get_by_role("button", name="Run now…")).to_be_visible()


def test_a_schedule_that_is_paused_is_told(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("mail")
    alone.queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="mail"))
    page = tab(alone.at("schedules"))
    page.get_by_role("button", name="pause nightly").click()
    page.get_by_label("Reason").fill("the warehouse is down")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("row").filter(has_text="nightly")).to_contain_text("paused")
    page.goto(alone.at("audit"))
    row = page.get_by_role("row").filter(has_text="pause_schedule")
    expect(row).to_contain_text("the warehouse is down")
    page.goto(alone.at(""))
    expect(attention(page)).to_contain_text("Schedules: nightly is paused")


def test_the_end_of_a_long_traceback_is_in_sight(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue("mail", id="deep", max_attempts=1)
    (job,) = queue.claim("mail")
    trace = "Traceback\n" + "".join(f"  File {n}\n" for n in range(1000)) + "ValueError: the end"
    store_of(queue).do([ops.Fail(job.id, job.token, "the end", "ValueError", trace, fatal=True)])
    page = tab(alone.at("job/deep"))
    shown = page.get_by_role("region", name="Errors").locator("pre")
    expect(shown).to_contain_text("ValueError: the end")
    expect(shown).not_to_contain_text("File 1\n")
    at_end = "(one) => one.scrollHeight - one.scrollTop - one.clientHeight < 5"
    page.wait_for_function(f"({at_end})(document.querySelector('.error pre'))")
    shown.get_by_role("button", name="show all").click()
    expect(shown).to_contain_text("File 1\n")


def test_many_queues_are_filtered_by_name(tab: Open, alone: Place) -> None:
    alone.queue.enqueue_many([NewJob(queue=f"service-{n:02}") for n in range(20)])
    page = tab(alone.at(""))
    page.get_by_label("Filter the queues by name").fill("CE-1")
    expect(page.get_by_role("row")).to_have_count(11)
    expect(page.get_by_role("region", name="Queues")).to_contain_text("10 of 20")
    page.reload()
    expect(page.get_by_role("row")).to_have_count(11)
    page.get_by_label("Filter the queues by name").fill("nothing")
    expect(page.get_by_role("region", name="Queues")).to_contain_text("No queue has this")
    page.go_back()  # what was typed is one step
    expect(page.get_by_role("row")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1280])
def test_everything_in_reach_has_room(tab: Open, alone: Place, width: int) -> None:
    queue = alone.queue
    queue.enqueue_many([NewJob(queue="a-queue-with-a-long-name-" + "x" * 90), NewJob(queue="b")])
    queue.ack(queue.claim("b")[0])
    page = tab(alone.at(""), viewport={"width": width, "height": 800})
    expect(page.get_by_role("row").nth(1)).to_be_visible()
    field = page.get_by_role("searchbox", name="Search").bounding_box()
    assert field is not None
    assert field["width"] > 150
    if width > 1000:
        table = page.get_by_role("group", name="Queues")
        assert table.evaluate("(one) => one.scrollWidth - one.clientWidth") == 0
    page.goto(alone.at("queue/b"))
    expect(page.get_by_label("tenant", exact=True)).to_be_visible()
    ends = "[...document.querySelectorAll('input')].map((one) => one.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= width


def test_jobs_are_found_by_when_they_died(tab: Open, alone: Place) -> None:
    queue = alone.queue
    queue.enqueue("mail", id="mail-1", max_attempts=1)
    queue.fail(queue.claim("mail", worker="w1")[0], "boom")
    page = tab(alone.at("queue/mail?state=dead"), timezone_id="America/New_York")
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()
    page.get_by_label("finished from").fill("2020-05-01T08:30")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**finished_after=1588336200000**")
    expect(page.get_by_label("finished from")).to_have_value("2020-05-01T08:30")
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()
    page.get_by_label("until").fill("2020-05-01T09:30")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("main")).to_contain_text("No jobs here.")
    page.get_by_role("link", name="Clear all").click()
    page.get_by_role("link", name="mail-1").click()
    page.get_by_role("link", name="w1").click()
    page.wait_for_url("**worker=w1**")
    expect(page.get_by_role("link", name="mail-1")).to_be_visible()


def test_an_id_and_a_payload_are_copied(tab: Open, alone: Place) -> None:
    alone.queue.enqueue("mail", {"n": 12345678901234567890}, id="mail-1")
    permissions = ["clipboard-read", "clipboard-write"]
    page = tab(alone.at("job/mail-1"), permissions=permissions)
    page.get_by_role("button", name="Copy the id").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "mail-1"
    page.get_by_role("button", name="Copy the payload").click()
    page.wait_for_function(
        "navigator.clipboard.readText().then((text) => text === '{\"n\":12345678901234567890}')"
    )
