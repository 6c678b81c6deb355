"""Jobs that wait for each other: one after the other, and side by side with one at the end.

    python examples/chain_and_fan_out.py

The jobs are kept in chain_and_fan_out.db, a file in the folder where you run it.
"""

from __future__ import annotations

import asyncio

import tenure

app = tenure.Tenure("sqlite:///chain_and_fan_out.db")

TEXTS = {"a.txt": "the quick brown fox", "b.txt": "jumps over", "c.txt": "the lazy dog"}


# A chain: each job begins when the one before it is done, and can read what that one returned.


@app.task
def download(name: str) -> str:
    return TEXTS[name]


@app.task
def shout() -> str:
    (text,) = tenure.current_job().results()  # of the jobs that this one waited for: here one
    return str(text).upper()


@app.task
async def publish(where: str) -> str:
    (text,) = await tenure.current_job().aresults()
    return f"{where}: {text}"


# A group: jobs that run side by side, and one that runs when all of them are done.


@app.task
def count_words(name: str) -> int:
    return len(TEXTS[name].split())


@app.task
def add_up() -> int:
    return sum(tenure.current_job().results())  # in the order in which they were enqueued


@app.task
def fail() -> None:
    raise tenure.Dead("this was bound to happen")


async def main() -> None:
    worker = app.worker()
    await worker.start()

    # .job(...) makes a job without enqueueing it. A chain is enqueued as a whole, or not at all.
    *_, last = app.chain(download.job("a.txt"), shout.job(), publish.job("front page"))
    print(await last.aresult(timeout=10))

    *counts, total = app.fan_out([count_words.job(name) for name in TEXTS], then=add_up.job())
    print("words:", [await count.aresult(timeout=10) for count in counts])
    print("in all:", await total.aresult(timeout=10))

    # If a job of the group fails, if_parent_fails of the last one decides what happens to it:
    # "wait" until the failed one is replayed (the default), "cancel", or "run" anyway.
    careful = add_up.using(if_parent_fails="cancel")
    *_, total = app.fan_out([count_words.job("a.txt"), fail.job()], then=careful.job())
    try:
        await total.aresult(timeout=10)
    except tenure.JobFailed as error:
        print("cancelled:", error)

    await worker.stop()


if __name__ == "__main__":
    with app:
        asyncio.run(main())
