"""Counts how often each production path of an engine is taken, and how many jobs it moves.

A path is a function, a statement or a function of PostgreSQL with a comment above its first line,
`path: NAME`. Several can have the same name. All functions of the engine's modules are replaced by
wrappers, statements are counted where they are executed, and functions of PostgreSQL by the server.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import linecache
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import psycopg

from tenure.engines.postgres import postgres_statements as postgres_statements
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.session import Db as PostgresDb
from tenure.engines.sqlite import sqlite_statements as sqlite_statements
from tenure.engines.sqlite.db import Db as SqliteDb
from tenure.engines.sqlite.sqlite_statements import SQL
from tenure.errors import TenureError
from tenure.features import parts
from tenure.model import ops
from tests.simulation.compare.outcomes import OUTCOMES
from tests.simulation.compare.rigs import POSTGRES_PLACE
from tests.support import postgres

Undo = Callable[[], None]
_MADE = ("_asdict", "_replace", "_make", "_generate_next_value_")  # by Python, for a class


class Counts:
    """How often each path was taken, by its name, and which functions and statements were used."""

    def __init__(self) -> None:
        self.known: set[str] = set()  # all paths
        self.times: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.there: set[str] = set()  # all functions and statements
        self.used: set[str] = set()

    def took(self, path: str, jobs: int) -> None:
        self.times[path] += 1
        self.jobs[path] += jobs

    @property
    def share(self) -> float:
        """Of the functions and statements, the share that was used."""
        return len(self.used & self.there) / max(1, len(self.there))

    @property
    def unused(self) -> list[str]:
        return sorted(self.there - self.used)


def moved(result: Any) -> int:
    """The number of jobs in a result, or in a list."""
    match result:
        case ops.Enqueued():
            return sum(result.created)
        case ops.Leased():
            return len(result.jobs)
        case ops.Answers():
            return moved(result.answers)
        case ops.Changed():
            return result.count
        case ops.Maintained():
            return result.total
        case ops.Ok() | ops.Moved():
            return 1
        case ops.Slots() | ops.Fired() | ops.Corrected() | TenureError():
            return 0
        case list():
            answers = bool(result) and isinstance(result[0], ops.Answer)
            return sum(map(moved, result)) if answers else len(result)
    return 0


# Functions --------------------------------------------------------------------------------------


def watch(counts: Counts, names: Sequence[str]) -> list[Undo]:
    """Count the calls of every function and method of these modules and packages."""
    modules = [module for name in names for module in _modules(name)]
    stands_in: dict[FunctionType, Any] = {}
    undo: list[Undo] = []
    for module in modules:
        for value in list(vars(module).values()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                stands_in[value] = _counted(counts, value)
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                undo += _watch_class(counts, value)
    for name, module in list(sys.modules.items()):
        if name.startswith("tenure."):
            undo += _replace(vars(module), stands_in)
    return undo


def _modules(name: str) -> Iterator[ModuleType]:
    module = importlib.import_module(name)
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        yield importlib.import_module(f"{name}.{found.name}")


def _watch_class(counts: Counts, kind: type) -> list[Undo]:
    undo: list[Undo] = []
    if getattr(kind, "_is_protocol", False):
        return undo
    for attribute, value in list(vars(kind).items()):
        ours = not attribute.startswith("__") and attribute not in _MADE
        if inspect.isfunction(value) and ours:
            setattr(kind, attribute, _counted(counts, value))
            undo.append(functools.partial(setattr, kind, attribute, value))
    return undo


def _replace(names: dict[str, Any], stands_in: dict[FunctionType, Any]) -> list[Undo]:
    """Replace functions by counting ones wherever they are referenced, including in tables of
    functions."""
    undo: list[Undo] = []
    for name, value in list(names.items()):
        if inspect.isfunction(value) and value in stands_in:
            names[name] = stands_in[value]
            undo.append(functools.partial(names.__setitem__, name, value))
        elif isinstance(value, dict) and not name.startswith("__"):
            before = dict(value)
            for key, item in before.items():
                value[key] = _swapped(item, stands_in)
            undo.append(functools.partial(value.update, before))
    return undo


def _swapped(item: Any, stands_in: dict[FunctionType, Any]) -> Any:
    if isinstance(item, tuple):
        swapped = [_swapped(one, stands_in) for one in item]
        return item._make(swapped) if hasattr(item, "_make") else tuple(swapped)
    return stands_in.get(item, item) if inspect.isfunction(item) else item


def _path_of(function: FunctionType) -> str | None:
    """The name in the comment above a function or its decorators."""
    code = function.__code__
    above = linecache.getline(code.co_filename, code.co_firstlineno - 1)
    return above.strip().removeprefix("# path: ") if "# path: " in above else None


def _counted(counts: Counts, function: FunctionType) -> Any:
    name = f"{function.__module__}.{function.__qualname__}"
    counts.there.add(name)
    path = _path_of(function)
    outcome = None
    if path is not None:
        counts.known.add(path)
        outcome = OUTCOMES.get(path)

    @functools.wraps(function)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counts.used.add(name)
        if path is not None:
            counts.took(path, moved(result))
        if outcome is not None:
            counts.took(f"{path}: {outcome(args, result)}", moved(result))
        return result

    return stand_in


# Statements -------------------------------------------------------------------------------------

_IN_SQL = re.compile(
    r"^-- name: (?P<name>\S+)\n-- path: (?P<of_name>.+)\n"
    r"|^-- path: (?P<of_function>.+)\nCREATE FUNCTION tenure\.(?P<function>\w+)",
    re.MULTILINE,
)


def _paths_in_sql(module: ModuleType) -> dict[str, str]:
    """The names of paths, by the statement or function in the files of SQL beside a module."""
    found: dict[str, str] = {}
    for file in sorted(Path(str(module.__file__)).parent.glob("*.sql")):
        for mark in _IN_SQL.finditer(file.read_text("utf-8")):
            if mark["name"]:
                found[f"statement {mark['name']}"] = mark["of_name"]
            else:
                found[f"function {mark['function']}"] = mark["of_function"]
    return found


def _watch_sqlite(counts: Counts) -> list[Undo]:
    methods = ("one", "all", "packed", "ids", "named", "run", "many", "insert")
    return _watch_statements(counts, SqliteDb, methods, sqlite_statements, SQL)


def _watch_postgres(counts: Counts) -> list[Undo]:
    methods = ("send", "all", "one", "named", "send_named")
    names = statements("tenure").sql
    return _watch_statements(counts, PostgresDb, methods, postgres_statements, names)


def _watch_statements(
    counts: Counts, kind: type, methods: Sequence[str], module: ModuleType, names: Iterable[str]
) -> list[Undo]:
    paths = _paths_in_sql(module)
    counts.there |= {f"statement {name}" for name in names}
    counts.known |= set(paths.values())
    return [_watch_method(counts, kind, method, paths) for method in methods]


def _watch_method(counts: Counts, kind: type, method: str, paths: Mapping[str, str]) -> Undo:
    """Count the statements that a method executes. Their jobs are the rows that were returned,
    changed or sent."""
    function = getattr(kind, method)

    @functools.wraps(function)
    def stand_in(self: Any, name: str, *args: Any) -> Any:
        result = function(self, name, *args)
        counts.used.add(f"statement {name}")
        path = paths.get(f"statement {name}")
        if path is None:
            return result
        rows = result if isinstance(result, int) else len(result) if _sized(result) else 0
        if method in ("insert", "send", "send_named"):
            rows = max((len(arg) for arg in args if isinstance(arg, list)), default=0)
        if kind is PostgresDb and method in ("all", "one"):
            counts.jobs[path] += rows  # its execution is counted where it is sent
        else:
            counts.took(path, max(0, rows))
        return result

    setattr(kind, method, stand_in)
    return functools.partial(setattr, kind, method, function)


def _sized(result: Any) -> bool:
    return isinstance(result, list)


# Functions of the server ------------------------------------------------------------------------


def _add_server_functions(counts: Counts) -> None:
    """Add the counts of the server, which are complete once the connections are closed. Functions
    that are written into the statements that call them are not counted."""
    schema = postgres.schema_of(POSTGRES_PLACE)
    paths = _paths_in_sql(postgres_statements)
    with psycopg.connect(postgres.shared_url()) as connection:
        rows = connection.execute(
            "SELECT p.proname, sum(s.calls) FROM pg_proc p JOIN pg_stat_user_functions s "
            "ON s.funcid = p.oid WHERE p.pronamespace = %s::regnamespace GROUP BY p.proname",
            (schema,),
        ).fetchall()
    for name, calls in rows:
        if path := paths.get(f"function {name}"):
            counts.times[path] += int(calls)


# What is watched --------------------------------------------------------------------------------

_COMMON = ["tenure.queue.committer"]
_RULES = ["tenure.core", "tenure.features.operate", *(one.__name__ for one in parts("rules"))]
_WATCHED: dict[str, list[str]] = {
    "sqlite": ["tenure.engines.sqlite", "tenure.engines.sql", *_RULES, *_COMMON],
    "postgres": ["tenure.engines.postgres", "tenure.engines.sql", *_RULES, *_COMMON],
    "shards": ["tenure.engines.sharded", *_COMMON],
    "http": ["tenure.engines.remote", "tenure.observe.metrics", "tenure.model.wire", *_COMMON],
    "foundationdb": ["tenure.engines.foundationdb", *_RULES, *_COMMON],
}


@contextmanager
def counting(engine: str) -> Iterator[Counts]:
    """Count inside the context."""
    counts = Counts()
    kind = engine.partition("-")[0]
    undo = {"sqlite": _watch_sqlite, "postgres": _watch_postgres}.get(kind, lambda _: [])(counts)
    undo += watch(counts, _WATCHED[kind])
    try:
        yield counts
        if kind == "postgres":
            _add_server_functions(counts)
    finally:
        for one in reversed(undo):
            one()
