"""Random steps of several transactions at once, as data: the same seed makes the same steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.engines.kv.histories import Step

_ATOMIC = ["add", "bit_and", "bit_or", "bit_xor", "min", "max", "byte_min", "byte_max"]
_ATOMIC += ["compare_and_clear", "append_if_fits"]
_MOST_STEPS = 60
_EDGES = [bytes([letter]) for letter in b"ABCDEFuvwxyz"]
_EDGES += [b"\xfe\xff" + bytes([letter]) for letter in b"uvwxyz"]


class Stream:
    """One stream. The keys at both ends are never touched, so that no selector looks beyond."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._letters = self._random.choice([b"abcdefgh", b"abc", b"a\x00b\xfe"])

    def steps(self) -> Iterator[Step]:
        """Everything from the first write to the look at the whole store."""
        pick = self._random
        yield {"t": 0, "op": "begin"}
        for key in _EDGES:
            yield {"t": 0, "op": "set", "key": key.hex(), "value": b"edge".hex()}
        for _ in range(pick.randrange(8)):
            yield {"t": 0, "op": "set", "key": self._key(), "value": self._value()}
        yield {"t": 0, "op": "commit"}
        waiting = list(range(1, pick.randrange(2, 9)))
        running: list[int] = []
        left = pick.randrange(10, _MOST_STEPS)
        while waiting or running:
            if waiting and (not running or pick.random() < 0.3):
                running.append(waiting.pop(0))
                yield {"t": running[-1], "op": "begin"}
            elif left and pick.random() < 0.9:
                left -= 1
                yield from self._act(pick.choice(running))
            else:
                number = pick.choice(running)
                running.remove(number)
                yield {"t": number, "op": "commit"}
        yield {"t": 0, "op": "dump"}

    def _key(self) -> str:
        pick = self._random
        # Two bytes at most, and never a byte after a zero: keys stay apart from versionstamps.
        key = [pick.choice(self._letters) or self._letters[0]]
        return bytes(key + [pick.choice(self._letters)] * (pick.random() < 0.3)).hex()

    def _value(self) -> str:
        pick = self._random
        number = pick.randrange(6).to_bytes(8, "little")
        return pick.choice([number, pick.randbytes(pick.randrange(5))]).hex()

    def _act(self, number: int) -> Iterator[Step]:
        acts: list[tuple[int, Callable[[], Step]]] = [
            (16, self._get),
            (18, self._get_range),
            (8, self._get_key),
            (16, self._set),
            (6, lambda: {"op": "clear", "key": self._key()}),
            (5, lambda: {"op": "clear_range", **self._range()}),
            (12, self._atomic),
            (5, self._stamped_key),
            (4, self._stamped_value),
            (2, lambda: {"op": "read_conflict_key", "key": self._key()}),
            (2, lambda: {"op": "read_conflict_range", **self._range()}),
            (2, lambda: {"op": "write_conflict_key", "key": self._key()}),
            (2, lambda: {"op": "write_conflict_range", **self._range()}),
            (2, lambda: {"op": "next_write_has_no_conflict"}),
        ]
        weights = [weight for weight, _ in acts]
        act = self._random.choices([make for _, make in acts], weights)[0]
        yield {"t": number, **act()}

    def _range(self) -> Step:
        begin, end = sorted([self._key(), self._key()])
        return {"begin": begin, "end": end}

    def _isolation(self) -> Step:
        return {"snapshot": self._random.random() < 0.35}

    def _get(self) -> Step:
        return {"op": "get", "key": self._key(), **self._isolation()}

    def _get_range(self) -> Step:
        pick = self._random
        limits = {"limit": pick.choice([0, 0, 1, 2, 3]), "reverse": pick.random() < 0.4}
        return {"op": "get_range", **self._range(), **limits, **self._isolation()}

    def _get_key(self) -> Step:
        pick = self._random
        where = {"or_equal": pick.random() < 0.5, "offset": pick.randrange(-3, 5)}
        return {"op": "get_key", "key": self._key(), **where, **self._isolation()}

    def _set(self) -> Step:
        return {"op": "set", "key": self._key(), "value": self._value()}

    def _atomic(self) -> Step:
        name = self._random.choice(_ATOMIC)
        return {"op": "atomic", "name": name, "key": self._key(), "param": self._value()}

    def _stamped_key(self) -> Step:
        after = self._random.choice([b"", b"x", b"y"]).hex()
        stamped = {"before": self._key(), "after": after, "value": self._value()}
        return {"op": "set_versionstamped_key", **stamped}

    def _stamped_value(self) -> Step:
        # Eight bytes before the stamp: no arithmetic on a value makes one stamp into another.
        before = self._random.randbytes(8).hex()
        return {"op": "set_versionstamped_value", "key": self._key(), "before": before}
