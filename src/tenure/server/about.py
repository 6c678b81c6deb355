"""What the service says about itself, and about the token of a request."""

from __future__ import annotations

from importlib.metadata import version

import msgspec

from tenure.errors import InvalidInput
from tenure.server.auth import Scope
from tenure.server.route import ANY, Call, Route

MOST_NAME, MOST_BANNER = 40, 300  # characters


class About(msgspec.Struct, frozen=True):
    """What an operator sees in the dashboard: the name of the environment, such as `production`,
    and a line of text on top of every page."""

    environment: str = ""
    banner: str = ""

    def __post_init__(self) -> None:
        for field, text, most in (
            ("environment", self.environment, MOST_NAME),
            ("banner", self.banner, MOST_BANNER),
        ):
            if len(text) > most or not text.isprintable():
                raise InvalidInput(field, f"must be printable, with at most {most} characters")


class Me(msgspec.Struct):
    """The token of the request: what it may do, and the queues and tenants that it is bound to
    (null: all)."""

    name: str
    scopes: list[Scope]
    queues: list[str] | None
    tenants: list[str] | None
    environment: str
    banner: str
    version: str


async def me(call: Call) -> Me:
    """Get what the token of this request may do."""
    token, about = call.token, call.service.about
    return Me(
        token.name if call.service.tokens.required else "",
        [scope for scope in Scope if token.allows(scope)],
        None if token.queues is None else list(token.queues),
        None if token.tenants is None else list(token.tenants),
        about.environment,
        about.banner,
        version("tenure"),
    )


ROUTES = [Route("GET", "/v1/me", me, scope=ANY, answer=Me)]
