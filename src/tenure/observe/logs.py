"""Log output, as text for people or as JSON for programs. Payloads are never logged."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tenure.model.job import Job

# Fields that a log line can have besides its message.
ABOUT = (
    *("request", "job", "queue", "kind", "tenant", "attempt", "worker", "token", "status", "ms"),
    *("state", "retry_in_ms", "error", "schedule", "app"),
)


def about(job: Job) -> dict[str, object]:
    """The fields that describe a job, for the `extra` argument of a log call."""
    return {
        "job": job.id,
        "queue": job.queue,
        "kind": job.kind,
        "tenant": job.tenant,
        "attempt": job.attempts,
    }


def counted(count: int, noun: str) -> str:
    """Format a number of things: 1 job, 2 jobs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class TextFormatter(logging.Formatter):
    """One line of text, with the details of its request at the end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if hasattr(record, "request"):
            known = [name for name in ("request", "token", "error", "ms") if hasattr(record, name)]
            line = " ".join([line, *[f"{name}={getattr(record, name)}" for name in known]])
        return _printable(line)

    def formatException(self, ei: Any) -> str:
        """The traceback, indented: no line of it looks like a line of the log."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {_printable(line)}" for line in lines)


def _printable(text: str) -> str:
    """Escape line breaks and other control characters: names may contain them."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def log_as(form: str, level: str) -> None:
    """Log to stderr, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
