"""Logging that the store is unavailable: once, and not at each retry."""

from __future__ import annotations

import logging

from tenure.settings import Settings

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between retries while the store cannot commit


class Outage:
    """The time during which the store fails. Retries are logged at the level DEBUG."""

    def __init__(self, log: logging.Logger, settings: Settings | None = None) -> None:
        """settings: of a store whose errors are raised; the engine of a service logs them."""
        self._log = log
        is_logged = settings is not None and settings.url.startswith("http")
        self._first = logging.DEBUG if is_logged else logging.WARNING
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
