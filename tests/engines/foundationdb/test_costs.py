"""The docs say what a job costs; this is what it costs."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.costs import BATCHES, Load, costs, table

PAGE = Path(__file__).parents[3] / "docs" / "foundationdb.md"


def test_the_table_of_costs_is_the_one_of_the_docs() -> None:
    assert table() in PAGE.read_text(), "run python -m tests.simulation.costs, and put it there"


def test_a_lone_claim_reads_little_whatever_the_backlog_and_the_leases_that_are_out() -> None:
    spent = costs(Load("alone"))["claim"]
    assert spent.keys_read <= 15 * BATCHES
    assert spent.point_reads + spent.range_reads <= 15 * BATCHES


def test_callers_who_claim_together_share_the_reads() -> None:
    load = Load("64 callers", callers=64)
    spent = costs(load)["claim"]
    assert spent.point_reads + spent.range_reads <= 4 * BATCHES * load.jobs
    assert spent.keys_read <= 5 * BATCHES * load.jobs
