"""How the results of operations that are done once are stored."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from tenure import Conflict, Duplicate, State
from tenure.model import ops, wire
from tenure.model.job import NULL, Job, JobSpec
from tenure.model.ops import Answer

A, B = (ops.Enqueue((JobSpec(id, "q", NULL),)) for id in "ab")
CLAIM = ops.Claim(("q",), "w", 1000)
GIVEN: list[Answer] = [ops.Ok(), Duplicate("id", "a", "a"), ops.Corrected({"ready": 1})]


def nobody(ids: Sequence[str]) -> dict[str, Job]:
    """Finds no job."""
    return {}


def test_results_are_read_as_they_were_stored_with_what_is_kept() -> None:
    once = ops.Once("k", (A, A, B))
    text = wire.encode_once(once, GIVEN, "kept")
    assert wire.decode_once(once, text, nobody) == ops.Answers(GIVEN, "kept")
    assert wire.decode_once(ops.Once("k", ()), wire.encode_once(once, [], ""), nobody) == Conflict(
        "the key 'k' was used for other operations; nothing was changed"
    )


def test_a_fingerprint_stands_for_the_operations() -> None:
    said = 'with "quotes" \\ and \0'
    text = wire.encode_once(ops.Once("k", (A,), said), [ops.Ok()], "")
    assert wire.decode_once(ops.Once("k", (B,), said), text, nobody) == ops.Answers([ops.Ok()])
    assert isinstance(wire.decode_once(ops.Once("k", (A,), "another"), text, nobody), Conflict)


def test_a_call_that_has_only_begun_has_no_results() -> None:
    once = ops.Once("k", (A,))
    assert isinstance(wire.decode_once(once, wire.begun(wire.did(once)), nobody), Conflict)


def test_what_is_stored_of_a_claim_has_no_payload() -> None:
    job = JobSpec("a", "q", Raw(b'"secret"')).to_job(State.LEASED, 0)
    text = wire.encode_once(ops.Once("k", (CLAIM,)), [ops.Leased([job])], "")
    assert b"secret" not in text
    assert wire.decode_once(ops.Once("k", (CLAIM,)), text, lambda ids: {"a": job}) == ops.Answers(
        [ops.Leased([job])]
    )
