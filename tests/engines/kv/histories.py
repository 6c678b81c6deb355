"""Plays a recorded history on a database, step by step, and says what was answered.

A history is a list of steps of a few transactions, with what a real cluster answered; README.md
says what a step means. Versions and versionstamps are a cluster's own, so they are compared by the
commit that made them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = dict[str, Any]

PREFIX = b"tenure-vectors/"


class Player:
    """Runs steps on a database of any implementation."""

    def __init__(self, fdb: Any, db: Any, prefix: bytes = PREFIX) -> None:
        self._fdb = fdb
        self._db = db
        self._prefix = prefix
        self._open: dict[int, Any] = {}

    def play(self, step: Step) -> Step:
        """The step with the answer that it got here."""
        arguments = _ARGUMENTS - {"value"} if step["op"] == "get" else _ARGUMENTS
        asked = {name: step[name] for name in step if name in arguments}
        run: Callable[..., Step] = getattr(self, f"_{step['op']}")
        try:
            return asked | run(step)
        except self._fdb.FDBError as error:
            return asked | {"error": error.code}

    def _key(self, step: Step, name: str = "key") -> bytes:
        return self._prefix + bytes.fromhex(step[name])

    def _reader(self, step: Step) -> Any:
        tr = self._open[step["t"]]
        return tr.snapshot if step["snapshot"] else tr

    def _rows(self, rows: Any) -> Step:
        cut = len(self._prefix)
        return {"rows": [[bytes(row.key)[cut:].hex(), bytes(row.value).hex()] for row in rows]}

    def _begin(self, step: Step) -> Step:
        tr = self._open[step["t"]] = self._db.create_transaction()
        return {"version": tr.get_read_version().wait()}

    def _get(self, step: Step) -> Step:
        value = self._reader(step).get(self._key(step))
        return {"value": bytes(value).hex() if value.present() else None}

    def _get_range(self, step: Step) -> Step:
        mode = self._fdb.StreamingMode.want_all
        begin, end = self._key(step, "begin"), self._key(step, "end")
        found = self._reader(step).get_range(
            begin, end, limit=step["limit"], reverse=step["reverse"], streaming_mode=mode
        )
        return self._rows(found)

    def _get_key(self, step: Step) -> Step:
        selector = self._fdb.KeySelector(self._key(step), step["or_equal"], step["offset"])
        found = bytes(self._reader(step).get_key(selector).wait())
        return {"found": found[len(self._prefix) :].hex()}

    def _set(self, step: Step) -> Step:
        self._open[step["t"]].set(self._key(step), bytes.fromhex(step["value"]))
        return {}

    def _clear(self, step: Step) -> Step:
        self._open[step["t"]].clear(self._key(step))
        return {}

    def _clear_range(self, step: Step) -> Step:
        self._open[step["t"]].clear_range(self._key(step, "begin"), self._key(step, "end"))
        return {}

    def _atomic(self, step: Step) -> Step:
        operation = getattr(self._open[step["t"]], step["name"])
        operation(self._key(step), bytes.fromhex(step["param"]))
        return {}

    def _set_versionstamped_key(self, step: Step) -> Step:
        before = self._key(step, "before")
        after = bytes.fromhex(step["after"])
        key = before + b"\xff" * 10 + after + len(before).to_bytes(4, "little")
        self._open[step["t"]].set_versionstamped_key(key, bytes.fromhex(step["value"]))
        return {}

    def _set_versionstamped_value(self, step: Step) -> Step:
        before = bytes.fromhex(step["before"])
        value = before + b"\xff" * 10 + len(before).to_bytes(4, "little")
        self._open[step["t"]].set_versionstamped_value(self._key(step), value)
        return {}

    def _read_conflict_key(self, step: Step) -> Step:
        self._open[step["t"]].add_read_conflict_key(self._key(step))
        return {}

    def _read_conflict_range(self, step: Step) -> Step:
        tr = self._open[step["t"]]
        tr.add_read_conflict_range(self._key(step, "begin"), self._key(step, "end"))
        return {}

    def _write_conflict_key(self, step: Step) -> Step:
        self._open[step["t"]].add_write_conflict_key(self._key(step))
        return {}

    def _write_conflict_range(self, step: Step) -> Step:
        tr = self._open[step["t"]]
        tr.add_write_conflict_range(self._key(step, "begin"), self._key(step, "end"))
        return {}

    def _next_write_has_no_conflict(self, step: Step) -> Step:
        self._open[step["t"]].options.set_next_write_no_write_conflict_range()
        return {}

    def _commit(self, step: Step) -> Step:
        tr = self._open.pop(step["t"])
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        version = tr.get_committed_version()
        try:
            found = bytes(stamp.wait()).hex()
        except self._fdb.FDBError:
            found = None
        return {"ok": True, "version": version, "versionstamp": found}

    def _dump(self, step: Step) -> Step:
        tr = self._db.create_transaction()
        mode = self._fdb.StreamingMode.want_all
        end = self._prefix + b"\xff"
        return self._rows(tr.get_range(self._prefix, end, streaming_mode=mode))


_ARGUMENTS = frozenset(
    {"t", "op", "key", "value", "begin", "end", "limit", "reverse", "snapshot", "or_equal"}
    | {"offset", "name", "param", "before", "after"}
)


class Ranks:
    """Makes the versions and versionstamps of two runs comparable: each is told by the place of the
    commit that made it."""

    def __init__(self) -> None:
        self._commits: list[tuple[int, bytes]] = []

    def of(self, step: Step) -> Step:
        """The step with places for versions."""
        plain = dict(step)
        if step["op"] == "commit" and step.get("versionstamp"):
            version, stamp = step["version"], bytes.fromhex(step["versionstamp"])
            self._commits.append((version, stamp))
            plain["stamp_is_of_version"] = stamp[:8] == version.to_bytes(8, "big")
            plain["later_than_all"] = all(stamp > other for _, other in self._commits[:-1])
            plain["version"] = plain["versionstamp"] = len(self._commits)
        elif step["op"] == "begin" and "version" in step:
            plain["version"] = sum(version <= step["version"] for version, _ in self._commits)
        for name in ("value", "found"):
            if step["op"] != "set" and step.get(name):
                plain[name] = self._named(step[name])
        if "rows" in step:
            plain["rows"] = [[self._named(cell) for cell in row] for row in step["rows"]]
        return plain

    def _named(self, text: str) -> str:
        for place, (_, stamp) in enumerate(self._commits, 1):
            text = text.replace(stamp.hex(), f"<{place}>")
        return text
