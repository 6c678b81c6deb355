"""Commands as people type them who have not read the help."""

from __future__ import annotations

import click
import pytest

from tenure.cli import main
from tests.unit.cli.terminal import Terminal

NO_STORE = {"copy", "reshard", "readmit", "token", "demo"}


def _leaves(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += _leaves(command, *path, name)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found.append((*path, name))
    return found


@pytest.mark.parametrize(
    "command", [one for one in _leaves(main) if one[0] not in NO_STORE], ids=" ".join
)
def test_every_command_of_a_store_takes_the_url_after_its_name(command: tuple[str, ...]) -> None:
    found: click.Command = main
    for name in command:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    assert "--url" in [option for one in found.params for option in one.opts]


def test_the_url_after_the_command_names_the_store(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "{}")
    result = cli.run("stats", "--url", cli.url, url=None)
    assert "mail" in result.stdout
    other = cli.run("stats", "--url", f"sqlite:///{cli.folder}/other.db")
    assert "there is no store at" in other.stderr


def test_a_list_takes_the_queue_as_an_argument(cli: Terminal) -> None:
    mail = cli.json("enqueue", "mail", "{}")["id"]
    cli.json("enqueue", "pdf", "{}")
    assert [one["id"] for one in cli.json("jobs", "mail")["jobs"]] == [mail]
    assert cli.json("dead", "mail")["jobs"] == []
    assert "did you mean 'mail'" in cli.error("jobs", "mial")
    for command in ("jobs", "dead"):
        assert "not both" in cli.usage(command, "mail", "--queue", "mail")


def test_schedules_are_also_listed_with_list(cli: Terminal) -> None:
    cli.text("schedules", "put", "nightly", "0 3 * * *", "reports")
    assert cli.text("schedules", "list") == cli.text("schedules")


def test_a_job_is_enqueued_for_a_certain_time(cli: Terminal) -> None:
    job = cli.json("enqueue", "mail", "{}", "--run-at", "2030-01-02T03:04:05+00:00")
    assert job["run_at"] == 1_893_553_445_000
    told = cli.usage("enqueue", "mail", "{}", "--run-at", "tomorrow")
    assert "'tomorrow' is not a time such as 2026-11-17T09:30" in told
    both = ["--run-at", "2030-01-02T03:04:05Z", "--delay", "5m"]
    assert "delay" in cli.error("enqueue", "mail", "{}", *both)


def test_a_word_instead_of_a_number_is_called_that(cli: Terminal) -> None:
    told = cli.usage("enqueue", "mail", "{}", "--priority", "high")
    assert "'high' is not a valid integer." in told


def test_a_wrong_cron_expression_is_answered_with_the_form_of_a_right_one(cli: Terminal) -> None:
    told = cli.error("schedules", "put", "x", "daily at noon", "q")
    assert "'daily at noon' is not a cron expression" in told
    assert "minute hour day month weekday" in told


def test_why_names_the_queue_that_a_worker_must_listen_to(cli: Terminal) -> None:
    job = cli.json("enqueue", "low lane", "{}")["id"]
    assert "tenure worker MODULE:APP --queues 'low lane'" in cli.text("why", job)
