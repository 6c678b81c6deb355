"""What must not be shown, and files that only their owner may read."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import InvalidInput, Settings
from tenure.observe.logs import TextFormatter
from tenure.settings import without_secrets
from tests.unit.cli.terminal import Terminal

HIDDEN = "hunter2"
URLS = {
    f"postgresql://me:{HIDDEN}@host:5432/db": "postgresql://me@host:5432/db",
    f"postgresql://me:{HIDDEN}/x@host/db": "postgresql://me@host/db",
    f"postgresql://me:{HIDDEN}@x@host/db": "postgresql://me@host/db",
    f"postgresql://me:{HIDDEN}?x@host/db": "postgresql://me@host/db",
    f"postgresql://me@host/db?password={HIDDEN}&a=b": "postgresql://me@host/db?password=...&a=b",
    f"postgresql:///db?sslpassword={HIDDEN}": "postgresql:///db?sslpassword=...",
    f"http://me:{HIDDEN}@host:3100": "http://me@host:3100",
    f"mysql://me:{HIDDEN}@host": "mysql://me@host",
    "sqlite:////tmp/a:b@c.db": "sqlite:////tmp/a:b@c.db",
    "postgresql://postgres@/postgres?host=%2Ftmp%2Fx": "postgresql://postgres@/postgres?host=%2Ftmp%2Fx",
    "http://127.0.0.1:3100": "http://127.0.0.1:3100",
    "memory://": "memory://",
}


@pytest.mark.parametrize(("url", "shown"), URLS.items())
def test_the_password_of_a_url_is_left_out(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_settings_show_neither_passwords_nor_tokens() -> None:
    settings = Settings(url=f"postgresql://me:{HIDDEN}@host/db", token=HIDDEN)
    for text in (repr(settings), str(settings), f"{settings}", str(dict(settings.__rich_repr__()))):
        assert HIDDEN not in text
        assert "postgresql://me@host/db" in text
    assert "token=None" in repr(Settings())


def test_a_queue_does_not_show_the_password_of_its_url() -> None:
    with tenure.connect(f"http://me:{HIDDEN}@127.0.0.1:1", token=HIDDEN) as queue:
        assert repr(queue) == "<tenure.Queue http://me@127.0.0.1:1>"


@pytest.mark.parametrize(
    "url", [f"mysql://me:{HIDDEN}@host/db", f"sqlite://me:{HIDDEN}@h", f"memory://me:{HIDDEN}@h",
            f"fdb://me:{HIDDEN}@h"]
)  # fmt: skip
def test_an_error_about_a_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tenure.connect(url)
    assert HIDDEN not in str(caught.value)


def test_a_service_that_cannot_be_reached_is_named_without_its_password() -> None:
    settings = Settings(busy_timeout=0)
    queue = tenure.connect(f"http://me:{HIDDEN}@127.0.0.1:1", settings=settings)
    with queue, pytest.raises(tenure.StoreError) as caught:
        queue.stats()
    assert HIDDEN not in str(caught.value)
    assert "http://me@127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize("command", [("stats",), ("migrate",), ("enqueue", "q")])
def test_a_command_does_not_show_the_password_of_the_store(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_BUSY_TIMEOUT", "0")
    done = Terminal(tmp_path).run(
        "--url", f"postgresql://me:{HIDDEN}@127.0.0.1:1/db?connect_timeout=1", *command
    )
    assert HIDDEN not in done.stdout + done.stderr


# A token over a network that others may read ------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "token", "warns"),
    [
        ("http://queue.example:3100", "t", True),
        ("http://10.0.0.7", "t", True),
        ("http://queue.example:3100", None, False),
        ("https://queue.example:3100", "t", False),
        ("http://localhost:3100", "t", False),
        ("http://127.0.0.1:3100", "t", False),
        ("http://[::1]:3100", "t", False),
    ],
)
def test_a_token_over_plain_http_to_another_machine_is_warned_of(
    url: str, token: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tenure.remote"):
        tenure.connect(url, token=token).close()
    assert ("https://" in caplog.text) is warns


# Logs ---------------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    log = logging.getLogger("tenure.test")
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


def test_a_name_cannot_forge_a_line_of_the_log_or_move_the_cursor(logged: io.StringIO) -> None:
    bad = "q\n2026-01-01 00:00:00,000 INFO    all is well\r\x1b[2J\x9b2J\u2028\u202e"
    logging.getLogger("tenure.test").warning("queue %s", bad, extra={"token": bad})
    (line,) = logged.getvalue().splitlines()
    assert r"queue q\n2026-01-01" in line
    assert r"\x1b[2J" in line
    assert line.isprintable()


def test_what_an_error_says_cannot_forge_a_line_either(logged: io.StringIO) -> None:
    error = ValueError("no\n2026-01-01 00:00:00,000 INFO    all is well\x1b[2J")
    logging.getLogger("tenure.test").error("it failed", exc_info=error)
    first, *rest = logged.getvalue().splitlines()
    assert "it failed" in first
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert any("ValueError: no" in line for line in rest)


# Files --------------------------------------------------------------------------------------------


def test_a_new_database_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
            queue.enqueue("q", "secret")
            modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


def test_the_permissions_of_a_database_that_exists_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    tenure.connect(f"sqlite:///{path}").close()
    path.chmod(0o660)
    tenure.connect(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o660
