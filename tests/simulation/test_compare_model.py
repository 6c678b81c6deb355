"""The comparison's own model of when claims sweep."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tenure.model import ops
from tenure.model.job import NULL, JobSpec, State
from tests.simulation.compare.history import Comparison
from tests.simulation.compare.run import open_rig
from tests.simulation.compare.state import Difference
from tests.simulation.compare.steps import Run, Wait

KEYED = ops.Once("again", (ops.SetLimit("mail", None, None, 2), ops.Claim(("mail",), "w", 1000, 1)))


@pytest.mark.parametrize("repeated", [KEYED, replace(KEYED)], ids=["the same object", "a copy"])
def test_a_key_that_is_repeated_in_a_batch_sweeps_each_time_for_the_claims_beside_it(
    repeated: ops.Once,
) -> None:
    """The claims of both calls that come before the repetition run together, so that the first
    sweep is also for the second queue. The sweep for the repetition is only for the first."""
    delayed = JobSpec("delayed", "bulk", NULL, delay_ms=100)
    claim = ops.Once("other", (ops.Claim(("bulk",), "w", 1000, 1),))
    rig = open_rig("foundationdb", 0)
    try:
        comparison = Comparison(rig, every=1)
        comparison.step(Run(0, ((ops.Enqueue((delayed,)),),)))
        comparison.step(Wait(200))
        comparison.step(Run(0, ((KEYED,), (claim,), (repeated,))))
        comparison.end()
    finally:
        rig.close()


def test_a_claim_that_finds_only_expired_jobs_uses_up_the_rate() -> None:
    """Of two expired jobs, the first claim sweeps one and takes the other."""
    expiring = [JobSpec(name, "mail", NULL, expires_in_ms=100) for name in ("swept", "taken")]
    claim = Run(0, ((ops.Claim(("mail",), "w", 1000, 1),),))
    rig = open_rig("foundationdb", 3)
    try:
        comparison = Comparison(rig, every=1)
        comparison.step(Run(0, ((ops.SetLimit("mail", rate=1, per_ms=60_000),),)))
        comparison.step(Run(0, ((ops.Enqueue((*expiring, JobSpec("left", "mail", NULL))),),)))
        comparison.step(Wait(200))
        comparison.step(claim)
        comparison.step(claim)
        comparison.end()
        states = {i: record.job.state for i, record in rig.model._records.items()}
        assert states == {"swept": State.DEAD, "taken": State.DEAD, "left": State.PENDING}
    finally:
        rig.close()


def test_an_expired_job_that_a_claim_took_is_told_from_those_swept_later_in_the_batch() -> None:
    """The first claim sweeps one job and takes "taken". The second sweeps "next", which the first
    might have taken as well; then "not yet" would be dead."""
    expiring = [
        JobSpec(name, "mail", NULL, tenant=tenant, expires_in_ms=100)
        for name, tenant in (("swept", "a"), ("next", "a"), ("not yet", "a"), ("taken", "b"))
    ]
    rig = open_rig("foundationdb", 3)
    try:
        comparison = Comparison(rig, every=1)
        comparison.step(Run(0, ((ops.SetLimit("mail", "b", weight=1000),),)))
        comparison.step(Run(0, ((ops.Enqueue(tuple(expiring)),),)))
        comparison.step(Wait(200))
        first = ops.Claim(("mail",), "w", 1000, 1)
        between = ops.Enqueue((JobSpec("other", "bulk", NULL),))
        second = ops.Claim(("mail",), "w", 1000, 1, tenant="c")
        comparison.step(Run(0, ((first,), (between,), (second,))))
        comparison.end()
        dead = {i for i, record in rig.model._records.items() if record.job.state is State.DEAD}
        assert dead == {"swept", "next", "taken"}
    finally:
        rig.close()


def test_an_expired_job_that_a_claim_took_may_be_purged_later_in_the_batch() -> None:
    """The claim sweeps one job and takes "taken", which leaves no room for "left". The maintenance
    in the same batch deletes both dead jobs."""
    expiring = [JobSpec(name, "mail", NULL, expires_in_ms=100) for name in ("swept", "taken")]
    rig = open_rig("foundationdb", 3)
    try:
        comparison = Comparison(rig, every=1)
        comparison.step(Run(0, ((ops.Enqueue((*expiring, JobSpec("left", "mail", NULL))),),)))
        comparison.step(Wait(200))
        purge = ops.Maintain(1000, keep_dead_ms=0)
        comparison.step(Run(0, ((ops.Claim(("mail",), "w", 1000, 1),), (purge,))))
        comparison.end()
        states = {i: record.job.state for i, record in rig.model._records.items()}
        assert states == {"left": State.PENDING}
    finally:
        rig.close()


def test_a_claim_that_is_empty_while_no_job_has_expired_is_a_difference() -> None:
    rig = open_rig("foundationdb", 3)
    try:
        comparison = Comparison(rig, every=1)
        comparison.step(Run(0, ((ops.Enqueue((JobSpec("left", "mail", NULL),)),),)))
        claim = ops.Claim(("mail",), "w", 1000, 1)
        rig.engines[0].apply = lambda batch: [ops.Leased([]) for _ in batch]  # type: ignore[method-assign]
        with pytest.raises(Difference, match="nothing was given out, but \\['left'\\] could be"):
            comparison.step(Run(0, ((claim,),)))
    finally:
        rig.close()
