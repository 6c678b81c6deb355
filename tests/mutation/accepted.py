"""The accepted survivors in accepted.toml, each with a reason."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePath

import msgspec

from tests.mutation.mutation import Mutation

_FILE = Path(__file__).parent / "accepted.toml"
ANY = "any"  # kind of change


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mutations of a function that no test needs to notice. `function` is its qualified name, with
    as much of the path of its module as tells it from others. A change is `kind: expression`: all
    mutations of this kind within the expression; `kind: expression ==> result` is one of them."""

    function: str
    changes: tuple[str, ...]
    reason: str

    def covers(self, mutation: Mutation, text: str) -> bool:
        """Whether it accepts a mutation of a file with this text."""
        return self.is_of(mutation) and any(
            change_covers(change, mutation, text) for change in self.changes
        )

    def is_of(self, mutation: Mutation) -> bool:
        """Whether the mutation is one of its function."""
        return f".{place(mutation)}".endswith(f".{self.function}")


def place(mutation: Mutation) -> str:
    """The qualified name of the function that a mutation changes."""
    module = PurePath(mutation.path).with_suffix("").parts
    return ".".join([*module, mutation.function or "module"])


def change_covers(change: str, mutation: Mutation, text: str) -> bool:
    """Whether a mutation is this change, wherever in its function."""
    kind, _, rest = change.partition(": ")
    expression, is_one, result = rest.partition(" ==> ")
    return kind in (ANY, mutation.kind) and any(
        not is_one or _words(_changed(mutation, text, *found)) == _words(result)
        for found in _occurrences(expression, text)
        if found[0] <= mutation.start and mutation.end <= found[1]
    )


def _occurrences(expression: str, text: str) -> Iterator[tuple[int, int]]:
    """Where an expression stands in a text, however it is broken into lines."""
    words = [
        rf"\b{word}\b" if word.isidentifier() else re.escape(word) for word in _words(expression)
    ]
    for found in re.finditer(r"\s*".join(words), text):
        yield found.span()


def _changed(mutation: Mutation, text: str, start: int, end: int) -> str:
    """What the mutation makes of a part of the text."""
    return text[start : mutation.start] + mutation.new + text[mutation.end : end]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def read() -> list[Accepted]:
    """Read the whole list."""
    found = tomllib.loads(_FILE.read_text()).get("accepted", [])
    return msgspec.convert(found, list[Accepted])
