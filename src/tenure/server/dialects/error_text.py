"""The error format of the dialects. Clients show the text, and decide by the status."""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.server.problems import status_of
from tenure.server.route import Reply, encode


class ErrorText(msgspec.Struct):
    error: str


def as_text(error: TenureError) -> Reply:
    return Reply(encode(ErrorText(error.message)), status_of(error))
