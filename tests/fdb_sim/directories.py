"""The directory layer of the simulation, as much of it as finds room for a queue.

The binding's own needs the C library even to be imported. This one has the same names, where it has
any, and the same layout in the store, which tests/kv compares with rows that the binding wrote.
"""

from __future__ import annotations

import struct
from typing import Any

from tenure.engines.foundationdb.tuple_layer import Subspace, pack, strinc

Path = tuple[str, ...]

_SUBDIRECTORIES = 0
_VERSION = (1, 0, 0)


class DirectoryLayer:
    """The directories of a cluster. Every method works inside the caller's transaction."""

    def __init__(self) -> None:
        self._nodes = Subspace(raw_prefix=b"\xfe")
        self._root = self._nodes[self._nodes.key()]
        self._allocator = Allocator(self._root[b"hca"])

    def create_or_open(self, tr: Any, path: Path, layer: bytes = b"") -> Subspace:
        """The directory at a path, made with those above it if it is not there."""
        if self.exists(tr, path):
            return self.open(tr, path, layer)
        return self._create(tr, path, layer)

    def exists(self, tr: Any, path: Path) -> bool:
        self._check_version(tr, writing=False)
        return self._find(tr, path) is not None

    def open(self, tr: Any, path: Path, layer: bytes = b"") -> Subspace:
        """The directory at a path; raises ValueError if there is none, or another layer's."""
        self._check_version(tr, writing=False)
        prefix = self._find(tr, path)
        if prefix is None:
            raise ValueError("The directory does not exist.")
        found = bytes(tr[self._nodes[prefix][b"layer"]])
        if found == b"partition" or (layer and found != layer):
            raise ValueError("The directory was created with an incompatible layer.")
        return Subspace(raw_prefix=prefix)

    def _create(self, tr: Any, path: Path, layer: bytes) -> Subspace:
        self._check_version(tr, writing=True)
        prefix = self._allocator.allocate(tr)
        if list(tr.get_range_startswith(prefix, limit=1)) or not self._is_free(tr, prefix):
            raise ValueError(f"the prefix {prefix!r} was chosen, but there are keys with it")
        parent = self._root
        if len(path) > 1:
            above = self.create_or_open(tr, path[:-1])
            parent = self._nodes[above.key()]
        tr[parent[_SUBDIRECTORIES][path[-1]]] = prefix
        tr[self._nodes[prefix][b"layer"]] = layer
        return Subspace(raw_prefix=prefix)

    def _find(self, tr: Any, path: Path) -> bytes | None:
        """The prefix of a directory."""
        if not path:
            raise ValueError("The root directory cannot be opened.")
        node = self._root
        prefix = None
        for name in path:
            found = tr[node[_SUBDIRECTORIES][name]]
            if not found.present():
                return None
            prefix = bytes(found)
            node = self._nodes[prefix]
        return prefix

    def _is_free(self, tr: Any, prefix: bytes) -> bool:
        """Whether no directory has a prefix that begins with this one, or the other way round."""
        nodes = self._nodes
        before = tr.snapshot.get_range(
            nodes.range().start, nodes.pack((prefix,)) + b"\x00", limit=1, reverse=True
        )
        for row in before:
            if prefix.startswith(nodes.unpack(bytes(row.key))[0]):
                return False
        below = tr.snapshot.get_range(nodes.pack((prefix,)), nodes.pack((strinc(prefix),)), limit=1)
        return not prefix.startswith(nodes.key()) and not list(below)

    def _check_version(self, tr: Any, *, writing: bool) -> None:
        key = self._root[b"version"]
        found = tr[key]
        if not found.present():
            if writing:
                tr[key] = struct.pack("<III", *_VERSION)
            return
        major, minor, _ = struct.unpack("<III", bytes(found))
        if major > _VERSION[0] or (writing and minor > _VERSION[1]):
            raise ValueError(f"the directories of this cluster have the version {major}.{minor}")


class Allocator:
    """Short prefixes that nobody else gets, drawn by chance from a window that moves up as it
    fills, so that those who allocate at the same time seldom conflict."""

    def __init__(self, subspace: Subspace) -> None:
        self._counters = subspace[0]
        self._recent = subspace[1]

    def allocate(self, tr: Any) -> bytes:
        while True:
            start, window = self._window(tr)
            while True:
                candidate = tr.db.chance.randrange(start, start + window)
                newest = self._newest(tr)
                taken = tr[self._recent[candidate]]
                tr.options.set_next_write_no_write_conflict_range()
                tr[self._recent[candidate]] = b""
                if newest > start:
                    break  # the window has moved: begin again
                if not taken.present():
                    tr.add_write_conflict_key(self._recent[candidate])
                    return pack((candidate,))

    def _newest(self, tr: Any) -> int:
        window = self._counters.range()
        for row in tr.snapshot.get_range(window.start, window.stop, limit=1, reverse=True):
            start: int = self._counters.unpack(bytes(row.key))[0]
            return start
        return 0

    def _window(self, tr: Any) -> tuple[int, int]:
        """The window that is less than half full, after counting us in."""
        start = self._newest(tr)
        moved = False
        while True:
            if moved:
                del tr[self._counters : self._counters[start]]
                tr.options.set_next_write_no_write_conflict_range()
                del tr[self._recent : self._recent[start]]
            tr.add(self._counters[start], struct.pack("<q", 1))
            counted = tr.snapshot[self._counters[start]]
            count = struct.unpack("<q", bytes(counted))[0] if counted.present() else 0
            window = 64 if start < 255 else 1024 if start < 65535 else 8192
            if count * 2 < window:
                return start, window
            start += window
            moved = True
