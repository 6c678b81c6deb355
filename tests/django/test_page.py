"""docs/django.md is followed to the letter: its files are written, its commands are run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import django
import pytest

from tenure.django.framework import task
from tests.examples.programs import run, started

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text()
SHELL = """
import doctest, time
def wait(result):
    while not result.is_finished:
        time.sleep(0.01)
        result.refresh()
session = doctest.testfile("session.txt", module_relative=False, globs={"wait": wait})
assert (session.failed, session.attempted) == (0, 6)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new project with an app, and nothing of Tenure."""
    run("-m", "django", "startproject", "mysite", ".", folder=tmp_path)
    run("manage.py", "startapp", "shop", folder=tmp_path)
    return tmp_path


def write(folder: Path, block: str) -> None:
    """A block of the page begins with the name of the file that it is a part of."""
    name = re.match(r"# ([\w/.]+)\n", block)
    assert name is not None, block
    if task.__module__.startswith("django_tasks"):  # as the page says
        block = block.replace("from django.tasks", "from django_tasks")
    with (folder / name[1]).open("a") as file:
        file.write(f"\n{block}")


def shell(folder: Path) -> None:
    """The session of the page answers what the page says that it does."""
    (session,) = blocks("pycon")
    patient = session.replace("result.refresh()", "wait(result)")
    (folder / "session.txt").write_text(patient)
    run("manage.py", "shell", "-v", "0", "-c", SHELL, folder=folder)


def test_the_page_can_be_followed(folder: Path) -> None:
    settings, tasks, *_ = blocks("py")
    write(folder, settings)
    write(folder, tasks)
    assert "no issues" in run("manage.py", "check", folder=folder)
    with started("manage.py", "tenure_worker", folder=folder) as worker:
        worker.wait_for("works on default, mail")
        shell(folder)
        worker.wait_for("sending a mail to ada@example.com")
        assert worker.stop() == 0


def test_a_call_in_a_transaction_works_as_the_page_says(folder: Path) -> None:
    for block in blocks("py"):
        write(folder, block)
    run("manage.py", "migrate", "-v", "0", folder=folder)
    call = (
        "from django.test import RequestFactory; from shop.views import sign_up;"
        "from shop.tasks import send_welcome;"
        "answer = sign_up(RequestFactory().get('/', {'to': 'ada'}));"
        "print(send_welcome.get_result(answer.content.decode()).status)"
    )
    assert run("manage.py", "shell", "-v", "0", "-c", call, folder=folder) == "READY\n"
    assert not (folder / "jobs.db").exists()
    run("manage.py", "tenure_worker", "--burst", folder=folder)


@pytest.mark.skipif(
    django.VERSION >= (6,) and sys.version_info < (3, 12),
    reason="`manage.py test` of Django 6 needs Python 3.12",
)
def test_the_settings_for_tests_hold_what_a_test_needs(folder: Path) -> None:
    for block in blocks("py"):
        write(folder, block)
    test = (
        "from django.core.management import call_command\n"
        "from django.test import TestCase\n"
        "from shop.tasks import send_welcome\n"
        "class Tests(TestCase):\n"
        "    def test_it(self):\n"
        "        result = send_welcome.enqueue('ada')\n"
        "        call_command('tenure_worker', '--burst')\n"
        "        result.refresh()\n"
        "        self.assertEqual(result.return_value, {'sent': 'ada'})\n"
    )
    (folder / "shop" / "tests.py").write_text(test)
    run("manage.py", "test", "--settings", "mysite.test_settings", folder=folder)


def test_every_option_of_the_worker_is_on_the_page(folder: Path) -> None:
    write(folder, blocks("py")[0])
    printed = run("manage.py", "tenure_worker", "--help", folder=folder)
    own = printed.split("--version")[0]  # the rest is Django's
    options = set(re.findall(r"--[a-z-]+", own)) - {"--help"}
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M))


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    for block in blocks("py"):
        write(folder, block)
    assert "Ran 1 test" in run(
        "manage.py", "test", "--settings", "mysite.test_settings", folder=folder, log=True
    )


def test_no_line_of_a_worker_is_printed_twice(folder: Path) -> None:
    settings, tasks, *_ = blocks("py")
    write(folder, settings)
    write(folder, tasks)
    failing = "\n\n@task\ndef fail():\n    raise ValueError('this cannot be')\n"
    with (folder / "shop" / "tasks.py").open("a") as file:
        file.write(failing)
    with (folder / "mysite" / "settings.py").open("a") as file:
        file.write("TASKS['default']['OPTIONS']['max_attempts'] = 1\n")
    call = "from shop.tasks import *; fail.enqueue(); send_welcome.enqueue('ada')"
    run("manage.py", "shell", "-v", "0", "-c", call, folder=folder)
    said = run("manage.py", "tenure_worker", "--burst", folder=folder, log=True)
    assert said.count("ValueError: this cannot be") == 1  # in the traceback
    assert said.count("is dead after attempt 1 of 1: this cannot be") == 1
    told = [re.sub(r"^\S+ \S+ \w+ +", "", line) for line in said.splitlines() if "Task id" in line]
    assert len(told) == len(set(told)) == 4
