"""The package as an index shows it, and what its commands install."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """hatch_build.py, without hatchling, which only builds need."""
    interface: Any = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_work_outside_the_repository(hook: Any) -> None:
    readme = hook.Readme()
    readme.root = str(ROOT)
    metadata: dict[str, Any] = {"urls": PROJECT["urls"]}
    readme.update(metadata)
    text = metadata["readme"]["text"]
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://"), link
    base = f"{PROJECT['urls']['Source']}/blob/main/"
    for link in links:
        if link.startswith(base):
            assert (ROOT / link.removeprefix(base).partition("#")[0]).exists(), link


def test_other_links_stay_as_they_are(hook: Any) -> None:
    text = "[a](https://x.example/y) [b](#part) [c](docs/z.md#q) [d](mailto:a@b.example)"
    found = hook.with_absolute_links(text, "https://r")
    assert found == text.replace("(docs/z.md#q)", "(https://r/blob/main/docs/z.md#q)")


def test_the_package_says_what_it_is() -> None:
    assert PROJECT["authors"]
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert len(PROJECT["keywords"]) >= 5
    classifiers = PROJECT["classifiers"]
    for name in ("Python :: 3.11", "Python :: 3.12", "Framework :: Django", "Framework :: FastAPI"):
        assert any(name in one for one in classifiers), name
    for name, url in PROJECT["urls"].items():
        path = url.partition("/blob/main/")[2]
        assert not path or (ROOT / path).exists(), name


def test_every_extra_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert extra == "dev" or f"`{extra}`" in text, extra


def test_make_run_installs_no_development_tools() -> None:
    rule = MAKEFILE.split("\n.venv/runnable:")[1].split("\n\n")[0]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", rule)
    assert extras.split(",") == ["server", "remote"]
    assert re.search(r"^run: \.venv/runnable", MAKEFILE, re.MULTILINE)
