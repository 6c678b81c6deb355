"""A process that has imported everything but the code under test, and forks to run tests.

Importing pytest and what the tests need takes several times as long as most tests that notice a
mutation. With "warm" it has imported the code under test, too, and most tests; then a request says
which functions have changed. Requests and replies are lines of JSON on stdin and stdout; the first
reply says that it is ready.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutation import warm

COLD = 97  # the exit code if a warm process cannot change the functions
_OURS = ("tenure", "tests", "conftest", "bench")
# Their imports together cover those of nearly all tests.
_SAMPLE = (
    "tests.conformance.conftest",
    "tests.server.conftest",
    "tests.simulation.test_same_as_the_model",
    "tests.engines.postgres.test_server",
    "tests.workers.conftest",
)


def main() -> None:
    with suppress(ValueError):
        sys.path.remove("")
    sys.path.insert(0, str(Path.cwd()))
    names = _needed() if "prepare" in sys.argv else _all() if "warm" in sys.argv else []
    for name in [*_plugins(), *names]:
        with suppress(Exception):
            importlib.import_module(name)
    functions = warm.functions()
    gc.freeze()  # to collect all this in each fork takes longer than most tests
    _reply(0)
    assert threading.active_count() == 1, "a fork would lose threads"
    for line in sys.stdin:
        _serve(json.loads(line), functions)


def _plugins() -> list[str]:
    """The plugins that pytest loads by itself."""
    found = importlib.metadata.entry_points(group="pytest11")
    return [one.module for one in found if one.module.partition(".")[0] not in _OURS]


def _all() -> list[str]:
    """What most tests import, and the tests that notice most mutations."""
    files = sorted(Path("tests/conformance").glob("test_*.py"))
    tests = [f"tests.conformance.{file.stem}" for file in files]
    return [*_SAMPLE, *tests, "tests.mutation.compared"]


def _needed() -> list[str]:
    """The third-party modules that tests import, determined by a child that imports the tests."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        for name in _SAMPLE:
            with suppress(Exception):
                importlib.import_module(name)
        names = [name for name in sys.modules if name.partition(".")[0] not in _OURS]
        with os.fdopen(writer, "w") as out:
            json.dump(names, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        names = json.load(found)
    os.waitpid(child, 0)
    return [str(name) for name in names]


def _serve(request: dict[str, Any], functions: list[FunctionType]) -> None:
    """Run pytest in a child. Reply with its process id, and with its exit code when it ends."""
    child = os.fork()
    if child == 0:
        _run(request, functions)
    _reply(child)
    _, status = os.waitpid(child, 0)
    _reply(os.waitstatus_to_exitcode(status))


def _reply(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(request: dict[str, Any], functions: list[FunctionType]) -> None:
    code = 1
    try:
        os.setsid()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(request["environment"])
        if request["changed"] is not None and not warm.swap(
            Path(request["file"]), request["changed"], functions
        ):
            os._exit(COLD)
        code = int(pytest.main(request["arguments"]))
    except BaseException:
        traceback.print_exc()  # the exit below would hide it
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
