"""Every setting, in one table: its name, type, default and meaning.

The environment is read here and nowhere else: `TENURE_` and the name in capitals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tenure.errors import InvalidInput

PREFIX = "TENURE_"
MAX_SPAN = 100 * 366 * 86_400  # seconds: a century
Span = Annotated[float, Meta(ge=0, le=MAX_SPAN)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a handle is opened with."""

    url: Annotated[str, Meta(description="Where the jobs are.")] = "sqlite:///tenure.db"
    lease: Annotated[
        float, Meta(gt=0, le=MAX_SPAN, description="Seconds of a lease if none are given.")
    ] = 60.0
    payload_limit: Annotated[
        int, Meta(ge=1, le=2**30, description="Bytes of JSON in a payload or a result.")
    ] = 1_048_576
    keep_done: Annotated[Span | None, Meta(description="Seconds that done jobs are kept.")] = (
        7 * 86_400.0
    )
    keep_cancelled: Annotated[
        Span | None, Meta(description="Seconds that cancelled jobs are kept.")
    ] = 7 * 86_400.0
    keep_dead: Annotated[Span | None, Meta(description="Seconds that dead jobs are kept.")] = (
        30 * 86_400.0
    )
    max_waiting: Annotated[
        int, Meta(ge=1, description="Operations that may wait for a commit before Busy.")
    ] = 100_000
    max_waiting_bytes: Annotated[
        int, Meta(ge=1, description="Payload bytes that may wait for a commit before Busy.")
    ] = 256 * 1_048_576
    busy_timeout: Annotated[
        Span, Meta(description="Seconds to wait for a store that another has locked.")
    ] = 30.0
    token: Annotated[
        str | None, Meta(description="The token that a service of Tenure (http://) asks for.")
    ] = None
    pop_lease: Annotated[
        float, Meta(gt=0, le=MAX_SPAN, description="Seconds of the lease of a Firecrawl pop.")
    ] = 300.0
    sweep: Annotated[
        int, Meta(ge=1, description="Due jobs and ended leases that one claim looks after.")
    ] = 1_000


def checked(settings: Settings) -> Settings:
    """Settings that were made in code, if they can be."""
    return _check(msgspec.structs.asdict(settings), "settings")


def from_environment(environ: Mapping[str, str], **given: Any) -> Settings:
    """Settings from the environment; what is `given` and not None comes first."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        name = PREFIX + field.name.upper()
        if name in environ:
            text = environ[name]
            values[field.name] = None if text == "none" else text
            _check({field.name: values[field.name]}, name)
    values |= {name: value for name, value in given.items() if value is not None}
    return _check(values, "settings")


def _check(values: dict[str, Any], where: str) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidInput(where, str(error)) from None
