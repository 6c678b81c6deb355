"""What it does in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tenure.core.features import Rules
from tenure.core.grants import load
from tenure.core.operator import change_each, moved
from tenure.core.transaction import J, Transaction
from tenure.features.run_now.data import RunNow
from tenure.model import states
from tenure.model.ops import Answer


def run_now(tx: Transaction[J], batch: Sequence[RunNow]) -> list[Answer]:
    owners = load(tx, batch)
    return [change_each(tx, op, owners, partial(_hurry, tx, op)) for op in batch]


def _hurry(tx: Transaction[J], op: RunNow, job: J) -> bool:
    return job.run_at > tx.now and moved(tx, op, job, states.Hurried(), "run_now")


RULES = Rules(operations={RunNow: run_now})
