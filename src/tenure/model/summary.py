"""A job without its large parts, as shown in lists."""

from __future__ import annotations

import msgspec

from tenure.model.job import NULL, Failure, IfParentFails, Job, State
from tenure.model.retry import Backoff

PREVIEW = 200  # characters kept of a payload and of an error message
PREVIEW_BYTES = 4 * PREVIEW  # enough for that many characters of any kind


class LastError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last failed attempt, without its traceback. The message is cut."""

    at: int
    message: str
    type: str = ""
    group: str = ""


class Summary(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job without its payload, result and tracebacks. `parents` is how many jobs it had to
    wait for."""

    id: str
    queue: str
    state: State
    priority: int
    run_at: int
    created_at: int
    updated_at: int
    attempts: int
    max_attempts: int
    payload_preview: str
    payload_bytes: int
    tenant: str = ""
    group: str = ""
    kind: str = ""
    started_at: int | None = None
    lease_until: int | None = None
    token: int = 0
    worker: str = ""
    finished_at: int | None = None
    expires_at: int | None = None
    unique_key: str | None = None
    timeout_ms: int | None = None
    backoff: Backoff | None = None
    if_parent_fails: IfParentFails = "wait"
    progress: int | None = None
    note: str | None = None
    parents: int = 0
    has_result: bool = False
    error: LastError | None = None
    replay_of: str | None = None
    has_steps: bool = False


_SAME = [name for name in Summary.__struct_fields__ if name in Job.__struct_fields__]


def preview_of(start: bytes) -> str:
    """The first characters of a payload, from its first PREVIEW_BYTES."""
    return start.decode(errors="ignore")[:PREVIEW]


def last_error(errors: tuple[Failure, ...]) -> LastError | None:
    if not errors:
        return None
    last = errors[-1]
    return LastError(last.at, last.message[:PREVIEW], last.type, last.group)


def summarized(
    job: Job, preview: str, size: int, has_result: bool, error: LastError | None
) -> Summary:
    """The summary of a job whose large parts were not read."""
    same = {name: getattr(job, name) for name in _SAME}
    return Summary(
        **same,
        payload_preview=preview,
        payload_bytes=size,
        parents=len(job.after),
        has_result=has_result,
        error=error,
    )


def summary_of(job: Job) -> Summary:
    """The summary of a complete job."""
    start = bytes(memoryview(job.raw_payload)[:PREVIEW_BYTES])
    has_result = job.raw_result != NULL
    size = len(job.raw_payload)
    return summarized(job, preview_of(start), size, has_result, last_error(job.errors))
