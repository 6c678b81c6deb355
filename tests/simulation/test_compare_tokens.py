"""The comparison's own translation of tokens."""

from __future__ import annotations

from msgspec.structs import replace

from tenure.model import ops
from tenure.model.job import NULL, Job, State
from tests.simulation.compare.tokens import Tokens


def _job(job_id: str, token: int) -> Job:
    return Job(
        id=job_id, queue="q", state=State.DONE, raw_payload=NULL, priority=0, run_at=0,
        created_at=0, updated_at=0, attempts=1, max_attempts=3, token=token,
    )  # fmt: skip


def _imported(tokens: Tokens, job: Job) -> Job:
    sent = tokens.to_engine(ops.Import((ops.Entry(job, False, ()),)))
    return replace(job, token=sent.entries[0].job.token)


def test_an_imported_job_that_was_here_before_gets_a_later_token() -> None:
    """The engine gave both jobs the same token, as FoundationDB does in one commit, and the model
    gave the job that comes back the token of the other one."""
    tokens = Tokens(strict=False)
    assert tokens.meet(_job("a", 19), _job("a", 1066)) is None
    assert tokens.meet(_job("b", 20), _job("b", 1066)) is None
    assert tokens.meet(_job("a", 20), _imported(tokens, _job("a", 20))) is None


def test_an_imported_token_that_was_never_seen_keeps_its_place() -> None:
    tokens = Tokens(strict=True)
    assert tokens.meet(_job("a", 3), _job("a", 100)) is None
    assert tokens.meet(_job("b", 9), _job("b", 200)) is None
    assert tokens.meet(_job("c", 5), _imported(tokens, _job("c", 5))) is None


def test_a_token_that_is_not_the_jobs_own_never_becomes_it() -> None:
    tokens = Tokens(strict=True)
    assert tokens.meet(_job("a", 2), _job("a", 1)) is None
    for wrong in (1, 3, 50):
        assert tokens.of_engine("a", wrong) != 1


def test_a_new_token_is_not_the_jobs_own_where_tokens_of_jobs_are_in_no_order() -> None:
    tokens = Tokens(strict=False)
    assert tokens.meet(_job("a", 289), _job("a", 5)) is None
    assert tokens.meet(_job("b", 310), _job("b", 9)) is None
    assert tokens.meet(_job("c", 314), _job("c", 8)) is None
    assert all(tokens.of_engine("c", wrong) != 8 for wrong in range(1, 400) if wrong != 314)


def test_an_imported_token_may_be_behind_those_of_claims_before_it_in_the_batch() -> None:
    """The tokens of PostgreSQL leap when one comes that is far ahead."""
    tokens = Tokens(strict=True)
    assert tokens.meet(_job("a", 40), _job("a", 40)) is None
    brought = _imported(tokens, _job("c", 41))
    assert tokens.meet(_job("b", 41), _job("b", 4_000_041)) is None
    assert tokens.meet(_job("c", 41), brought) is None


def test_a_job_that_was_deleted_and_enqueued_again_may_have_lower_tokens() -> None:
    tokens = Tokens(strict=False)
    assert tokens.meet(_job("a", 90), _job("a", 1_000_090)) is None
    again = replace(_job("a", 91), created_at=5)
    assert tokens.meet(again, replace(again, token=10_091)) is None
    assert tokens.meet(replace(again, token=92), replace(again, token=10_090)) is not None
