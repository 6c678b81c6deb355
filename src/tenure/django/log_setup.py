"""The log of `manage.py tenure_worker` in a project that does not configure logging.

Django logs each task, too, with the traceback of one that fails. It prints that itself if DEBUG is
set, so it must not be printed here again.
"""

from __future__ import annotations

import copy
import logging
import sys

from django.conf import settings

from tenure.django.framework import TASKS_LOGGER


class Formatter(logging.Formatter):
    """Omits the traceback of a task: Django's line about the same task has it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Called by logging."""
        if getattr(record, "state", None) == "dead":
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        return super().format(record)


def log_to_stderr(level: int) -> None:
    """Print what workers log to stderr, unless the project's LOGGING says where it goes."""
    if logging.getLogger().handlers or settings.LOGGING:
        return
    _add("tenure", level)
    if not (settings.DEBUG and TASKS_LOGGER.startswith("django.")):
        _add(TASKS_LOGGER, level)


def _add(name: str, level: int) -> None:
    logger = logging.getLogger(name)
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    logger.setLevel(level)
