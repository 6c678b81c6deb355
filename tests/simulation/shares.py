"""Whom claims on FoundationDB serve: each tenant by its weight, on average.

    python -m tests.simulation.shares --claims 10000

Which tenant is next is drawn by chance, so that a single claim says nothing. Over many, no tenant's
share may be so far from what its weight gives it that chance would do that less than once in ten
million times (by Chernoff's bound; about five and a half standard deviations).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from dataclasses import dataclass

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim

BOUND = math.log(10**7)
READY = 25  # jobs of each tenant


@dataclass(frozen=True)
class Case:
    """Tenants, and how claims come."""

    name: str
    weights: tuple[int, ...]
    callers: int = 1  # who claim in one batch
    each: int = 1  # jobs that each asks for


CASES = (
    Case("one at a time", (1, 1, 1, 2, 3, 8)),
    Case("several in a call", (1, 1, 1, 2, 3, 8), each=10),
    Case("several callers together", (1, 1, 1, 2, 3, 8), callers=10),
    Case("more tenants than are looked at together", (1,) * 290 + (5,) * 10, callers=5, each=4),
)


def served(case: Case, claims: int, seed: int = 0) -> Counter[str]:
    """How many jobs of each tenant were given out, of so many. Whatever is given out is given back,
    so that everybody always has something ready."""
    clock = ManualClock()
    engine = FoundationDbEngine(
        fdb_sim,
        fdb_sim.open(fdb_sim.Cluster(clock)),
        Settings(),
        clock,
        hybrid=False,
        chance=random.Random(seed),
    )
    tenants = _tenants(case)
    for tenant, weight in tenants.items():
        specs = [JobSpec(f"{tenant}-{n}", "q", NULL, tenant=tenant) for n in range(READY)]
        engine.apply([ops.Enqueue(tuple(specs)), ops.SetLimit("q", tenant, weight=weight)])
    found: Counter[str] = Counter()
    while found.total() < claims:
        clock.advance(0.01)
        claim = ops.Claim(("q",), "w", 60_000, case.each)
        answers = engine.apply([claim] * case.callers)
        jobs = [job for one in answers if isinstance(one, ops.Leased) for job in one.jobs]
        assert len(jobs) == case.callers * case.each
        found.update(job.tenant for job in jobs)
        engine.apply([ops.Release(job.id, job.token) for job in jobs])
    return found


def _tenants(case: Case) -> dict[str, int]:
    return {f"t{n}": weight for n, weight in enumerate(case.weights)}


def out_of_bounds(case: Case, found: Counter[str]) -> list[str]:
    """Tenants that were served too often or too seldom."""
    total = found.total()
    wrong = []
    for tenant, weight in _tenants(case).items():
        share = weight / sum(case.weights)
        if total * _divergence(found[tenant] / total, share) > BOUND:
            wrong.append(
                f"{tenant} (weight {weight}) was served {found[tenant]} times of {total}, "
                f"and {total * share:.0f} would be right"
            )
    return wrong


def _divergence(found: float, share: float) -> float:
    """How much the share that was found differs from the right one, in the sense of Kullback."""
    return sum(
        one * math.log(one / right)
        for one, right in ((found, share), (1 - found, 1 - share))
        if one > 0
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failed = False
    for case in CASES:
        wrong = out_of_bounds(case, served(case, args.claims, args.seed))
        failed = failed or bool(wrong)
        sys.stdout.write(f"{case.name}: {'; '.join(wrong) or 'every share is within its bounds'}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
