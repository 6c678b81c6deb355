"""The audit log: an entry is written in the transaction of the change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.core.features import Rules
from tenure.core.transaction import J, Transaction
from tenure.features.audit import data
from tenure.model.job import new_ids
from tenure.model.ops import Answer


def note(tx: Transaction[J], batch: Sequence[Any], answers: Sequence[Answer]) -> None:
    """Write entries for the operations that have a note and changed something."""
    for op, answer in zip(batch, answers, strict=True):
        entry = data.entry_of(op, answer, tx.now)
        if entry is not None:
            key = data.key_of(entry, new_ids(entry.at, 1)[0])
            keep_ms = tx.settings.keep_audit_ms
            expires_at = None if keep_ms is None else entry.at + keep_ms
            tx.put_record("audit", key, msgspec.json.encode(entry), expires_at)


RULES = Rules(noted=note)
