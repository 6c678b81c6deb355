"""The audit log: who changed what, when and why. An entry is stored with the change."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import asdict

from tenure.errors import TenureError
from tenure.model import ops
from tenure.model.fields import Label, PageLimit
from tenure.model.ops import Answer, Op
from tenure.model.queries import Query
from tenure.model.record_queries import LAST_KEY, ListRecords, Read
from tenure.model.records import Record

MAX_TARGET = 1_000  # characters
MAX_PAGE_BYTES = 1_000_000  # of the entries of one page
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_SHOWN_IDS = 10
_NOTED = (ops.NotedOp, ops.NotedGrantedOp)


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change by an operator.

    by: the name of a token, user@host from the command line, or what the program gave. action: the
    operation. target: the jobs, the tenant, the limit, or the schedule that it names. filter: what
    selected the jobs, if a filter did. count: how many jobs were changed.
    """

    at: int
    by: str
    action: str
    queue: str = ""
    target: str = ""
    filter: dict[str, Any] | None = None
    reason: str = ""
    count: int | None = None


class ListAudit(Query, frozen=True):
    """Entries of the audit log, newest first."""

    limit: PageLimit = 100
    cursor: Label | None = None


class AuditLog(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of the audit log, newest first, and the cursor of the next page."""

    entries: list[AuditEntry]
    cursor: str | None = None


def entry_of(op: Op, answer: Answer, now: int) -> AuditEntry | None:
    """The entry for an operation, if it has a note and has changed something."""
    if not isinstance(op, _NOTED) or op.note is None or not _has_changed(op, answer):
        return None
    note = op.note
    return AuditEntry(
        at=now,
        by=note.by,
        action=action_of(op),
        queue=_queue_of(op),
        target=_target_of(op)[:MAX_TARGET],
        filter=note.filter,
        reason=note.reason,
        count=answer.count if isinstance(answer, ops.Changed) else None,
    )


def action_of(op: Op) -> str:
    """The name of an operation in the log: RunNow is run_now."""
    if isinstance(op, ops.PutSchedule) and op.schedule.disabled:
        return "pause_schedule"
    return _WORD.sub("_", type(op).__name__).lower()


def _has_changed(op: Op, answer: Answer) -> bool:
    if isinstance(op, ops.PutSchedule) and op.schedule.owner and not op.schedule.disabled:
        return False  # a program declares it whenever it starts
    match answer:
        case TenureError():
            return False
        case ops.Changed():
            return answer.count > 0
        case ops.Corrected():
            return bool(answer.by)
    return True


def _queue_of(op: Op) -> str:
    if isinstance(op, ops.PutSchedule):
        return op.schedule.job.queue
    return str(getattr(op, "queue", ""))


def _target_of(op: Op) -> str:
    match op:
        case ops.JobsOp(ids=ids):
            more = len(ids) - _SHOWN_IDS
            return ", ".join(ids[:_SHOWN_IDS]) + (f" and {more} more" if more > 0 else "")
        case ops.PutSchedule():
            return f"{op.schedule.name}: {op.schedule.cron}"
        case ops.DropSchedule():
            return op.name
        case ops.ReplayEdited():
            return f"{op.id} as {op.new_id}"
    values = {name: value for name, value in asdict(op).items() if name not in ("queue", "note")}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


# As records ---------------------------------------------------------------------------------------

_PART = 200  # records that are read together
_decode = msgspec.json.Decoder(AuditEntry).decode


def key_of(entry: AuditEntry, unique: str) -> str:
    """Keys sort by time."""
    return f"{entry.at:015d}.{unique}"


def list_audit(read: Read, query: ListAudit) -> AuditLog:
    """The newest entries before the cursor, as far as they fit into a page."""
    last = LAST_KEY if query.cursor is None else query.cursor
    page: list[Record] = []
    size = 0
    while True:
        found = read(ListRecords("audit", "", last, _PART, newest_first=True))
        for record in found:
            if record.key == last:
                continue
            size += len(record.value)
            if len(page) == query.limit or (page and size > MAX_PAGE_BYTES):
                return AuditLog([_decode(one.value) for one in page], page[-1].key)
            page.append(record)
        if len(found) < _PART:
            return AuditLog([_decode(one.value) for one in page], None)
        last = found[-1].key
