"""The requests and responses of the firecrawl dialect."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from tenure.model.fields import MAX_PRIORITY, MIN_PRIORITY, Label, Name

MOST_BLOCKED = 100_000  # crawls that a pop skips


class Sent(msgspec.Struct, rename="camel", kw_only=True):
    """Base of request bodies and query strings."""


# Requests ---------------------------------------------------------------------------------------


class PushedJob(Sent):
    id: Name
    data: Raw
    priority: Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
    listenable: bool
    listen_channel_id: str | None = None


class Push(Sent):
    """`timeout` is in milliseconds; there is none if it is null, 0 or negative. One of more than a
    century is shortened to that."""

    team_id: Name
    job: PushedJob
    timeout: float | None = None
    crawl_id: Label | None = None


class Pop(Sent):
    worker_id: Name
    blocked_crawl_ids: Annotated[list[str], Meta(max_length=MOST_BLOCKED)] | None = None


class Complete(Sent):
    queue_key: str


class ReleaseClaim(Sent):
    job_id: Name


class ActiveJob(Sent):
    team_id: Name
    job_id: Name


class ActivePush(ActiveJob):
    """`timeout` is in milliseconds, at least 1 and at most a century; others are clamped."""

    timeout: float


class ActiveCrawlJob(Sent):
    crawl_id: Name
    job_id: Name


class ActiveCrawlPush(ActiveCrawlJob):
    """`timeout` is in milliseconds, at least 1 and at most a century; others are clamped."""

    timeout: float


class JobIdsQuery(Sent):
    """At most 100,000 ids are listed, even if `limit` is greater."""

    limit: Annotated[int, Meta(ge=1)] = 10_000


class SampleQuery(Sent):
    """At most 10,000 ids are listed, even if `limit` is greater."""

    limit: Annotated[int, Meta(ge=1)] = 50
    after: Label | None = None


# Responses --------------------------------------------------------------------------------------


class Answered(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of response bodies. Fields without a value are left out."""


class ServiceHealth(Answered):
    status: str
    fdb_connected: bool


class Success(Answered):
    success: bool


class PoppedJob(Answered, kw_only=True):
    id: str
    data: Raw
    priority: int
    listenable: bool
    created_at: int
    times_out_at: int | None = None
    listen_channel_id: str | None = None
    crawl_id: str | None = None
    team_id: str


class Popped(Answered):
    job: PoppedJob
    queue_key: str


class JobCount(Answered):
    count: int


class JobIds(Answered):
    job_ids: list[str]


class Cleaned(Answered):
    cleaned: int


class Correction(Answered):
    correction: int


class SampledIds(Answered):
    ids: list[str]


class Payload(msgspec.Struct, rename="camel", omit_defaults=True):
    """The stored payload."""

    data: Raw
    listenable: bool
    listen_channel_id: str | None = None
