"""The OPTIONS of a backend in Django's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.django.framework import InvalidTaskBackend
from tenure.errors import InvalidInput
from tenure.model.job import NULL, NewJob, prepare

OF_THE_STORE = ("url", "database")
OF_EACH_JOB = ("max_attempts", "timeout", "backoff", "expires_in")


class BackendOptions:
    """The validated OPTIONS.

    url: the URL of the store. database: instead of a URL, the alias of a SQLite database; its file
    holds the jobs, and they take part in its transactions. The other options apply to each job;
    see Queue.enqueue.
    """

    def __init__(self, alias: str, given: Mapping[str, Any]) -> None:
        self._alias = alias
        unknown = given.keys() - {*OF_THE_STORE, *OF_EACH_JOB}
        if unknown:
            known = ", ".join((*OF_THE_STORE, *OF_EACH_JOB))
            raise self.wrong(f"{min(unknown)!r} is not an option; the options are {known}")
        self.url: str | None = self._text(given, "url")
        self.database: str | None = self._text(given, "database")
        if self.url is not None and self.database is not None:
            raise self.wrong("give 'url' or 'database', not both: the database already has a file")
        self.of_each_job: dict[str, Any] = {
            name: given[name] for name in OF_EACH_JOB if name in given
        }
        try:
            prepare([NewJob(queue="any", **self.of_each_job)], 0, len(NULL))
        except InvalidInput as error:
            raise self.wrong(str(error)) from None

    def _text(self, given: Mapping[str, Any], name: str) -> str | None:
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{name}: must be a string, not {type(value).__name__}")
        return value

    def wrong(self, reason: str) -> Exception:
        """The error for invalid options."""
        error: Exception = InvalidTaskBackend(f"TASKS[{self._alias!r}]['OPTIONS']: {reason}")
        return error
