"""FoundationDB's tuple layer: encodes tuples as keys with the same sort order.

The official binding has one, but it packs versionstamps only with its C library loaded, and is
untyped. This one supports the element types that the queue's keys need, in exactly the same
encoding: None, bytes, str, int, nested tuples, and versionstamps. Tuples sort first by the type of
an element, in that order (versionstamps last), then by its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, Union

_NULL = 0x00
_BYTES = 0x01
_STRING = 0x02
_NESTED = 0x05
_NEGATIVE_BIG = 0x0B
_ZERO = 0x14
_POSITIVE_BIG = 0x1D
_VERSIONSTAMP = 0x33

_BIG = (1 << 64) - 1  # larger numbers include their length
_POSITIVE = [bytes([_ZERO + size]) for size in range(9)]  # the prefix of smaller ones
_INT_BYTES = [1 + abs(code - _ZERO) for code in range(256)]  # of an encoded number, by its first
_STAMP_BYTES = 10
_INCOMPLETE = b"\xff" * _STAMP_BYTES
_NEW_STAMP = bytes([_VERSIONSTAMP]) + _INCOMPLETE + bytes(2)

Element = Union[None, bytes, str, int, "Versionstamp", "tuple[Element, ...]"]


@total_ordering
@dataclass(frozen=True)
class Versionstamp:
    """The time of a commit. An incomplete one, without `tr_version`, is filled in by the commit.
    The user version distinguishes the stamps of one transaction."""

    tr_version: bytes | None = None
    user_version: int = 0

    def __post_init__(self) -> None:
        if self.tr_version is not None and len(self.tr_version) != _STAMP_BYTES:
            raise ValueError(f"a versionstamp has {_STAMP_BYTES} bytes, not {self.tr_version!r}")
        if not 0 <= self.user_version <= 0xFFFF:
            raise ValueError(f"a user version has two bytes: {self.user_version} is out of range")

    def is_complete(self) -> bool:
        return self.tr_version is not None

    def completed(self, tr_version: bytes) -> Versionstamp:
        """This versionstamp, completed with the bytes from `get_versionstamp`."""
        if self.is_complete():
            raise ValueError("this versionstamp is complete")
        return Versionstamp(tr_version, self.user_version)

    def to_bytes(self) -> bytes:
        return (self.tr_version or _INCOMPLETE) + self.user_version.to_bytes(2, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> Versionstamp:
        stamp = data[:_STAMP_BYTES]
        user_version = int.from_bytes(data[_STAMP_BYTES : _STAMP_BYTES + 2], "big")
        return cls(None if stamp == _INCOMPLETE else stamp, user_version)

    def __lt__(self, other: Versionstamp) -> bool:
        return self.to_bytes() < other.to_bytes()


def pack(elements: tuple[Element, ...], prefix: bytes = b"") -> bytes:
    """The key of a tuple."""
    out = bytearray(prefix)
    if _encode(elements, out, nested=False):
        raise ValueError("a tuple with an incomplete versionstamp: use pack_with_versionstamp")
    return bytes(out)


def pack_with_versionstamp(elements: tuple[Element, ...], prefix: bytes = b"") -> bytes:
    """The key of a tuple with one incomplete versionstamp, for `set_versionstamped_key`."""
    out = bytearray(prefix)
    places = _encode(elements, out, nested=False)
    if len(places) != 1:
        raise ValueError(f"one incomplete versionstamp is needed, and there are {len(places)}")
    return bytes(out) + places[0].to_bytes(4, "little")


def append_versionstamp(prefix: bytes) -> bytes:
    """The key of a tuple that ends with an incomplete versionstamp: `pack_with_versionstamp` for a
    tuple whose beginning is already packed."""
    return prefix + _NEW_STAMP + (len(prefix) + 1).to_bytes(4, "little")


def after_ints(key: bytes, place: int, count: int) -> int:
    """The place after some numbers of at most eight bytes each."""
    for _ in range(count):
        place += _INT_BYTES[key[place]]
    return place


def last_str(key: bytes, place: int) -> str:
    """The string at this place, with which a key ends."""
    data = key[place + 1 : -1]
    return (data.replace(b"\x00\xff", b"\x00") if b"\x00" in data else data).decode()


def pack_str(text: str) -> bytes:
    """A string, encoded as a part of a key."""
    return b"\x02" + _escaped(text.encode())


def _encode(elements: Iterable[Element], out: bytearray, *, nested: bool) -> list[int]:
    """Append the elements. Returns the offsets of incomplete versionstamps."""
    places: list[int] = []
    for element in elements:
        if isinstance(element, str):
            out.append(_STRING)
            out += _escaped(element.encode())
        elif isinstance(element, int) and type(element) is not bool:
            out += pack_int(element)
        else:
            places += _encode_other(element, out, nested=nested)
    return places


def _encode_other(element: Element, out: bytearray, *, nested: bool) -> list[int]:
    """Like `_encode`, for one element of a rarer type."""
    if isinstance(element, bytes):
        out.append(_BYTES)
        out += _escaped(element)
    elif element is None:
        out += b"\x00\xff" if nested else b"\x00"
    elif isinstance(element, Versionstamp):
        out.append(_VERSIONSTAMP)
        place = len(out)
        out += element.to_bytes()
        return [] if element.is_complete() else [place]
    elif isinstance(element, tuple):
        out.append(_NESTED)
        places = _encode(element, out, nested=True)
        out.append(0)
        return places
    else:
        raise TypeError(f"a key cannot have a {type(element).__name__} in it: {element!r}")
    return []


def _escaped(data: bytes) -> bytes:
    """Bytes terminated by a zero; zeros inside are followed by 0xff."""
    return (data.replace(b"\x00", b"\x00\xff") if b"\x00" in data else data) + b"\x00"


def pack_int(number: int) -> bytes:
    """A number, encoded as a part of a key."""
    size = (number.bit_length() + 7) // 8
    if 0 <= number < _BIG:
        return _POSITIVE[size] + number.to_bytes(size, "big")
    if size > 255:
        raise ValueError("a number in a key has at most 255 bytes")
    if number < 0:
        number += (1 << 8 * size) - 1
        code = bytes([_NEGATIVE_BIG, size ^ 0xFF] if _is_big(number, size) else [_ZERO - size])
    else:
        code = bytes([_POSITIVE_BIG, size])
    return code + number.to_bytes(size, "big")


def _is_big(shifted: int, size: int) -> bool:
    """Whether a negative number, already shifted, needs more than eight bytes."""
    return size > 8 or (size == 8 and shifted == 0)


def unpack(key: bytes, prefix_len: int = 0) -> tuple[Any, ...]:
    """The tuple of a key."""
    elements: list[Any] = []
    place = prefix_len
    while place < len(key):
        element, place = _decode(key, place)
        elements.append(element)
    return tuple(elements)


def _decode(key: bytes, place: int) -> tuple[Any, int]:
    code = key[place]
    place += 1
    if code == _NULL:
        return None, place
    if code in (_BYTES, _STRING):
        end = _terminator(key, place)
        data = key[place:end].replace(b"\x00\xff", b"\x00")
        return (data if code == _BYTES else data.decode()), end + 1
    if _ZERO - 8 <= code <= _ZERO + 8:
        end = place + abs(code - _ZERO)
        number = int.from_bytes(key[place:end], "big")
        return number - ((1 << 8 * (end - place)) - 1 if code < _ZERO else 0), end
    if code == _POSITIVE_BIG:
        end = place + 1 + key[place]
        return int.from_bytes(key[place + 1 : end], "big"), end
    if code == _NEGATIVE_BIG:
        size = key[place] ^ 0xFF
        end = place + 1 + size
        return int.from_bytes(key[place + 1 : end], "big") - ((1 << 8 * size) - 1), end
    if code == _VERSIONSTAMP:
        end = place + _STAMP_BYTES + 2
        return Versionstamp.from_bytes(key[place:end]), end
    if code == _NESTED:
        return _decode_nested(key, place)
    raise ValueError(f"a key has an element of the unknown type {code:#04x}: {key!r}")


def _decode_nested(key: bytes, place: int) -> tuple[tuple[Any, ...], int]:
    elements: list[Any] = []
    while place < len(key):
        if key[place] != _NULL:
            element, place = _decode(key, place)
            elements.append(element)
        elif key[place + 1 : place + 2] == b"\xff":
            elements.append(None)
            place += 2
        else:
            return tuple(elements), place + 1
    raise ValueError(f"a key ends inside a tuple: {key!r}")


def _terminator(key: bytes, place: int) -> int:
    """The end of a string: the first zero not followed by 0xff."""
    while True:
        place = key.find(b"\x00", place)
        if place < 0:
            raise ValueError(f"a key ends inside a string: {key!r}")
        if key[place + 1 : place + 2] != b"\xff":
            return place
        place += 2


def strinc(key: bytes) -> bytes:
    """The first key after all keys that begin with these bytes."""
    key = key.rstrip(b"\xff")
    if not key:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return key[:-1] + bytes([key[-1] + 1])


class Subspace:
    """The keys of all tuples with a common prefix."""

    def __init__(self, prefix_tuple: tuple[Element, ...] = (), raw_prefix: bytes = b"") -> None:
        self.raw_prefix: bytes = pack(prefix_tuple, raw_prefix)

    def __repr__(self) -> str:
        return f"Subspace(raw_prefix={self.raw_prefix!r})"

    def __getitem__(self, name: Element) -> Subspace:
        return Subspace((name,), self.raw_prefix)

    def key(self) -> bytes:
        return self.raw_prefix

    def pack(self, elements: tuple[Element, ...] = ()) -> bytes:
        return pack(elements, self.raw_prefix)

    def pack_with_versionstamp(self, elements: tuple[Element, ...]) -> bytes:
        return pack_with_versionstamp(elements, self.raw_prefix)

    def unpack(self, key: bytes) -> tuple[Any, ...]:
        if not self.contains(key):
            raise ValueError(f"{key!r} is not in {self!r}")
        return unpack(key, len(self.raw_prefix))

    def range(self, elements: tuple[Element, ...] = ()) -> slice:
        """The range of all longer tuples: `tr[subspace.range()]`"""
        prefix = self.pack(elements)
        return slice(prefix + b"\x00", prefix + b"\xff")

    def contains(self, key: bytes) -> bool:
        return key.startswith(self.raw_prefix)

    def as_foundationdb_key(self) -> bytes:
        return self.raw_prefix
