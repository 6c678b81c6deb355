"""Tasks and a worker in one script.

    python examples/plain_script.py

The jobs are kept in plain_script.db, in the folder where you run it. If you kill the script and
start it again, it finishes what was left.
"""

from __future__ import annotations

import asyncio

import tenure

# The app knows where the jobs are and which functions can be jobs.
app = tenure.Tenure("sqlite:///plain_script.db")


@app.task
def add(a: int, b: int) -> int:
    """A plain function runs in a thread."""
    return a + b


@app.task(max_attempts=5, timeout=30, backoff=tenure.fixed(0.1))
async def fetch(page: str) -> str:
    """A coroutine runs in the event loop. This one fails twice, and is retried after 0.1 s."""
    attempt = tenure.current_job().job.attempts
    if attempt < 3:
        raise ConnectionError(f"{page} does not answer")
    return f"{page} answered at attempt {attempt}"


@app.task
def order(number: int) -> None:
    """A task may say what becomes of its job."""
    raise tenure.Dead(f"there is no order {number}")  # never to be tried again


async def main() -> None:
    # Calling .enqueue() stores the call. Nothing runs yet: a program that only does this is a
    # producer, and the worker may be another program, or this one tomorrow.
    total = add.enqueue(2, b=3)
    page = fetch.enqueue("example.com")
    wrong = order.enqueue(17)
    later = add.using(delay=3600, priority=-10).enqueue(1, 1)

    # What is enqueued is checked here, not in the worker:
    try:
        add.enqueue(2, "three")  # type: ignore[arg-type]  # a type checker says so as well
    except tenure.InvalidInput as error:
        print("refused:", error)

    # A worker works on the jobs, as many at once as you like.
    worker = app.worker(concurrency=10)
    await worker.start()
    print("2 + 3 =", await total.aresult(timeout=10))
    print(await page.aresult(timeout=10))
    try:
        await wrong.aresult(timeout=10)
    except tenure.JobFailed as error:
        print("failed:", error)
    print("in an hour:", later.job().state)
    await worker.stop()  # lets what runs end

    # What went wrong is kept, to be looked at and tried again: `tenure dead`, `tenure replay`.
    for job in app.queue.jobs(state="dead").jobs:
        print("dead:", job.kind, job.payload, job.error)
    later.cancel()


if __name__ == "__main__":
    with app:
        asyncio.run(main())
