"""Jobs whose every field tries to become more than text."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import tenure
from tenure.model import ops
from tenure.queue import store_of
from tests.browser.conftest import Open, Place

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
LINK = "javascript:alert(1)"
UNSEEN = "\u202egnp.exe\u200b\u2066\x1b[31mred\x1b[0m"
TEXTS = {
    "script": f"{SCRIPT}{IMAGE}",
    "link": LINK,
    "quotes": "\"'><svg onload=alert(1)>&quot;",
    "unseen": UNSEEN,
    "path": "../../v1/../%2e%2e/#/?a=b&c",
}
PAGES = [
    "",
    "queue/{q}",
    "queue/{q}?view=tenants",
    "queue/{q}?view=groups",
    "queue/{q}?view=limits",
]


def deep(levels: int) -> object:
    value: object = SCRIPT
    for _ in range(levels):
        value = {SCRIPT: [value]}
    return value


@pytest.fixture(scope="module")
def ids(place: Place) -> dict[str, str]:
    """A dead job for each text, which stands in all of its fields."""
    queue = place.queue
    found = {}
    for name, text in TEXTS.items():
        where = f"q {text}"
        id = f"{name} {text}"
        queue.limits.set(where, tenant=text, concurrency=2)
        queue.enqueue(
            where, {text: [text, LINK]}, id=id, kind=text, tenant=text, group=text, max_attempts=1,
            unique_key=text,
        )  # fmt: skip
        (job,) = queue.claim(where, worker=text)
        queue.progress(job, 50, text)
        store_of(queue).do(
            [ops.Fail(job.id, job.token, text, text, f"{text}\n  {text}", fatal=True)]
        )
        queue.enqueue(where, id=f"child {id}", after=[id])
        job_of = tenure.NewJob(queue=where, kind=text, payload=text)
        queue.schedules.put(text, "0 3 * * *", job_of)
        found[name] = id
    return found


def look(page: Page, place: Place, path: str, sign: str) -> None:
    page.goto(place.at(path))
    expect(page.get_by_role("main")).to_contain_text(sign)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_stay_texts(tab: Open, place: Place, ids: dict[str, str], name: str) -> None:
    text = TEXTS[name]
    shown = text if name != "unseen" else "\\u202egnp.exe\\u200b\\u2066\\u001b[31mred"
    page = tab(place.at(""))
    queue = quote(f"q {text}", safe="")
    for path in PAGES:
        look(page, place, path.format(q=queue), shown[:20])
    look(page, place, f"queue/{queue}?state=dead", shown[:20])
    look(page, place, f"queue/{queue}?tenant={quote(text)}&state=dead", shown[:20])
    look(page, place, f"job/{quote(ids[name], safe='')}", shown[:20])
    for region in ("Timeline", "Errors", "Payload"):
        expect(page.get_by_role("region", name=region)).to_contain_text(shown[:20])
    look(page, place, f"job/{quote('child ' + ids[name], safe='')}", "Runs after")
    look(page, place, "schedules", shown[:20])
    look(page, place, f"search?q={quote(text, safe='')}", shown[:20])
    assert page.locator("main script, main img, main svg[onload]").count() == 0
    links = page.evaluate("[...document.links].map((one) => one.getAttribute('href'))")
    assert all(link.startswith(("#", "docs", "openapi.json")) for link in links), links


def test_a_megabyte_does_not_freeze_the_page(tab: Open, place: Place) -> None:
    large = {"text": "x" * 900_000, "list": list(range(20_000))}
    place.queue.enqueue("large", large, id="large", kind="k" * 200)
    page = tab(place.at("queue/large"))
    expect(page.get_by_role("link", name="large")).to_be_visible()
    page.get_by_role("link", name="large").click()
    payload = page.get_by_role("region", name="Payload")
    expect(payload).to_contain_text("show all 900,002 characters")
    assert page.evaluate("document.querySelectorAll('*').length") < 1_000
    assert page.evaluate("document.body.textContent.length") < 20_000
    payload.get_by_text("list").click()
    payload.get_by_role("button", name="show more").click()
    assert page.evaluate("document.querySelectorAll('li').length") < 500
    payload.get_by_role("button", name="Text").click()
    payload.get_by_role("button", name="show all").click()
    assert page.evaluate("document.querySelector('.json').textContent.length") > 900_000


def test_deep_json_opens_level_by_level(tab: Open, place: Place) -> None:
    place.queue.enqueue("deep", deep(400), id="deep")
    page = tab(place.at("job/deep"))
    payload = page.get_by_role("region", name="Payload")
    expect(payload).to_contain_text(SCRIPT)
    for n in range(1, 6):
        payload.locator("summary").nth(n).click()
        expect(payload.locator("summary")).to_have_count(n + 2)
    payload.get_by_role("button", name="Text").click()
    expect(payload.locator("pre")).to_contain_text(SCRIPT)
