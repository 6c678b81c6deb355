"""Queries, each a read of one snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any

import msgspec

from tenure.engines.foundationdb import exporting, job_scans, side_records
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.bucket import Bucket
from tenure.engines.foundationdb.clocks import now_of
from tenure.engines.foundationdb.due import lease_is_over_at
from tenure.engines.foundationdb.explain import FdbFacts
from tenure.engines.foundationdb.jobs import jobs_of, summaries_of
from tenure.engines.foundationdb.record import Held
from tenure.engines.foundationdb.transaction import read_slots, schedule_of
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import InvalidInput, JobNotFound, QueueNotFound
from tenure.features import FINDERS
from tenure.features.why.data import Explain
from tenure.features.why.dry_run import explain
from tenure.model import ops, queries
from tenure.model.ops import Grant, Limit
from tenure.model.queries import Found, Query
from tenure.model.record_queries import ListRecords

_AT_ONCE = 1_000  # reads under way
_FIRST_ENDING = 16  # leases checked for the one that expires first
_MOST_KEYED = 500  # tenants in which one query looks for a unique key, one after the other
_COUNTED = ("waiting", "delayed", "done", "dead", "cancelled")


def read(tx: Tx, query: Query) -> Found:
    finder = FINDERS.get(type(query))
    if finder is not None:
        found: Found = finder(partial(side_records.list_records, tx), query)
        return found
    if isinstance(query, queries.Together):
        return [read(tx, one) for one in query.queries]
    return _QUERIES[type(query)](tx, query)


def get_job(tx: Tx, query: queries.GetJob) -> Found:
    held = _seen(tx, [query.id], query.grant)
    return jobs_of(tx, held)[0] if held else JobNotFound(query.id)


def _seen(tx: Tx, ids: Sequence[str], grant: Grant | None) -> list[Held]:
    """Those of these jobs that exist and may be seen."""
    there = [held for held in tx.peek(ids) if held is not None]
    if grant is None:
        return there
    return [held for held in there if grant.allows(held.record.queue, held.record.tenant)]


def _explain(tx: Tx, query: Explain) -> Any:
    held = _seen(tx, [query.id], query.grant)
    if not held:
        return JobNotFound(query.id)
    return explain(FdbFacts(tx, jobs_of(tx, held)[0], held[0].record), query.grant)


def get_jobs(tx: Tx, query: queries.GetJobs) -> Found:
    there = _seen(tx, query.ids, query.grant)
    return queries.page_of(query, job_scans.read_jobs(tx, there))


def next_due(tx: Tx, query: queries.NextDue) -> Found:
    due: list[int] = []
    for queue in query.queues:
        due += [key[1] for key in tx.scan(*tx.keys.span(k.DELAYED, queue), limit=1)]
        due += _ends_of_leases(tx, queue)
        due += _rate_allows_at(tx, queue)
    return queries.Due(min(due, default=None))


def _rate_allows_at(tx: Tx, queue: str) -> Iterator[int]:
    """When the rate allows the next claim, if ready jobs wait for it."""
    limit = tx.rules(queue).whole
    if limit.rate is None or limit.per_ms is None:
        return
    if not list(tx.scan(*tx.keys.span(k.READY, queue), limit=1)):
        return
    bucket = Bucket(tx, queue, limit)
    if bucket.tokens < limit.per_ms:
        yield bucket.counted_at - -(limit.per_ms - bucket.tokens) // limit.rate


def oldest_ready(tx: Tx, query: queries.OldestReady) -> Found:
    heads = [head for queue in dict.fromkeys(query.queues) for head in _heads(tx, queue)]
    found = [held for held in tx.peek(heads) if held is not None]
    return queries.Due(min([held.record.run_at for held in found], default=None))


def longest_waits(tx: Tx, query: queries.LongestWaits) -> Found:
    if not tx.knows(query.queue):
        return QueueNotFound(query.queue)
    tenants = sorted(set(query.tenants))
    heads = chain.from_iterable(_heads(tx, query.queue, tenant) for tenant in tenants)
    oldest: dict[str, int] = {}
    for held in tx.peek(islice(heads, queries.MOST_HEADS)):
        if held is not None:
            tenant, run_at = held.record.tenant, held.record.run_at
            oldest[tenant] = min(run_at, oldest.get(tenant, run_at))
    now = now_of(tx)
    return [queries.TenantWait(of, max(0, now - oldest[of])) for of in tenants if of in oldest]


def _heads(tx: Tx, *names: str) -> list[str]:
    """The next jobs in line of each tenant, group and priority of a queue, or of one tenant. Reads
    all lanes at once, each priority in turn."""
    spans = [tx.keys.span(k.READY, names[0], *lane) for lane in _lanes(tx, *names)]
    heads: list[str] = []
    while spans and len(heads) < queries.MOST_HEADS:
        found = list(_first_of_each(tx, spans))
        heads += [key[-1] for key, _ in found]
        spans = [(tx.keys.pack(k.READY, *key[:4]) + b"\xff", end) for key, end in found]
    return heads[: queries.MOST_HEADS]


def _lanes(tx: Tx, *names: str) -> list[tuple[str, str]]:
    """The tenants and groups that may have ready jobs: those that claims find, and those that were
    put aside."""
    kinds = (k.LANE, k.PARKED)
    rows = [
        tx.tr.snapshot.get_range(*tx.keys.span(kind, *names), limit=queries.MOST_HEADS)
        for kind in kinds
    ]
    keys = (tx.keys.unpack(bytes(row.key)) for row in chain(*rows))
    return list(dict.fromkeys((key[1], key[-1]) for key in keys if key[-1] is not None))


def _first_of_each(
    tx: Tx, spans: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The first key of each range that has one, and the end of the range."""
    for start in range(0, len(spans), _AT_ONCE):
        some = spans[start : start + _AT_ONCE]
        asked = [tx.tr.snapshot.get_range(*span, limit=1) for span in some]
        for rows, (_, end) in zip(asked, some, strict=True):
            for row in rows:
                yield tx.keys.unpack(bytes(row.key)), end


