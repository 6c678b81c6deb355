"""Errors of the service, and how errors become HTTP responses."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.errors import (
    Busy,
    Closed,
    Conflict,
    Forbidden,
    InvalidInput,
    JobFailed,
    NotFound,
    PayloadTooLarge,
    StoreError,
    StoreRejected,
    TenureError,
    Unauthorized,
    WaitTimeout,
)


class BodyTooLarge(TenureError):
    """The body is larger than the service accepts."""

    code = "body_too_large"


class HeadTooLarge(TenureError):
    """The headers are larger than the service accepts."""

    code = "head_too_large"


class TooSlow(TenureError):
    """The request did not arrive in time."""

    code = "too_slow"


class QueryTooSlow(TenureError):
    """The store did not answer a query in time."""

    code = "query_too_slow"


class Misdirected(TenureError):
    """The Host header names a host that this service does not accept."""

    code = "misdirected"


class UnsupportedMedia(TenureError):
    """The Content-Type is not JSON."""

    code = "unsupported_media_type"


class NoSuchRoute(TenureError):
    """No route has this path."""

    code = "no_such_route"


class WrongMethod(TenureError):
    """A route has this path, but not this method."""

    code = "wrong_method"

    def __init__(self, method: str, allowed: list[str]) -> None:
        self.allowed: str = ", ".join(allowed)
        super().__init__(f"there is no {method} here, only {self.allowed}")


class UnknownMethod(TenureError):
    """HTTP has no such method, or this service never has."""

    code = "unknown_method"

    def __init__(self, method: str) -> None:
        super().__init__(f"the method {method[:20]!r} is not known here")


# The first match counts.
STATUS: tuple[tuple[type[TenureError], int], ...] = (
    (PayloadTooLarge, 413),
    (BodyTooLarge, 413),
    (InvalidInput, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (NoSuchRoute, 404),
    (WrongMethod, 405),
    (UnsupportedMedia, 415),
    (Misdirected, 421),
    (HeadTooLarge, 431),
    (TooSlow, 408),
    (WaitTimeout, 408),
    (Conflict, 409),
    (JobFailed, 409),
    (Busy, 429),
    (UnknownMethod, 501),
    (Closed, 503),
    (StoreRejected, 400),
    (StoreError, 503),
    (QueryTooSlow, 504),
)
RETRY_AFTER = {429: "1", 503: "2", 504: "2"}  # seconds


class Problem(msgspec.Struct, omit_defaults=True):
    """An error in the format of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    id: str | None = None
    carries: dict[str, Any] = {}  # what a client needs to raise the same error


def status_of(error: TenureError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def problem_of(error: TenureError) -> Problem:
    """Return an error as problem details."""
    details: dict[str, Any] = error.details
    return Problem(
        type=f"urn:tenure:{error.code}",
        title=error.code.replace("_", " "),
        status=status_of(error),
        detail=error.message,
        code=error.code,
        field=details.get("field"),
        id=details.get("id"),
        carries=vars(error),
    )
