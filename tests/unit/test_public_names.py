"""The public names: all there, all documented, and nothing else."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import pytest

import tenure
from tenure import Queue
from tenure.features.errors.calls import ErrorCalls
from tenure.queue.limit_calls import LimitCalls
from tenure.queue.schedule_calls import ScheduleCalls
from tenure.queue.slot_calls import SlotCalls

PROMISED = {
    "opening a queue": ["connect", "Queue", "Settings"],
    "tasks and what runs them": [
        "Tenure",
        "Task",
        "Handle",
        "Handler",
        "Worker",
        "current_job",
        "CurrentJob",
    ],
    "what a task may return or raise": [
        "Outcome",
        "Snooze",
        "Retry",
        "Cancel",
        "Dead",
        "Suspended",
    ],
    "jobs": ["NewJob", "Job", "Lease", "State", "Failure"],
    "retries": ["Backoff", "fixed", "linear", "quadratic", "exponential"],
    "what is answered": [
        "EnqueuedIds",
        "Maintained",
        "Explained",
        "JobMove",
        "Related",
        "Matches",
        "Page",
        "Summaries",
        "Stats",
        "QueueStats",
        "TenantStats",
        "GroupStats",
        "GroupTotal",
        "Limit",
        "Slot",
        "Slots",
        "Schedule",
        "Timetable",
        "LiveWorker",
        "ErrorGroup",
        "ErrorGroups",
        "AuditEntry",
        "AuditLog",
        "Rates",
        "QueueRates",
        "RatePoint",
        "JobSteps",
        "Step",
        "SentSignal",
    ],
    "errors": [
        "TenureError",
        "InvalidInput",
        "InvalidPayload",
        "PayloadTooLarge",
        "DependencyCycle",
        "NotFound",
        "JobNotFound",
        "QueueNotFound",
        "ScheduleNotFound",
        "DependencyNotFound",
        "Conflict",
        "Duplicate",
        "LeaseLost",
        "JobFailed",
        "ChildFailed",
        "WaitTimeout",
        "NoCurrentJob",
        "NotAllowed",
        "Unauthorized",
        "Forbidden",
        "Busy",
        "Closed",
        "StoreError",
        "StoreRejected",
        "OutcomeUnknown",
        "StoreFull",
        "StoreReadOnly",
        "NotAStore",
        "WrongVersion",
    ],
}
CALLS = {
    "producing": ["enqueue", "enqueue_many"],
    "working": [
        "claim",
        "ack",
        "ack_many",
        "fail",
        "fail_many",
        "extend",
        "extend_many",
        "release",
        "progress",
    ],
    "looking": [
        "get",
        "get_many",
        "explain",
        "find_by_key",
        "longest_waits",
        "related",
        "workers",
        "jobs",
        "summaries",
        "history",
        "count_matching",
        "find_ids",
        "next_due",
        "oldest_ready",
        "stats",
        "tenants",
        "groups",
        "group_totals",
    ],
    "steps": ["steps", "signal", "replay_from"],
    "operating": ["cancel", "replay", "run_now", "delete", "purge", "update", "replay_edited"],
    "flow control": ["pause", "resume"],
    "the audit log": ["audit"],
    "rates": ["rates"],
    "upkeep": ["maintain", "reconcile", "close"],
}
WITHOUT_STEPS = {"audited", "sign"}  # they do nothing to the store, so they have one form
PARTS: dict[type, tuple[str, list[str]]] = {  # what belongs together, and how it is reached
    ScheduleCalls: ("schedules", ["list", "put", "drop", "timetable", "fire"]),
    LimitCalls: ("limits", ["list", "set", "clear"]),
    SlotCalls: ("slots", ["list", "take", "drop", "reconcile"]),
    ErrorCalls: ("errors", ["list", "mute", "unmute"]),
}
NAMES = [name for names in PROMISED.values() for name in names]
METHODS = [name for names in CALLS.values() for name in names]
EVERY: list[tuple[type, str]] = [
    *((Queue, name) for name in METHODS),
    *((kind, name) for kind, (_, names) in PARTS.items() for name in names),
]
STEPS = [one for one in EVERY if hasattr(one[0], f"_{one[1]}")]


def test_the_names_are_those_that_were_promised() -> None:
    assert sorted(tenure.__all__) == sorted([*NAMES, "__version__"])
    assert len(tenure.__all__) == len(set(tenure.__all__))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(tenure, name)
    assert value.__module__.startswith("tenure.")
    assert value.__doc__


def test_nothing_else_is_in_the_open() -> None:
    scope: dict[str, Any] = {}
    exec("from tenure import *", scope)  # also what is imported when it is used
    extra = {
        name
        for name, value in vars(tenure).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert extra == set(NAMES)


def test_a_star_brings_every_name() -> None:
    scope: dict[str, Any] = {}
    exec("from tenure import *", scope)
    assert set(tenure.__all__) <= set(scope)


def test_dir_lists_names_that_are_not_imported_yet() -> None:
    code = "import tenure; print(*dir(tenure))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(tenure.__all__) <= set(ran.stdout.split())


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tenure' has no attribute 'Tenur'"):
        _ = tenure.Tenur  # type: ignore[attr-defined]


def test_there_is_a_version() -> None:
    assert [part.isdigit() for part in tenure.__version__.split(".")] == [True] * 3


def test_types_are_for_others_to_use() -> None:
    assert (Path(tenure.__file__).parent / "py.typed").is_file()


def test_the_documentation_uses_only_what_is_public() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    code = "".join(
        block
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    )
    names = set(re.findall(r"\btenure\.(\w+)", code)) - {"db", "testing", "server"}
    assert "connect" in names
    assert names <= set(tenure.__all__)
    calls = set(re.findall(r"\b(?:q|queue)\.((?:\w+\.)?\w+)\(", code))
    assert {"enqueue", "limits.set"} <= calls
    paths = {kind: f"{path}." for kind, (path, _) in PARTS.items()}
    known = {paths.get(kind, "") + a + name for kind, name in EVERY for a in ("", "a")}
    assert calls <= known | WITHOUT_STEPS


# Queue ------------------------------------------------------------------------------------------


def test_the_calls_are_those_that_were_promised() -> None:
    parts = {path for path, _ in PARTS.values()}
    public = {name for name in dir(Queue) if not name.startswith("_")} - parts - WITHOUT_STEPS
    assert public == {*METHODS, *("a" + name for name in METHODS)}
    for kind, (_, names) in PARTS.items():
        public = {name for name in dir(kind) if not name.startswith("_")}
        assert public == {*names, *("a" + name for name in names)}


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_every_call_is_documented(kind: type, name: str) -> None:
    for form in (name, "a" + name):
        doc = inspect.getdoc(getattr(kind, form))
        assert doc
        assert doc[0].isupper()
        assert doc.endswith((".", ")"))


def test_help_shows_what_a_call_returns() -> None:
    for name, result in {"claim": "list[Job]", "ack": "None", "get": "Job"}.items():
        for form in (name, "a" + name):
            assert inspect.signature(getattr(Queue, form)).return_annotation == result


def classes_in(hint: Any) -> set[type]:
    """The classes that a type is made of."""
    if typing.get_origin(hint) is None:
        return {hint} if inspect.isclass(hint) else set()
    if typing.get_origin(hint) is UnionType or typing.get_args(hint):
        return set().union(*map(classes_in, typing.get_args(hint)))
    return set()


@pytest.mark.parametrize(("kind", "name"), STEPS)
def test_every_class_that_a_call_takes_or_answers_with_is_public(kind: type, name: str) -> None:
    hints = typing.get_type_hints(getattr(kind, f"_{name}"))
    classes = set().union(*map(classes_in, hints.values()))
    ours = {one.__name__ for one in classes if one.__module__.startswith("tenure")}
    assert ours <= {*tenure.__all__}


def test_importing_tenure_loads_nothing_heavy_that_it_may_not_need() -> None:
    code = "import sys, tenure; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    heavy = {"click", "email", "http.client", "importlib.resources", "prometheus_client", "rich"}
    assert heavy & loaded == set()
    only_workers_need = {"ctypes", "multiprocessing", "random", "tempfile"}
    assert only_workers_need & loaded == set()
    ours = {name for name in loaded if name.startswith("tenure.")}
    packages = {name.split(".")[1] for name in ours}
    assert packages & {"cli", "core", "server", "tasks", "testing", "worker"} == set()
    engines = {name.split(".")[2] for name in ours if name.startswith("tenure.engines.")}
    assert engines == {"sharded"}  # which recognizes URLs
    assert len(ours) <= 75
