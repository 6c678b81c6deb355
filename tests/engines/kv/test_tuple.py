"""Our tuple layer makes the same keys as the official one."""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tenure.engines.foundationdb.tuple_layer import (
    Element,
    Subspace,
    Versionstamp,
    after_ints,
    append_versionstamp,
    pack,
    pack_int,
    pack_str,
    pack_with_versionstamp,
    unpack,
)

# Packed by the official tuple layer, release 7.3.79.
_RECORDED = json.loads((Path(__file__).parent / "tuples.json").read_text())


def _element(data: Any) -> Element:
    if isinstance(data, list):
        return tuple(_element(part) for part in data)
    if not isinstance(data, dict):
        text: str | None = data
        return text
    if "int" in data:
        return int(data["int"])
    if "bytes" in data:
        return bytes.fromhex(data["bytes"])
    stamp = data["stamp"]
    return Versionstamp(bytes.fromhex(stamp) if stamp else None, data["user"])


def _tuple(data: list[Any]) -> tuple[Element, ...]:
    return tuple(_element(part) for part in data)


def test_every_recorded_tuple_is_packed_and_unpacked_as_by_the_official_layer() -> None:
    assert len(_RECORDED["tuples"]) == 400
    for row in _RECORDED["tuples"]:
        elements, packed = _tuple(row["tuple"]), bytes.fromhex(row["packed"])
        assert pack(elements) == packed
        assert unpack(packed) == elements


def test_every_recorded_incomplete_versionstamp_is_packed_with_its_place() -> None:
    assert len(_RECORDED["incomplete"]) == 40
    for row in _RECORDED["incomplete"]:
        elements, prefix = _tuple(row["tuple"]), bytes.fromhex(row["prefix"])
        packed = bytes.fromhex(row["packed"])
        assert pack_with_versionstamp(elements, prefix) == packed
        assert unpack(packed[:-4], len(prefix)) == elements


_ELEMENTS = st.recursive(
    st.none()
    | st.binary(max_size=4)
    | st.text("\x00ab\xe9", max_size=4)
    | st.integers()
    | st.integers(-300, 300)
    | st.builds(Versionstamp, st.binary(min_size=10, max_size=10), st.integers(0, 0xFFFF)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
_TUPLES = st.lists(_ELEMENTS, max_size=4).map(tuple)

_ORDER: list[type] = [type(None), bytes, str, tuple, int, Versionstamp]


def _sort_key(elements: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the order of tuples means: types first, then values, text by its UTF-8 bytes."""
    return tuple(
        (
            _ORDER.index(type(element)),
            _sort_key(element)
            if isinstance(element, tuple)
            else 0
            if element is None
            else element.encode()
            if isinstance(element, str)
            else element,
        )
        for element in elements
    )


@given(_TUPLES)
def test_what_is_packed_is_unpacked(elements: tuple[Any, ...]) -> None:
    assume(b"\xff" * 10 not in pack(elements))  # passes for an incomplete one, in both layers
    assert unpack(pack(elements)) == elements


@given(_TUPLES, _TUPLES)
def test_keys_sort_as_their_tuples(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (pack(one) < pack(other)) == (_sort_key(one) < _sort_key(other))


class Level(IntEnum):
    """A number, as a program may define for its priorities."""

    HIGH = 7


def test_a_number_of_a_derived_type_is_packed_as_a_number() -> None:
    assert pack((Level.HIGH,)) == pack((7,))


@pytest.mark.parametrize("element", [1.5, True, [1], object()])
def test_an_element_of_another_type_is_refused(element: Any) -> None:
    with pytest.raises(TypeError, match="cannot have"):
        pack((element,))


@pytest.mark.parametrize("key", [b"\x01abc", b"\x05\x01a\x00", b"\x99"])
def test_a_key_that_no_tuple_makes_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="a key"):
        unpack(key)


def test_a_plain_key_has_no_incomplete_versionstamp_and_a_stamped_one_has_one() -> None:
    with pytest.raises(ValueError, match="pack_with_versionstamp"):
        pack((Versionstamp(),))
    with pytest.raises(ValueError, match="there are 0"):
        pack_with_versionstamp((Versionstamp(b"0123456789"),))
    with pytest.raises(ValueError, match="there are 2"):
        pack_with_versionstamp((Versionstamp(), (Versionstamp(),)))


def test_a_versionstamp_is_completed_once_and_sorts_after_earlier_ones() -> None:
    incomplete = Versionstamp(user_version=7)
    complete = incomplete.completed(b"0123456789")
    assert complete == Versionstamp(b"0123456789", 7)
    assert complete < Versionstamp(b"0123456789", 8) < Versionstamp(b"0123456790") < incomplete
    with pytest.raises(ValueError, match="complete"):
        complete.completed(b"0123456789")
    with pytest.raises(ValueError, match="10 bytes"):
        Versionstamp(b"short")
    with pytest.raises(ValueError, match="out of range"):
        Versionstamp(user_version=65_536)


def test_a_subspace_holds_the_keys_of_longer_tuples() -> None:
    jobs = Subspace(("jobs",), b"\x01")
    key = jobs["mail"].pack((3, b"x"))
    assert key == b"\x01" + pack(("jobs", "mail", 3, b"x"))
    assert jobs.unpack(key) == ("mail", 3, b"x")
    assert jobs.contains(key)
    assert not jobs.contains(pack(("jobs", "mail")))
    within = jobs.range(("mail",))
    assert within.start < key < within.stop
    assert not within.start < jobs.pack(("mail2",)) < within.stop
    assert not within.start < jobs["mail"].key() < within.stop
    assert jobs.pack_with_versionstamp((Versionstamp(),)).startswith(jobs.as_foundationdb_key())
    with pytest.raises(ValueError, match="is not in"):
        jobs.unpack(b"\x02")


@given(st.text(), st.integers(-(2**63), 2**63), st.binary())
def test_parts_of_a_key_are_what_pack_makes_of_them(text: str, number: int, prefix: bytes) -> None:
    assert prefix + pack_str(text) == pack((text,), prefix)
    assert prefix + pack_int(number) == pack((number,), prefix)
    assert append_versionstamp(prefix) == pack_with_versionstamp((Versionstamp(),), prefix)


@given(st.lists(st.integers(-(2**63) + 1, 2**63)), st.binary())
def test_numbers_are_skipped(numbers: list[int], prefix: bytes) -> None:
    key = pack((*numbers, "x"), prefix)
    assert unpack(key, after_ints(key, len(prefix), len(numbers))) == ("x",)
