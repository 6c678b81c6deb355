"""A web service that responds at once and does the work in the background, in the same process.

    uvicorn fastapi_app:app --app-dir examples
    curl -X POST 'localhost:8000/reports?customer=acme'
    curl localhost:8000/jobs/<the id in the response>

The jobs are kept in fastapi_app.db, in the folder where you run it. If the server is stopped or
killed, it finishes what was left after the next start.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, HTTPException

import tenure

jobs = tenure.Tenure("sqlite:///fastapi_app.db")


@jobs.task(max_attempts=3, timeout=60)
async def make_report(customer: str) -> dict[str, Any]:
    """Something that takes longer than a client wants to wait."""
    rows = 0
    for page in range(1, 6):
        await asyncio.sleep(0.05)  # here you would ask a database, or another service
        rows += 20
        tenure.current_job().progress(page * 20, f"page {page} of 5")
    return {"customer": customer, "rows": rows}


# The lifespan starts a worker with the server, and stops it gracefully with the server.
app = FastAPI(lifespan=jobs.lifespan)


@app.post("/reports", status_code=202)
async def order_report(customer: str) -> dict[str, str]:
    # The tenant keeps a customer with many reports from holding up the others.
    handle = await make_report.using(tenant=customer).aenqueue(customer)
    return {"id": handle.id}


@app.get("/jobs/{id}")
async def show_job(id: str) -> dict[str, Any]:
    try:
        job = await jobs.queue.aget(id)
    except tenure.JobNotFound:
        raise HTTPException(404, f"there is no job {id}") from None
    return {
        "state": job.state,
        "progress": job.progress,
        "note": job.note,
        "result": job.result,
        "error": job.error,
    }