def _ends_of_leases(tx: Tx, queue: str) -> Iterator[int]:
    """When the leases that end first will expire. Because of the two clocks, a lease that ends
    later may expire earlier, but not by much."""
    ending = [key[-1] for key in tx.scan(*tx.keys.span(k.ENDING, queue), limit=_FIRST_ENDING)]
    for held in tx.peek(ending):
        if held is not None and held.record.lease is not None:
            yield lease_is_over_at(tx, held.record.lease)


# Counts -----------------------------------------------------------------------------------------


def _counts(tx: Tx, counted: dict[str, int], leased: int) -> dict[str, int]:
    """Counts by state. Ready and leased jobs share a counter; `leased` says how many are leased."""
    counts = {name: counted.get(name, 0) for name in _COUNTED}
    return counts | {"ready": counted.get("active", 0) - leased, "leased": leased}


def _number(row: Any) -> int:
    return int.from_bytes(bytes(row.value), "little", signed=True)


def get_stats(tx: Tx, query: queries.GetStats) -> Found:
    if query.queue is not None and not tx.knows(query.queue):
        return QueueNotFound(query.queue)
    names = tx.queues() if query.queue is None else [query.queue]
    asked = [
        (
            queue,
            [tx.tr.snapshot.get_range(*tx.keys.span(*prefix)) for prefix in counters],
            [tx.tr.snapshot.get_range(*tx.keys.span(*prefix)) for prefix in leases],
        )
        for queue in names
        for counters, leases in [_counted_under(queue, query.tenants)]
    ]
    found = []
    for queue, counters, leases in asked:
        counted = Counter[str]()
        for row in chain.from_iterable(counters):
            counted[tx.keys.unpack(bytes(row.key))[-1]] += _number(row)
        counts = _counts(tx, counted, sum(1 for _ in chain.from_iterable(leases)))
        paused = tx.rules(queue).whole.paused
        found.append(queries.QueueStats(queue=queue, paused=paused, **counts))
    return found


