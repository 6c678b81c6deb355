"""Counts how often each production path of an engine is taken, and how many jobs it moves.

Everything is counted from outside: functions of the engine's modules are replaced by wrappers,
named SQL statements are counted where they are executed, and functions of PostgreSQL by the server.
The product contains nothing for this.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import psycopg

from tenure.engines.postgres.db import Db as PostgresDb
from tenure.engines.postgres.statements import statements
from tenure.engines.sqlite.db import Db as SqliteDb
from tenure.engines.sqlite.statements import SQL
from tenure.errors import TenureError
from tenure.features import parts
from tenure.model import ops
from tests.simulation.compare.outcomes import OUTCOMES
from tests.simulation.compare.rigs import POSTGRES_PLACE
from tests.support import postgres

Undo = Callable[[], None]
_MADE = ("_asdict", "_replace", "_make", "_generate_next_value_")  # by Python, for a class


class Counts:
    """How often each path was taken, by its name."""

    def __init__(self) -> None:
        self.known: set[str] = set()  # all paths
        self.times: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()

    def took(self, path: str, jobs: int) -> None:
        self.times[path] += 1
        self.jobs[path] += jobs


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
        package, _, short = module.__name__.rpartition(".")
        if package == "tenure.core":
            short = f"core.{short}"
        elif package.startswith("tenure.features."):
            short = f"{package.rpartition('.')[2]}.{short}"
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                stands_in[value] = _counted(counts, f"{short}.{name}", value)
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                undo += _watch_class(counts, f"{short}.{name}", value)
    for name, module in list(sys.modules.items()):
        if name.startswith("tenure."):
            undo += _replace(vars(module), stands_in)
    return undo


def _modules(name: str) -> Iterator[ModuleType]:
    module = importlib.import_module(name)
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        yield importlib.import_module(f"{name}.{found.name}")


def _watch_class(counts: Counts, name: str, kind: type) -> list[Undo]:
    undo: list[Undo] = []
    if getattr(kind, "_is_protocol", False):
        return undo
    for attribute, value in list(vars(kind).items()):
        ours = not attribute.startswith("__") and attribute not in _MADE
        if inspect.isfunction(value) and ours:
            setattr(kind, attribute, _counted(counts, f"{name}.{attribute}", value))
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


def _counted(counts: Counts, path: str, function: Callable[..., Any]) -> Any:
    counts.known.add(path)
    outcome = OUTCOMES.get(path)

    @functools.wraps(function)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counts.took(path, moved(result))
        if outcome is not None:
            counts.took(f"{path}: {outcome(args, result)}", moved(result))
        return result

    return stand_in


# Statements -------------------------------------------------------------------------------------


def _watch_sqlite(counts: Counts) -> list[Undo]:
    counts.known |= {f"sql {name}" for name in SQL}
    undo: list[Undo] = []
    for name in ("one", "all", "packed", "ids", "named", "run", "many", "insert"):
        undo.append(_watch_statement(counts, SqliteDb, name))
    return undo


def _watch_postgres(counts: Counts) -> list[Undo]:
    counts.known |= {f"sql {name}" for name in statements("tenure").sql}
    names = ("send", "all", "one", "named", "send_named")
    return [_watch_statement(counts, PostgresDb, name) for name in names]


def _watch_statement(counts: Counts, kind: type, method: str) -> Undo:
    """Count a named statement. Its jobs are the rows that were returned, changed or sent."""
    function = getattr(kind, method)

    @functools.wraps(function)
    def stand_in(self: Any, name: str, *args: Any) -> Any:
        result = function(self, name, *args)
        rows = result if isinstance(result, int) else len(result) if _sized(result) else 0
        if method in ("insert", "send", "send_named"):
            rows = max((len(arg) for arg in args if isinstance(arg, list)), default=0)
        if kind is PostgresDb and method in ("all", "one"):
            counts.jobs[f"sql {name}"] += rows  # its execution is counted where it is sent
        else:
            counts.took(f"sql {name}", max(0, rows))
        return result

    setattr(kind, method, stand_in)
    return functools.partial(setattr, kind, method, function)


def _sized(result: Any) -> bool:
    return isinstance(result, list)


# Functions of the server ------------------------------------------------------------------------


def _called() -> Counter[str]:
    schema = postgres.schema_of(POSTGRES_PLACE)
    with psycopg.connect(postgres.shared_url()) as connection:
        rows = connection.execute(
            "SELECT p.proname, coalesce(s.calls, 0) FROM pg_proc p LEFT JOIN "
            "pg_stat_user_functions s ON s.funcid = p.oid WHERE p.pronamespace = %s::regnamespace",
            (schema,),
        ).fetchall()
    return Counter({f"plpgsql {name}": calls for name, calls in rows})


def _add_server_functions(counts: Counts) -> None:
    """Add the counts of the server, which are complete once the connections are closed."""
    found = _called()
    counts.known |= found.keys()
    counts.times.update(found)


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
