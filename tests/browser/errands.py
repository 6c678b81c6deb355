"""Tasks that the workers of the browser tests run."""

from __future__ import annotations

import asyncio

import tenure

app = tenure.Tenure()


@app.task(queue="mail", max_attempts=2, backoff=tenure.fixed(0.01))
async def send(to: str, fails: bool = False) -> dict[str, str]:
    """Send a mail, or fail."""
    if fails:
        raise ConnectionError(f"no route to {to}")
    return {"sent": to}


@app.task(queue="slow")
async def crawl(pages: int, seconds: float = 0.1) -> int:
    """Report progress for a while."""
    for page in range(pages):
        tenure.current_job().progress(page * 100 // pages, f"page {page}")
        await asyncio.sleep(seconds)
    return pages
