"""The mutations, and what each makes of a value.

Numbers are little-endian and unsigned. An operation answers with as many bytes as its operand has,
so a stored value that is longer loses its end, as on a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

VALUE_LIMIT = 100_000


class Kind(Enum):
    """What a mutation does."""

    SET = "set"
    CLEAR_RANGE = "clear_range"
    ADD = "add"
    AND = "bit_and"
    OR = "bit_or"
    XOR = "bit_xor"
    MAX = "max"
    MIN = "min"
    BYTE_MAX = "byte_max"
    BYTE_MIN = "byte_min"
    APPEND_IF_FITS = "append_if_fits"
    COMPARE_AND_CLEAR = "compare_and_clear"
    VERSIONSTAMPED_KEY = "set_versionstamped_key"
    VERSIONSTAMPED_VALUE = "set_versionstamped_value"


class Mutation(NamedTuple):
    """One write. The parameter of a SET may be None: the key is cleared."""

    kind: Kind
    key: bytes
    param: bytes | None

    @property
    def size(self) -> int:
        return len(self.key) + len(self.param or b"")


def _number(value: bytes, length: int) -> int:
    return int.from_bytes(value[:length], "little")


def _add(old: bytes | None, operand: bytes) -> bytes:
    if not old or not operand:
        return operand
    size = len(operand)
    total = _number(old, size) + _number(operand, size)
    return (total % (1 << 8 * size)).to_bytes(size, "little")


def _and(old: bytes | None, operand: bytes) -> bytes:
    if old is None or not operand:
        return operand
    size = len(operand)
    return (_number(old, size) & _number(operand, size)).to_bytes(size, "little")


def _or(old: bytes | None, operand: bytes) -> bytes:
    if not old or not operand:
        return operand
    size = len(operand)
    return (_number(old, size) | _number(operand, size)).to_bytes(size, "little")


def _xor(old: bytes | None, operand: bytes) -> bytes:
    if not old or not operand:
        return operand
    size = len(operand)
    return (_number(old, size) ^ _number(operand, size)).to_bytes(size, "little")


def _max(old: bytes | None, operand: bytes) -> bytes:
    if not old or not operand:
        return operand
    size = len(operand)
    return max(_number(old, size), _number(operand, size)).to_bytes(size, "little")


def _min(old: bytes | None, operand: bytes) -> bytes:
    if old is None or not operand:
        return operand
    size = len(operand)
    return min(_number(old, size), _number(operand, size)).to_bytes(size, "little")


def _byte_max(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else max(old, operand)


def _byte_min(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else min(old, operand)


def _append_if_fits(old: bytes | None, operand: bytes) -> bytes:
    joined = (old or b"") + operand
    return joined if len(joined) <= VALUE_LIMIT or not old else old


def _compare_and_clear(old: bytes | None, operand: bytes) -> bytes | None:
    return None if old == operand else old


_APPLY: dict[Kind, Callable[[bytes | None, bytes], bytes | None]] = {
    Kind.ADD: _add,
    Kind.AND: _and,
    Kind.OR: _or,
    Kind.XOR: _xor,
    Kind.MAX: _max,
    Kind.MIN: _min,
    Kind.BYTE_MAX: _byte_max,
    Kind.BYTE_MIN: _byte_min,
    Kind.APPEND_IF_FITS: _append_if_fits,
    Kind.COMPARE_AND_CLEAR: _compare_and_clear,
}

INDEPENDENT = frozenset({Kind.SET, Kind.VERSIONSTAMPED_KEY, Kind.VERSIONSTAMPED_VALUE})

# Two of these make one only if their operands are of one length.
_LENGTHS_MATTER = frozenset({Kind.ADD, Kind.OR, Kind.XOR, Kind.MAX, Kind.MIN})


def applied(mutation: Mutation, old: bytes | None) -> bytes | None:
    """The value after a mutation of one key."""
    if mutation.kind in INDEPENDENT:
        return mutation.param
    assert mutation.param is not None
    return _APPLY[mutation.kind](old, mutation.param)


def folded(stack: list[Mutation], old: bytes | None) -> bytes | None:
    """The value after several mutations of one key."""
    for mutation in stack:
        old = applied(mutation, old)
    return old


def stacked(stack: list[Mutation], mutation: Mutation) -> list[Mutation]:
    """The mutations of a key with one more, made one with the last where nothing is lost by it.

    A client sends the result, so this decides how large a transaction is."""
    last = stack[-1]
    if mutation.kind in INDEPENDENT:
        return [*stack[:-1], mutation]
    if last.kind is Kind.SET:
        return [*stack[:-1], last._replace(param=applied(mutation, last.param))]
    same = last.kind is mutation.kind and mutation.kind is not Kind.COMPARE_AND_CLEAR
    if not same or last.param is None or mutation.param is None:
        return [*stack, mutation]
    if mutation.kind in _LENGTHS_MATTER and len(last.param) != len(mutation.param):
        return [*stack, mutation]
    return [*stack[:-1], last._replace(param=applied(mutation, last.param))]
