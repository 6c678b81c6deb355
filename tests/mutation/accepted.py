"""The accepted survivors in accepted.toml, each with a reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tests.mutation.mutation import Mutation

_FILE = Path(__file__).parent / "accepted.toml"


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mutations of a line that no test needs to notice: those whose result is listed in `after`, or
    all of them if it is empty."""

    path: str
    function: str
    before: str
    reason: str
    after: tuple[str, ...] = ()

    def covers(self, mutation: Mutation) -> bool:
        where = (mutation.path, mutation.function, mutation.before)
        mine = (self.path, self.function, self.before)
        return where == mine and (not self.after or mutation.after in self.after)


def read() -> list[Accepted]:
    """Read the whole list."""
    found = tomllib.loads(_FILE.read_text()).get("accepted", [])
    return msgspec.convert(found, list[Accepted])
