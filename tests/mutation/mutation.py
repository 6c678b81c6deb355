"""A change of one source file."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Edit(NamedTuple):
    """A replacement of some characters of a source text."""

    start: int
    end: int
    new: str
    kind: str
    function: str


class Mutation(msgspec.Struct, frozen=True):
    """An edit of a file. `before` and `after` are the lines that it touches, without indentation.
    Together with path and function they identify it, independent of its position in the file."""

    path: str  # from the root of the repository
    function: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    new: str
    line: int
    nth: int = 0  # among those with the same name

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, self.before, self.after

    @property
    def id(self) -> str:
        name = "\0".join([*self.key, str(self.nth)])
        return hashlib.sha256(name.encode()).hexdigest()[:10]

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def diff(self, text: str) -> str:
        lines = difflib.unified_diff(
            text.splitlines(), self.apply(text).splitlines(), self.path, self.path, "", "", 2, ""
        )
        return "\n".join(lines)


def mutations(path: str, text: str, edits: Iterable[Edit]) -> list[Mutation]:
    """The mutations for the edits of a file. Equal results are listed once."""
    found: list[Mutation] = []
    seen: set[tuple[int, str]] = set()
    names: Counter[tuple[str, str, str, str]] = Counter()
    for edit in sorted(edits):
        first = text.rfind("\n", 0, edit.start) + 1
        last = text.find("\n", edit.end)
        last = len(text) if last < 0 else last
        before = text[first:last]
        after = text[first : edit.start] + edit.new + text[edit.end : last]
        if before == after or (first, after) in seen:
            continue
        seen.add((first, after))
        one = Mutation(
            path,
            edit.function,
            edit.kind,
            " ".join(before.split()),
            " ".join(after.split()),
            edit.start,
            edit.end,
            edit.new,
            text.count("\n", 0, edit.start) + 1,
        )
        found.append(msgspec.structs.replace(one, nth=names[one.key]))
        names[one.key] += 1
    return found
