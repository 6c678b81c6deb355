"""How long a failed job waits before its next attempt.

A policy is data and is stored with the job, so that every engine and every language computes the
same delay. Jitter is derived from the job's id and attempt: it differs between jobs, but is the
same wherever it is computed.
"""

from __future__ import annotations

import math
import zlib
from typing import Annotated, Literal

import msgspec

from tenure.errors import InvalidInput

DAY_MS = 86_400_000


class Backoff(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy. Create one with fixed, linear, quadratic or exponential."""

    kind: Literal["fixed", "linear", "quadratic", "exponential"]
    base_ms: Annotated[int, msgspec.Meta(ge=0, le=365 * DAY_MS)]
    factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 2.0
    max_ms: Annotated[int, msgspec.Meta(ge=0, le=365 * DAY_MS)] = DAY_MS
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def delay_ms(self, attempt: int, seed: str) -> int:
        """The delay after failed attempt number `attempt` (from 1) of the job with id `seed`."""
        match self.kind:
            case "fixed":
                growth = 1.0
            case "linear":
                growth = float(attempt)
            case "quadratic":
                growth = float(attempt * attempt)
            case "exponential":
                exponent = (attempt - 1) * math.log2(self.factor)
                growth = self.factor ** (attempt - 1) if exponent < 60 else math.inf
        delay = min(self.base_ms * growth if self.base_ms else 0.0, float(self.max_ms))
        if self.jitter:
            draw = zlib.crc32(f"{seed}:{attempt}".encode()) / 0xFFFF_FFFF
            delay = min(delay + delay * self.jitter * (2 * draw - 1), float(self.max_ms))
        return round(delay)


def fixed(seconds: float, *, jitter: float = 0.0) -> Backoff:
    """Wait the same time after every failure."""
    return _backoff("fixed", seconds, jitter=jitter)


def linear(seconds: float, *, max: float = 86_400, jitter: float = 0.0) -> Backoff:
    """Wait seconds x attempt, at most `max`."""
    return _backoff("linear", seconds, max_seconds=max, jitter=jitter)


def quadratic(seconds: float = 1, *, max: float = 86_400, jitter: float = 0.0) -> Backoff:
    """Wait seconds x attempt x attempt, at most `max`."""
    return _backoff("quadratic", seconds, max_seconds=max, jitter=jitter)


def exponential(
    seconds: float, *, factor: float = 2.0, max: float = 86_400, jitter: float = 0.0
) -> Backoff:
    """Wait `seconds` after the first failure, then `factor` times as long after each further
    one."""
    return _backoff("exponential", seconds, factor=factor, max_seconds=max, jitter=jitter)


def _backoff(
    kind: Literal["fixed", "linear", "quadratic", "exponential"],
    seconds: float,
    *,
    factor: float = 2.0,
    max_seconds: float = 86_400,
    jitter: float = 0.0,
) -> Backoff:
    policy = {
        "kind": kind,
        "base_ms": _milliseconds(seconds),
        "factor": factor,
        "max_ms": _milliseconds(max_seconds),
        "jitter": jitter,
    }
    try:
        return msgspec.convert(policy, Backoff)
    except msgspec.ValidationError as error:
        raise InvalidInput("backoff", str(error)) from None


def _milliseconds(seconds: float) -> float | int:
    """Seconds as whole milliseconds. Invalid values are returned as they are, to be rejected
    later."""
    plausible = isinstance(seconds, int | float) and abs(seconds) < 2**40
    return round(seconds * 1000) if plausible else seconds


DEFAULT_BACKOFF = Backoff("exponential", 5_000, factor=3.0, max_ms=3_600_000, jitter=0.1)