def _counted_under(
    queue: str, tenants: Sequence[str] | None
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The prefixes of the counters and leases of a queue, or of these tenants in it."""
    if tenants is None:
        return [(k.QUEUE_COUNT, queue)], [(k.LEASE, queue)]
    names = list(dict.fromkeys(tenants))
    return (
        [(k.TENANT_COUNT, queue, name) for name in names],
        [(k.LEASE, queue, name) for name in names],
    )


def _by_name(
    tx: Tx,
    counts_of: tuple[Any, ...],
    leases_of: tuple[Any, ...],
    after: str | None,
    limit: int,
    only: str | None = None,
) -> Iterator[tuple[str, dict[str, int]]]:
    """Counts of the names after `after` in key order, or of a single name."""
    begin, end = tx.keys.span(*counts_of) if only is None else tx.keys.span(*counts_of, only)
    if after is not None:
        begin = max(begin, tx.keys.pack(*counts_of, after) + b"\xff")
        end = max(begin, end)
    counted: dict[str, dict[str, int]] = {}
    for row in tx.tr.snapshot.get_range(begin, end):
        *_, name, what = tx.keys.unpack(bytes(row.key))
        if name not in counted and len(counted) == limit:
            break
        counted.setdefault(name, {})[what] = _number(row)
    if not counted:
        return
    names = list(counted)
    first, last = tx.keys.pack(*leases_of, names[0]), tx.keys.pack(*leases_of, names[-1]) + b"\xff"
    leased = Counter(key[len(leases_of) - 1] for key in tx.scan(first, last))
    for name in names:
        counts = _counts(tx, counted[name], leased[name])
        if any(counts.values()):
            yield name, counts


def list_tenants(tx: Tx, query: queries.ListTenants) -> Found:
    if not tx.knows(query.queue):
        return QueueNotFound(query.queue)
    within = (query.queue,)
    found = _by_name(
        tx,
        (k.TENANT_COUNT, *within),
        (k.LEASE, *within),
        query.after,
        query.limit,
        query.tenant,
    )
    return [queries.TenantStats(queue=query.queue, tenant=name, **counts) for name, counts in found]


def list_groups(tx: Tx, query: queries.ListGroups) -> Found:
    if not tx.knows(query.queue):
        return QueueNotFound(query.queue)
    within = (query.queue, query.tenant)
    after = query.after or ""  # jobs without a group are in none
    found = _by_name(tx, (k.GROUP_COUNT, *within), (k.LEASE, *within), after, query.limit)
    return [
        queries.GroupStats(queue=query.queue, tenant=query.tenant, group=name, **counts)
        for name, counts in found
    ]


def find_by_prefix(tx: Tx, query: queries.FindByPrefix) -> Found:
    begin = tx.keys.pack(k.JOB, query.prefix)[:-1]  # without the byte that ends a text
    return queries.Ids([key[0] for key in tx.scan(begin, begin + b"\xff", query.limit)])


def find_by_key(tx: Tx, query: queries.FindByKey) -> Found:
    begin, end = tx.keys.span(k.UNIQUE)
    if query.cursor is not None:
        last = _last_tenant(query.cursor)
        if isinstance(last, InvalidInput):
            return last
        begin = tx.keys.pack(k.UNIQUE, *last) + b"\xff"
    asked: list[Any] = []
    queue = tenant = ""
    for looked in count():
        first = next(tx.scan(begin, end, limit=1), None)
        if first is None or looked == _MOST_KEYED:
            break
        queue, tenant, _ = first
        if query.grant is None or query.grant.allows(queue, tenant):
            key = tx.keys.pack(k.UNIQUE, queue, tenant, query.unique_key)
            asked.append(tx.tr.snapshot.get(key))
        begin = tx.keys.pack(k.UNIQUE, queue, tenant) + b"\xff"
    found = [bytes(one.value).decode() for one in asked if one.value is not None]
    cursor = None if first is None else msgspec.json.encode((queue, tenant)).decode()
    return queries.Ids(sorted(found), cursor)


def _last_tenant(cursor: str) -> tuple[str, str] | InvalidInput:
    try:
        return msgspec.json.decode(cursor, type=tuple[str, str])
    except msgspec.MsgspecError:
        return InvalidInput("cursor", f"{cursor!r} is not a cursor returned by a search")


def list_related(tx: Tx, query: queries.ListRelated) -> Found:
    (held,) = tx.peek([query.id])
    record = None if held is None else held.record
    if record is None or (query.grant and not query.grant.allows(record.queue, record.tenant)):
        return JobNotFound(query.id)
    after = tx.body(query.id).after[: query.limit]
    waiting = [key[-1] for key in tx.scan(*tx.keys.span(k.CHILD, query.id), query.most)]
    parents, children = (
        summaries_of(tx, [held for held in tx.peek(ids) if held is not None])
        for ids in (after, waiting)
    )
    return queries.related_of(query, parents, children)


def list_group_totals(tx: Tx, query: queries.ListGroupTotals) -> Found:
    if not tx.knows(query.queue):
        return QueueNotFound(query.queue)
    within = (k.GROUP_TOTAL, query.queue)
    begin, end = tx.keys.span(*within, *([] if query.group is None else [query.group]))
    if query.after is not None:
        begin = max(begin, tx.keys.pack(*within, query.after) + b"\xff")
        end = max(begin, end)
    totals: dict[str, dict[str, int]] = {}
    for row in tx.tr.snapshot.get_range(begin, end, limit=2 * query.limit):  # two for each group
        *_, group, what = tx.keys.unpack(bytes(row.key))
        totals.setdefault(group, {})[what] = _number(row)
    found = [queries.GroupTotal(query.queue, group, **counts) for group, counts in totals.items()]
    return found[: query.limit]


# The rest ---------------------------------------------------------------------------------------


def list_limits(tx: Tx, query: queries.ListLimits) -> Found:
    names = tx.queues() if query.queue is None else [query.queue]
    found: list[Limit] = []
    for queue in names:
        limits = tx.rules(queue).limits.values()
        found += sorted(
            limits,
            key=lambda x: (
                x.tenant is not None,
                x.tenant or "",
                x.group is not None,
                x.group or "",
            ),
        )
    return found


def list_slots(tx: Tx, query: queries.ListSlots) -> Found:
    slots = read_slots(tx, query.scope, query.key, tx.tr.snapshot)
    return [queries.Slot(h, expires_at) for h, expires_at in slots.items() if expires_at > tx.now]


def list_schedules(tx: Tx, query: queries.ListSchedules) -> Found:
    return _schedules(tx)


def _schedules(tx: Tx) -> list[ops.Schedule]:
    found: dict[str, list[bytes]] = {}
    for row in tx.tr.snapshot.get_range(*tx.keys.span(k.SCHEDULE)):
        name, _ = tx.keys.unpack(bytes(row.key))
        found.setdefault(name, []).append(bytes(row.value))
    return [schedule_of(parts) for parts in found.values()]


def get_timetable(tx: Tx, query: queries.GetTimetable) -> Found:
    return queries.Timetable(now_of(tx), _schedules(tx))


_QUERIES: dict[type[Query], Callable[[Tx, Any], Found]] = {
    queries.GetJob: get_job,
    queries.GetJobs: get_jobs,
    Explain: _explain,
    queries.ListJobs: job_scans.list_jobs,
    queries.ListSummaries: job_scans.list_summaries,
    queries.FindIds: job_scans.find_ids,
    queries.FindByPrefix: find_by_prefix,
    queries.FindByKey: find_by_key,
    queries.ListRelated: list_related,
    queries.NextDue: next_due,
    queries.OldestReady: oldest_ready,
    queries.LongestWaits: longest_waits,
    queries.Export: exporting.export,
    queries.GetStats: get_stats,
    queries.ListTenants: list_tenants,
    queries.ListGroups: list_groups,
    queries.ListGroupTotals: list_group_totals,
    queries.ListLimits: list_limits,
    queries.ListSlots: list_slots,
    ListRecords: side_records.list_records,
    queries.ListSchedules: list_schedules,
    queries.GetTimetable: get_timetable,
}
