"""Logging that the store is unavailable: once, and not at each retry."""

from __future__ import annotations

import logging

from tenure.settings import Settings


class Outage:
    """The time during which the store fails. Retries are logged at the level DEBUG."""

    def __init__(self, log: logging.Logger, settings: Settings) -> None:
        self._log = log
        # The engine of a service logs that the service is away.
        self._first = logging.DEBUG if settings.url.startswith("http") else logging.WARNING
        self._lasts = False

    def goes_on(self, what: str, error: Exception) -> None:
        """Log a failure. what: what could not be done."""
        level = logging.DEBUG if self._lasts else self._first
        self._log.log(level, "%s, trying again: %s", what, error)
        self._lasts = True

    def is_over(self) -> None:
        """Log that the store works again, if it did not."""
        if self._lasts:
            self._lasts = False
            self._log.info("the store works again")
