"""The operations of a batch by kind, including those inside a Once."""

from __future__ import annotations

from tenure.errors import Conflict
from tenure.model import ops
from tenure.model.ops import Ack, Answers, Claim, Leased, Ok, Once

ACK, CLAIM = Ack("a", 1), Claim(("q",), "w", 1000)
OK, LEASED = Ok(), Leased([])


def test_adjacent_operations_of_one_kind_are_a_run() -> None:
    found = list(ops.runs([ACK, ACK, CLAIM, ACK], [OK, OK, LEASED, OK]))
    assert found == [(Ack, [ACK, ACK], [OK, OK]), (Claim, [CLAIM], [LEASED]), (Ack, [ACK], [OK])]
    assert list(ops.runs([], [])) == []


def test_what_is_inside_a_once_is_a_part_of_a_run() -> None:
    once = Once("k", (ACK, CLAIM))
    found = list(ops.runs([ACK, once, CLAIM], [OK, Answers([OK, LEASED]), LEASED]))
    assert found == [(Ack, [ACK, ACK], [OK, OK]), (Claim, [CLAIM, CLAIM], [LEASED, LEASED])]


def test_the_error_of_a_once_is_that_of_each_operation_inside() -> None:
    error = Conflict("the key was used for another call")
    found = list(ops.runs([Once("k", (ACK, CLAIM))], [error]))
    assert found == [(Ack, [ACK], [error]), (Claim, [CLAIM], [error])]


def test_the_operations_inside_a_once_are_listed_in_order() -> None:
    assert list(ops.flat([ACK, Once("k", (CLAIM, ACK)), CLAIM])) == [ACK, CLAIM, ACK, CLAIM]
    assert list(ops.flat([ACK, CLAIM])) == [ACK, CLAIM]
