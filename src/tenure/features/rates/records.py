"""The list of rates, made of records."""

from __future__ import annotations

import msgspec

from tenure.features.rates import data as rates
from tenure.features.rates.data import PER_MS, Counted, ListRates, Rates
from tenure.model.record_queries import Read, every

_decode = msgspec.json.Decoder(dict[str, Counted]).decode


def list_rates(read: Read, query: ListRates) -> Rates:
    """Add up what each process has counted."""
    per_ms = PER_MS[query.per]
    since = query.since - query.since % per_ms
    sums = rates.Sums()
    first, last = rates.key_of(query.per, since), rates.key_of(query.per, query.until, "\U0010ffff")
    for record in every(read, "rate", first, last):
        counted = _decode(record.value)
        if query.queue is not None:
            counted = {name: one for name, one in counted.items() if name == query.queue}
        sums.add(rates.at_of(record.key), counted)
    return Rates(per_ms, since, query.until, sums.queues())
