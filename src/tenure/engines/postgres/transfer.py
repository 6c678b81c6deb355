"""Import: jobs of another store, as they are."""

from __future__ import annotations

from collections.abc import Sequence

from tenure import ops, states
from tenure.engines.postgres.rows import (
    CANCELLED,
    DEAD,
    DONE,
    LEASED,
    READY,
    at_of,
    code_of_entry,
    errors_text,
    options_of,
)
from tenure.engines.postgres.transaction import Transaction
from tenure.errors import DependencyNotFound, Duplicate, TenureError
from tenure.job import NULL, Job
from tenure.ops import Answer, Entry

Place = tuple[int, int]  # seq and state code of a job
BLOCK = 1024  # places that one number of the sequence stands for


def import_(tx: Transaction, batch: Sequence[ops.Import]) -> list[Answer]:
    return [_import(tx, op) for op in batch]


def _import(tx: Transaction, op: ops.Import) -> Answer:
    tx.forget()
    ids = [entry.job.id for entry in op.entries]
    known = {id for (id,) in tx.db.all("held_ids", ids)}
    new: dict[str, Entry] = {}
    created = []
    for entry in op.entries:
        created.append(entry.job.id not in known and entry.job.id not in new)
        if created[-1]:
            new[entry.job.id] = entry
    entries = list(new.values())
    after = {id: None for entry in entries for id in entry.waits_for if id not in new}
    rows = tx.db.all("parents", list(after)) if after else []
    parents: dict[str, Place] = {id: (seq, code) for id, seq, code in rows}
    problem = _held_key(tx, entries) or _lost_parent(entries, parents.keys() | new.keys())
    if problem is not None:
        return problem
    tx.read_clock()
    if entries:
        _insert(tx, entries, parents)
    return ops.Enqueued(ids, created, tx.now)


def _held_key(tx: Transaction, entries: list[Entry]) -> TenureError | None:
    keyed = [entry.job for entry in entries if _holds_key(entry)]
    if not keyed:
        return None
    wanted = [[getattr(job, name) for job in keyed] for name in ("queue", "tenant", "unique_key")]
    holders = {(q, t, key): id for q, t, key, id in tx.db.all("key_holders", *wanted)}
    for job in keyed:
        assert job.unique_key is not None
        holder = holders.setdefault((job.queue, job.tenant, job.unique_key), job.id)
        if holder != job.id:
            return Duplicate("unique_key", job.unique_key, holder)
    return None


def _holds_key(entry: Entry) -> bool:
    return entry.job.unique_key is not None and code_of_entry(entry) <= LEASED


def _lost_parent(entries: list[Entry], known: set[str]) -> TenureError | None:
    for entry in entries:
        for parent in entry.waits_for:
            if parent not in known:
                return DependencyNotFound(parent)
    return None


def _insert(tx: Transaction, entries: list[Entry], parents: dict[str, Place]) -> None:
    names = list(dict.fromkeys(map(_names, entries)))
    found = tx.db.value("lanes_of", *map(list, zip(*names, strict=True)))
    lane_of = dict(zip(names, zip(found, found[len(names) :], strict=False), strict=True))
    blocks = [first for (first,) in tx.db.all("blocks", (len(entries) - 1) // BLOCK + 1)]
    seqs = [blocks[n // BLOCK] + n % BLOCK for n in range(len(entries))]
    codes = [code_of_entry(entry) for entry in entries]
    lanes, queues = zip(*(lane_of[_names(entry)] for entry in entries), strict=True)
    jobs = [entry.job for entry in entries]
    tx.db.send(
        "import_jobs", seqs, [job.created_at for job in jobs], list(lanes),
        [job.priority for job in jobs], [job.max_attempts for job in jobs],
        [job.id for job in jobs], [job.kind for job in jobs], [job.unique_key for job in jobs],
        [options_of(job) for job in jobs], [str(job.raw_payload, "utf-8") for job in jobs],
    )  # fmt: skip
    tx.db.send(
        "import_states", seqs, [at_of(job) for job in jobs], [job.run_at for job in jobs],
        [job.updated_at for job in jobs], list(lanes), list(queues),
        [job.priority for job in jobs], [job.attempts for job in jobs], codes,
        [job.progress for job in jobs], [job.token for job in jobs],
        [job.started_at for job in jobs], [job.expires_at for job in jobs],
        [job.worker for job in jobs], [job.note for job in jobs],
        [errors_text(job.errors) for job in jobs], [_result(job) for job in jobs],
    )  # fmt: skip
    keyed = [n for n, entry in enumerate(entries) if _holds_key(entry)]
    if keyed:
        tx.db.send(
            "import_keys", [lanes[n] for n in keyed], [jobs[n].unique_key for n in keyed],
            [seqs[n] for n in keyed],
        )  # fmt: skip
    tx.db.send("tokens_from", max(job.token for job in jobs))
    leased = [n for n, code in enumerate(codes) if code == LEASED]
    if leased:
        tx.db.send(
            "import_leases", [queues[n] for n in leased], [lanes[n] for n in leased],
            [at_of(jobs[n]) for n in leased],
        )  # fmt: skip
    for lane, queue, job, seq, code in zip(lanes, queues, jobs, seqs, codes, strict=True):
        tx.count(queue, lane, None, code)
        if code == READY:
            news, head = tx.lane(queue, lane), (job.priority, seq)
            news.head = head if news.head is None else min(head, news.head)
    new = {job.id: (seq, code) for job, seq, code in zip(jobs, seqs, codes, strict=True)}
    _wait(tx, [entry for entry in entries if entry.waits_for], parents | new)


def _wait(tx: Transaction, entries: list[Entry], places: dict[str, Place]) -> None:
    """Note who waits for whom, and tell those whose parent has ended here meanwhile."""
    pairs = [(places[id], places[entry.job.id][0]) for entry in entries for id in entry.waits_for]
    if not pairs:
        return
    tx.db.send("insert_deps", [seq for (seq, _), _ in pairs], [child for _, child in pairs])
    over = [(seq, code, child) for (seq, code), child in pairs if code in (DONE, DEAD, CANCELLED)]
    tx.forget()
    children = {row.seq: row for row in tx.load_places([child for _, _, child in over])}
    for parent, code, child in over:
        event = states.ParentsDone() if code == DONE else states.ParentFailed()
        tx.tell_child(children[child], parent, event)
    tx.settle()


def _names(entry: Entry) -> tuple[str, str, str]:
    return entry.job.queue, entry.job.tenant, entry.job.group


def _result(job: Job) -> str | None:
    return None if job.raw_result == NULL else str(job.raw_result, "utf-8")
