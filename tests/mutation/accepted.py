"""Survivors that are accepted, each with a reason: accepted.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tests.mutation.mutation import Mutation

_FILE = Path(__file__).parent / "accepted.toml"


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutation that no test need notice. `after` may be left out: then whatever becomes of the
    line `before` is accepted."""

    path: str
    function: str
    before: str
    reason: str
    after: str | None = None

    def covers(self, mutation: Mutation) -> bool:
        where = (mutation.path, mutation.function, mutation.before)
        return where == (self.path, self.function, self.before) and self.after in (
            None,
            mutation.after,
        )


def read() -> list[Accepted]:
    """The whole list."""
    found = tomllib.loads(_FILE.read_text()).get("accepted", [])
    return msgspec.convert(found, list[Accepted])
