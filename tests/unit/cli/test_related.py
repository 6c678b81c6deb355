"""Commands that find jobs by other jobs, or by a unique key."""

from __future__ import annotations

from tests.unit.cli.terminal import Terminal


def test_jobs_that_wait_for_each_other_are_told(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("load", id="first-job", kind="read")
        queue.enqueue("mail", id="second-job", after=["first-job"])
        queue.enqueue("mail", id="third-job", after=["second-job"])

    text = cli.text("related", "second-job")
    assert text.index("Runs after:") < text.index("first-job  pending  load read")
    assert text.index("Is waited for by:") < text.index("third-job  waiting  mail")
    found = cli.json("related", "first-job")
    assert ([one["id"] for one in found["before"]], found["after"]) == (["second-job"], [])


def test_a_job_may_have_to_do_with_no_other(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", id="alone")
    assert cli.text("related", "alone") == "It waits for no job, and no job waits for it.\n"


def test_jobs_are_found_by_their_unique_key(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", id="one", unique_key="order-7")
        queue.enqueue("ship", id="two", unique_key="order-7", tenant="acme")

    assert [job["id"] for job in cli.json("find", "order-7")] == ["one", "two"]
    assert [job["id"] for job in cli.json("find", "order-7", "--tenant", "acme")] == ["two"]
    assert "two" not in cli.text("find", "order-7", "--queue", "mail")
    assert cli.text("find", "order-8") == "No unfinished job holds this unique key.\n"
