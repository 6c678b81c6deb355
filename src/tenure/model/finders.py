"""Queries that are built from records: an engine implements only ListRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure.model import (
    audit_records,
    error_records,
    past_records,
    queries,
    rate_records,
    worker_records,
)
from tenure.model.queries import Found, Query
from tenure.model.record_queries import Read

FINDERS: dict[type[Query], Callable[[Read, Any], Found]] = {
    queries.ListAudit: audit_records.list_audit,
    queries.ListErrors: error_records.list_errors,
    queries.ListWorkers: worker_records.list_workers,
    queries.ListRates: rate_records.list_rates,
    queries.ListPast: past_records.list_past,
}
