"""An error as the clients of the dialects read it: they show its text, and go by the status."""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.server.problems import status_of
from tenure.server.route import Reply, encode


class ErrorText(msgspec.Struct):
    error: str


def as_text(error: TenureError) -> Reply:
    return Reply(encode(ErrorText(error.message)), status_of(error))
