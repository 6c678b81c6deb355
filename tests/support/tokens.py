"""A store as a service provides it for a token."""

from __future__ import annotations

from tenure import Queue
from tenure.queue import store_of
from tenure.server.auth import Token
from tenure.server.checks import Checked, Means
from tenure.server.redaction import Redaction


def store_for(queue: Queue, token: Token) -> Checked:
    return Checked(store_of(queue), token, Means(queue, Redaction(()), shared=True))
