"""Puts changed functions into a process that has imported their module already.

That is several times as fast as to import everything again for each mutation.
"""

from __future__ import annotations

import gc
import inspect
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


class _Parts:
    """The code of a module: its functions by name, and all the rest, line numbers aside."""

    def __init__(self, text: str, path: str) -> None:
        self.functions: dict[str, list[CodeType]] = {}
        self.rest: list[tuple[Any, ...]] = []
        self._add(compile(text, path, "exec"))

    def _add(self, body: CodeType) -> None:
        values = [one for one in body.co_consts if not isinstance(one, CodeType)]
        self.rest.append((body.co_qualname, body.co_code, body.co_names, repr(values)))
        for one in body.co_consts:
            if isinstance(one, CodeType) and one.co_flags & inspect.CO_OPTIMIZED:
                self.functions.setdefault(one.co_qualname, []).append(one)
            elif isinstance(one, CodeType):  # the body of a class
                self._add(one)


def changed(before: str, after: str) -> list[str] | None:
    """The functions that differ; None if there are other differences, or names that are not
    unique."""
    old, new = _Parts(before, ""), _Parts(after, "")
    if old.rest != new.rest or old.functions.keys() != new.functions.keys():
        return None
    names = [name for name, codes in old.functions.items() if codes != new.functions[name]]
    return names if all(len(old.functions[name]) == 1 for name in names) else None


def functions() -> list[FunctionType]:
    """All functions that exist now."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is FunctionType]


def swap(file: Path, names: list[str], existing: list[FunctionType]) -> bool:
    """Give the existing functions of a module their code in a changed file. Returns whether that
    was possible."""
    path = str(file)
    if not any(getattr(one, "__file__", None) == path for one in sys.modules.values()):
        return True  # it will be imported from the file
    codes = _Parts(file.read_text(), path).functions
    found = set()
    for one in existing:
        if one.__code__.co_filename == path:
            name = one.__code__.co_qualname
            if name in names:
                if one.__code__.co_freevars != codes[name][0].co_freevars:
                    return False
                one.__code__ = codes[name][0]
                found.add(name)
    return found == set(names)
