"""All settings, in one table: name, type, default and meaning.

Environment variables are read here and nowhere else: `TENURE_` and the name in upper case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tenure.errors import InvalidInput

PREFIX = "TENURE_"
MAX_SPAN = 100 * 366 * 86_400  # seconds: a century
Span = Annotated[float, Meta(ge=0, le=MAX_SPAN)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue handle."""

    url: Annotated[str, Meta(description="URL of the store.")] = "sqlite:///tenure.db"
    lease: Annotated[
        float, Meta(gt=0, le=MAX_SPAN, description="Default length of a lease, in seconds.")
    ] = 60.0
    payload_limit: Annotated[
        int, Meta(ge=1, le=2**30, description="Largest payload or result, in bytes of JSON.")
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
    keep_errors: Annotated[
        Span | None, Meta(description="Seconds that an error group is kept after its last failure.")
    ] = 30 * 86_400.0
    keep_audit: Annotated[
        Span | None, Meta(description="Seconds that entries of the audit log are kept.")
    ] = 90 * 86_400.0
    max_waiting: Annotated[
        int, Meta(ge=1, description="Operations that can wait for a commit before Busy is raised.")
    ] = 100_000
    max_waiting_bytes: Annotated[
        int,
        Meta(ge=1, description="Payload bytes that can wait for a commit before Busy is raised."),
    ] = 256 * 1_048_576
    busy_timeout: Annotated[
        Span,
        Meta(
            description="Seconds to wait for a store that is locked, or a server or service that "
            "is away. Commands end at once if a service is away, unless this is set."
        ),
    ] = 30.0
    unknown_kind: Annotated[
        Span | None,
        Meta(description="Seconds that a job waits for a worker that knows its kind."),
    ] = 86_400.0
    token: Annotated[str | None, Meta(description="Token for a Tenure service (http://).")] = None
    pop_lease: Annotated[
        float, Meta(gt=0, le=MAX_SPAN, description="Lease of a Firecrawl pop, in seconds.")
    ] = 300.0
    sweep: Annotated[
        int, Meta(ge=1, description="Due jobs and expired leases that one claim handles.")
    ] = 1_000

    @property
    def keep_errors_ms(self) -> int | None:
        return None if self.keep_errors is None else round(self.keep_errors * 1000)

    @property
    def keep_audit_ms(self) -> int | None:
        return None if self.keep_audit is None else round(self.keep_audit * 1000)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = msgspec.structs.asdict(self)
        values["url"] = without_secrets(self.url)
        values["token"] = "..." if self.token else None
        return list(values.items())


def without_secrets(url: str) -> str:
    """The URL of a store without its password, for people and logs to read."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/"):
        return url  # a path
    # A password that is not percent-encoded may contain the characters that end it.
    rest = _PASSWORD.sub(r"\1@", rest)
    return _PASSWORD_PARAMETER.sub(r"\1...", f"{scheme}://{rest}" if "://" in url else url)


_PASSWORD = re.compile(r"^([^:/?#@]*):.*@")
_PASSWORD_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def checked(settings: Settings) -> Settings:
    """Validate settings that were created in code. Raises InvalidInput."""
    return _check(msgspec.structs.asdict(settings), "settings")


def from_environment(environ: Mapping[str, str], **given: Any) -> Settings:
    """Read settings from the environment. Values in `given` that are not None take precedence."""
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
