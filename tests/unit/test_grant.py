"""A grant within another allows what both allow."""

from __future__ import annotations

import pytest

from tenure.model.ops import Grant

ALL = Grant()
SOME = Grant(queues=("mail", "web"), tenants=("a", "b"))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, SOME),
        (ALL, SOME),
        (Grant(queues=("web", "other")), Grant(("web",), ("a", "b"))),
        (Grant(tenants=("b", "c")), Grant(("mail", "web"), ("b",))),
        (Grant(("other",), ("c",)), Grant((), ())),
    ],
)
def test_a_grant_is_narrowed_by_another(other: Grant | None, expected: Grant) -> None:
    assert SOME.within(other) == expected
    assert other is None or ALL.within(other) == other
