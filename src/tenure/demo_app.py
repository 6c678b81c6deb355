"""A demo that runs as long as a service: a shop with several queues and tenants.

Something is always going on, and some of it goes wrong: a paused queue, a limit that is used up,
jobs that fail, a queue without a worker.
"""

from __future__ import annotations

import asyncio
import secrets

from tenure.model.job import NewJob
from tenure.model.retry import fixed
from tenure.queue import Queue
from tenure.tasks.app import Tenure
from tenure.worker.current_job import current_job

ROUND_SECONDS = 20  # over which the jobs of one round are spread
TENANTS = {"acme": 8, "bolt": 4, "cask": 2}  # and how many mails each sends in a round
REPORTS_AT_ONCE = 2

app = Tenure()


@app.task(queue="mail", max_attempts=3, backoff=fixed(5))
async def send_mail(to: str, subject: str, fails: int = 0) -> dict[str, bool]:
    """Take a while, and fail the first `fails` times."""
    await asyncio.sleep(0.3)
    if current_job().job.attempts <= fails:
        raise ConnectionError(f"451 {to!r}: the mail server hung up, try again later")
    return {"sent": True}


@app.task(queue="thumbnails", max_attempts=2, backoff=fixed(2))
async def resize(image: str, width: int) -> dict[str, int]:
    """Quick, and now and then impossible."""
    await asyncio.sleep(0.05)
    if image.endswith("13.tiff"):
        raise ValueError(f"cannot identify image file {image!r}")
    return {"width": width, "height": width * 2 // 3}


@app.task(queue="reports", max_attempts=2, timeout=60)
async def render(report: str, pages: int) -> dict[str, int]:
    """Slow, with progress; a limit keeps most of them waiting."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.8)
        current_job().progress(page * 100 // pages, f"page {page} of {pages}")
    return {"pages": pages}


@app.task(queue="exports")
async def collect(year: int) -> list[int]:
    """The first step of an export; publishing waits for it."""
    await asyncio.sleep(6)
    return [year, 12]


@app.task(queue="exports")
async def publish(year: int) -> str:
    """The last step of an export."""
    await asyncio.sleep(1)
    return f"export-{year}.csv"


@app.task(queue="billing")
async def charge(invoice: str, cents: int) -> None:
    """Never runs: the queue is paused."""


@app.cron("0 3 * * *", tz="Europe/Copenhagen", catch_up="none", queue="reports")
async def nightly_report() -> None:
    """What a shop does at night."""
    await asyncio.sleep(1)


@app.cron("*/20 * * * * *", catch_up="none", queue="upkeep")
async def next_round() -> None:
    """Enqueue the jobs of the next 20 seconds."""
    await app.queue.aenqueue_many(list(_round()), if_exists="skip")


def begin(queue: Queue) -> None:
    """Set limits, pause a queue, and enqueue the first round."""
    queue.limits.set("reports", concurrency=REPORTS_AT_ONCE)
    queue.limits.set("mail", tenant="*", concurrency=3)
    queue.limits.set("mail", tenant="acme", weight=2)
    queue.limits.set("thumbnails", rate=20, per=1)
    queue.enqueue_many(list(_round()), if_exists="skip")
    queue.audited(by="ann", reason="the bank is down until 6:00").pause("billing")


def _round() -> list[NewJob]:
    """The jobs of a round. A unique key bounds how many of them wait."""
    jobs = []
    for tenant, mails in TENANTS.items():
        for n in range(mails):
            fails = 9 if (tenant, n) == ("cask", 1) else n % 4 == 3
            mail = send_mail.using(tenant=tenant, delay=n * ROUND_SECONDS / mails)
            jobs.append(mail.job(f"{n}@{tenant}.example", "Your order", int(fails)))
        for n in range(12):
            image = f"s3://{tenant}/{n + 2}.{'tiff' if n == 11 and tenant == 'bolt' else 'jpg'}"
            thumbnail = resize.using(tenant=tenant, group=f"album-{n % 3}", delay=n * 1.5)
            jobs.append(thumbnail.job(image, 320))
        for month in ("may", "june", "july"):
            report = render.using(tenant=tenant, unique_key=f"{tenant} {month}")
            jobs.append(report.job(month, 6))
        for n in range(TENANTS[tenant] // 2):
            invoice = charge.using(tenant=tenant, unique_key=f"invoice {tenant} {n}", priority=n)
            jobs.append(invoice.job(f"{tenant}-{n}", 1999))
    export = f"export-{secrets.token_hex(4)}"
    jobs += [collect.using(id=export).job(2026), publish.using(after=[export]).job(2026)]
    jobs += [
        NewJob(queue="webhooks", kind="post", payload={"url": f"https://{tenant}.example/hook"},
               tenant=tenant, unique_key=f"hook {tenant}")
        for tenant in TENANTS
    ]  # fmt: skip
    return jobs
