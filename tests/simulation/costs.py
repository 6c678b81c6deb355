"""What a job costs on FoundationDB, counted by the simulation.

python -m tests.simulation.costs
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import msgspec

from tenure import ops
from tenure.engines import fdb_sim
from tenure.engines.fdb_sim import Stats
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.job import JobSpec, new_ids
from tenure.settings import Settings
from tenure.testing import ManualClock

PAYLOAD = msgspec.Raw(b'{"to":"' + b"x" * 190 + b'"}')


def costs(at_once: int, batches: int = 20, *, limit: int | None = None) -> dict[str, Stats]:
    """What enqueuing, claiming and acknowledging cost, with so many jobs in a batch."""
    clock = ManualClock()
    db = fdb_sim.open(fdb_sim.Cluster(clock))
    engine = FoundationDbEngine(
        fdb_sim, db, Settings(), clock, hybrid=True, chance=random.Random(0)
    )
    if limit is not None:
        engine.apply([ops.SetLimit("mail", concurrency=limit)])
    spent = {"enqueue": Stats(), "claim": Stats(), "ack": Stats()}

    def spend(what: str, batch: list[ops.Op]) -> list[ops.Answer]:
        before = replace(db.stats)
        answers = engine.apply(batch)
        spent[what] = Stats.sum([spent[what], db.stats.since(before)])
        return answers

    for _ in range(batches):
        clock.advance(0.01)
        ids = new_ids(clock.now_ms(), at_once)
        specs = [
            JobSpec(one, "mail", PAYLOAD, tenant="acme", group="g", made_up_id=True) for one in ids
        ]
        spend("enqueue", [ops.Enqueue((spec,)) for spec in specs])
        (answer,) = spend("claim", [ops.Claim(("mail",), "w", 60_000, at_once)])
        assert isinstance(answer, ops.Leased)
        assert len(answer.jobs) == at_once
        spend("ack", [ops.Ack(job.id, job.token) for job in answer.jobs])
    return spent


def main() -> None:
    for at_once in (1, 100):
        for limit in (None, 1000):
            sys.stdout.write(f"{at_once} at once, {'no' if limit is None else 'a'} limit:\n")
            for what, one in costs(at_once, limit=limit).items():
                jobs = 20 * at_once
                sys.stdout.write(
                    f"  {what}: {one.keys_written / jobs:.2f} keys and "
                    f"{one.bytes_written / jobs:.0f} bytes written, {one.keys_read / jobs:.2f} "
                    f"keys and {one.bytes_read / jobs:.0f} bytes read, "
                    f"{(one.point_reads + one.range_reads) / jobs:.2f} reads, "
                    f"{one.commits_committed / jobs:.2f} commits\n"
                )


if __name__ == "__main__":
    main()
