"""How the answers of operations that are done once are stored: rows of older versions still count,
and older versions can read the rows of this one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Raw

import tenure
from tenure import Conflict, Duplicate, State
from tenure.model import ops, wire
from tenure.model.job import NULL, Job, JobSpec
from tenure.model.ops import Answer
from tenure.queue import store_of

A, B = (ops.Enqueue((JobSpec(id, "q", NULL),)) for id in "ab")
CLAIM = ops.Claim(("q",), "w", 1000)
TOLD: list[Answer] = [ops.Ok(), Duplicate("id", "a", "a"), ops.Corrected({"ready": 1})]


def nobody(ids: Sequence[str]) -> dict[str, Job]:
    """Finds no job."""
    return {}


@pytest.mark.parametrize("answers", [[], TOLD, TOLD[:1], TOLD[:2]])
def test_an_older_version_reads_what_is_stored(answers: list[Answer]) -> None:
    once = ops.Once("k", (A,) * len(answers))
    assert wire.decode_answers(wire.encode_once(once, answers)) == answers


def test_a_row_of_an_older_version_is_told_from_others_by_its_number_of_answers() -> None:
    old = wire.encode([ops.Ok()])
    assert wire.decode_once(ops.Once("k", (A,)), old, nobody) == ops.Answers([ops.Ok()])
    assert isinstance(wire.decode_once(ops.Once("k", (A, B)), old, nobody), Conflict)
    assert isinstance(wire.decode_once(ops.Once("k", ()), old, nobody), Conflict)


def test_a_fingerprint_stands_for_the_operations() -> None:
    said = 'with "quotes" \\ and \0'
    text = wire.encode_once(ops.Once("k", (A,), said), [ops.Ok()])
    assert wire.decode_once(ops.Once("k", (B,), said), text, nobody) == ops.Answers([ops.Ok()])
    assert isinstance(wire.decode_once(ops.Once("k", (A,), "another"), text, nobody), Conflict)


def test_a_file_of_an_older_version_answers_as_the_first_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with tenure.connect(f"sqlite:///{path}") as queue:
        (first,) = store_of(queue).do([ops.Once("k", (A,))])
        old = wire.encode(first.answers).decode()
        with sqlite3.connect(path) as db:
            assert db.execute("UPDATE tenure_once SET answers = ?", (old,)).rowcount == 1
        db.close()
        assert store_of(queue).do([ops.Once("k", (A,))]) == [first]
        (answer,) = store_of(queue).do([ops.Once("k", (A, B))])
        assert type(answer) is Conflict
        assert queue.stats("q").ready == 1


def test_what_is_stored_of_a_claim_has_no_payload() -> None:
    job = JobSpec("a", "q", Raw(b'"secret"')).to_job(State.LEASED, 0)
    text = wire.encode_once(ops.Once("k", (CLAIM,)), [ops.Leased([job])])
    assert b"secret" not in text
    assert wire.decode_once(ops.Once("k", (CLAIM,)), text, lambda ids: {"a": job}) == ops.Answers(
        [ops.Leased([job])]
    )


def test_a_claim_that_an_older_version_stored_is_returned_as_it_was() -> None:
    job = JobSpec("a", "q", Raw(b'"payload"')).to_job(State.LEASED, 0)
    old = wire.encode([ops.Leased([job])])
    assert wire.decode_once(ops.Once("k", (CLAIM,)), old, nobody) == ops.Answers(
        [ops.Leased([job])]
    )
