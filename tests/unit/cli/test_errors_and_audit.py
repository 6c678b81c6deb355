"""Error groups and the audit log on the command line."""

from __future__ import annotations

import getpass
import socket

from tenure.model import ops
from tenure.queue import store_of
from tests.unit.cli.terminal import Terminal


def fail(cli: Terminal, message: str) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", kind="send", id="job-1")
        (job,) = queue.claim("mail")
        queue.fail(job, message)


def test_errors_are_shown_by_their_cause(cli: Terminal) -> None:
    fail(cli, "no user \x1b[2J17")
    text = cli.text("errors", "mail")
    assert "no user \\x1b[2J17" in text
    assert "job-1" in text
    (one,) = cli.json("errors")["errors"]
    assert (one["queue"], one["count"], one["muted"]) == ("mail", 1, False)
    assert cli.text("mute-error", one["group"]) == f"Muted: {one['group']}.\n"
    assert "(muted) no user" in cli.text("errors")
    assert cli.json("mute-error", one["group"], "--undo") == {"group": one["group"], "muted": False}
    cli.text("enqueue", "another", "1")
    assert cli.text("errors", "another") == "No errors.\n"


def test_an_error_group_that_does_not_exist_cannot_be_muted(cli: Terminal) -> None:
    fail(cli, "no user 17")
    for undo in ([], ["--undo"]):
        assert cli.error("mute-error", "1f0c9a2b7d3e", *undo) == (
            "there is no error group '1f0c9a2b7d3e'"
        )
    assert cli.json("audit")["entries"] == []


def test_a_change_is_noted_with_the_user_and_the_reason(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", id="job-1")
    assert cli.text("audit") == "No entries.\n"
    cli.text("cancel", "job-1", "--reason", "asked for by \x1b[2Jann")
    cli.text("pause", "mail")
    (pause, cancel) = cli.json("audit")["entries"]
    assert pause["by"] == cancel["by"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (pause["action"], pause["reason"]) == ("pause", "")
    assert (cancel["action"], cancel["target"], cancel["count"]) == ("cancel", "job-1", 1)
    text = cli.text("audit")
    assert "asked for by \\x1b[2Jann" in text


def test_a_change_by_filter_is_listed_with_the_filter(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", id="job-1", tenant="acme")
        # As a bulk action of a service does it.
        note = ops.Note("ann", filter={"queue": "mail", "tenant": "acme", "kind": None})
        store_of(queue).do([ops.Cancel(("job-1",), note=note)])
    text = cli.text("audit")
    assert "queue: mail, tenant: acme" in text
    assert "job-1" not in text


def test_a_page_says_how_to_go_on(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail")
    for _ in range(3):
        cli.text("pause", "mail")
        cli.clock.advance(1)
    result = cli.run("audit", "--limit", "2")
    assert result.stderr.startswith("There are more: --cursor ")
    cursor = result.stderr.split()[-1]
    assert cli.text("audit", "--cursor", cursor).count("pause") == 1
