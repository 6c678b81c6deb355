"""Every example in the documentation is run, and what is made from the code is up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import FOLDER, PAGES
from tests.support import postgres

ROOT = FOLDER.parent
DOCUMENTS = [ROOT / "README.md", *sorted(FOLDER.rglob("*.md"))]


FILE = re.compile(r"# (\w+\.py)\n")


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    known = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"PATH": path, "HOME": str(folder), "TENURE_URL": "sqlite:///jobs.db"} | known


def write_files(document: Path, folder: Path) -> None:
    """An example that begins with a name, as `# tasks.py`, is that file."""
    for code in blocks(document, "python"):
        if named := FILE.match(code):
            (folder / named[1]).write_text(code)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_examples_run_in_order(document: Path, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    for code in blocks(document, "python"):
        named = FILE.match(code)
        example = [named[1]] if named else ["-c", code]
        result = subprocess.run(
            [sys.executable, "-W", "error::DeprecationWarning", *example],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{code}\n{result.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_run_in_order(document: Path, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    surroundings = environment(tmp_path)
    if "$DATABASE_URL" in document.read_text():
        surroundings["DATABASE_URL"] = postgres.url_of(tmp_path)
    for session in blocks(document, "console"):
        script = "\n".join(line[2:] for line in session.splitlines() if line.startswith("$ "))
        result = subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
    postgres.drop(tmp_path)


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    named = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    assert named == ["make run", "make test"]  # and no other command
    assert {line.split()[1] for line in named} <= set(targets)


def test_ci_runs_the_test_command_of_the_readme_and_no_more() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "set ", "cd "))] == ["make test"]


def test_links_between_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_file_that_the_promises_name_exists() -> None:
    table = (ROOT / "README.md").read_text().split("## What it promises")[1].split("\n## ")[0]
    for name in re.findall(r"`((?:tests|bench)/[\w./]*)`", table):
        assert (ROOT / name).exists(), name
