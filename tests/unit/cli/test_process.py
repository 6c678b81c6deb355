"""The command line as a process of its own: pipes, signals, terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure import NewJob, __version__, connect

TENURE = [sys.executable, "-m", "tenure"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    url = f"sqlite:///{tmp_path}/jobs.db"
    connect(url).close()  # commands that only read do not create it
    return {**plain, "TENURE_URL": url, "COLUMNS": "100"}


def run(env: dict[str, str], *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENURE, *args], env=env | more, capture_output=True, text=True)


def read_all(terminal: int) -> str:
    """What was written to a terminal until its last writer left."""
    parts = []
    try:
        while part := os.read(terminal, 65_536):
            parts.append(part)
    except OSError:  # how Linux says that nobody writes any more
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()


def test_the_module_can_be_run(env: dict[str, str]) -> None:
    done = run(env, "--version")

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"tenure, version {__version__}\n",
        "",
    )


def test_a_job_lives_on_between_processes(env: dict[str, str]) -> None:
    run(env, "enqueue", "mail", '{"to": "ann"}', "--id", "a")
    (job,) = json.loads(run(env, "claim", "mail", "--json").stdout)
    done = run(env, "ack", "a", "--token", str(job["token"]))

    assert (done.returncode, done.stdout, done.stderr) == (0, "Job a is done.\n", "")


def test_an_error_is_one_line_and_no_traceback(env: dict[str, str]) -> None:
    done = run(env, "show", "nope")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: there is no job 'nope'\n"


@pytest.mark.parametrize("how", [["--json"], []])
def test_a_closed_pipe_is_quiet(env: dict[str, str], how: list[str]) -> None:
    with connect(env["TENURE_URL"]) as queue:
        queue.enqueue_many([NewJob(queue="mail", payload="x" * 500)] * 2000)
    process = subprocess.Popen(
        [*TENURE, "jobs", "--limit", "2000", *how],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()

    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def _at_a_terminal() -> None:
    """Tests that run in the background of a shell (`make test &`) ignore Ctrl-C, and so would
    every process that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_load_with_130_and_says_how_far_it_came(env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*TENURE, "enqueue", "mail", "--file", "-"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_at_a_terminal,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("{}\nbad\n")
    process.stdin.flush()
    assert "line 2" in process.stderr.readline()  # it is at work, and waits for more

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()

    assert (process.returncode, stdout) == (130, "")
    assert stderr.strip() == "Stopped at line 2: at least loaded 0, skipped 0 existing, 1 bad."


def test_output_that_is_not_utf_8_can_still_be_read(env: dict[str, str]) -> None:
    run(env, "enqueue", "mail", '"日本"', "--id", "a")

    shown = run(env, "show", "a", PYTHONIOENCODING="latin-1")
    as_json = run(env, "show", "a", "--json", PYTHONIOENCODING="latin-1")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\\u65e5\\u672c" in shown.stdout
    assert json.loads(as_json.stdout)["payload"] == "日本"


@pytest.mark.parametrize("source", ["file", "pipe"])
def test_a_terminal_shows_a_bar_and_the_bad_lines_apart_from_it(
    env: dict[str, str], tmp_path: Path, source: str
) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"queue": "mail"}\nbad\n' + '{"queue": "mail"}\n' * 3000)
    terminal, screen = pty.openpty()
    process = subprocess.Popen(
        [*TENURE, "enqueue", "--file", str(path) if source == "file" else "-"],
        env=env | {"TERM": "xterm"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=screen,
    )
    os.close(screen)
    stdout, _ = process.communicate(path.read_bytes() if source == "pipe" else None)
    shown = read_all(terminal)

    assert stdout == b"loaded 3,001, skipped 0 existing, 1 bad\n"
    assert "jobs, " in shown
    assert ("100%" in shown) == (source == "file")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "error: line 2: JSON is malformed: invalid character (byte 0)\r\n" in plain
    assert "seconderror" not in plain


def test_without_a_terminal_there_is_no_bar(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"queue": "mail"}\n' * 3000)

    assert run(env, "enqueue", "--file", str(path)).stderr == ""


def test_a_person_at_a_terminal_is_asked(env: dict[str, str]) -> None:
    run(env, "enqueue", "mail", "1")
    terminal, screen = pty.openpty()
    process = subprocess.Popen(
        [*TENURE, "delete", "--queue", "mail"], env=env, stdin=screen, stdout=screen, stderr=screen
    )
    os.close(screen)
    os.write(terminal, b"n\n")
    shown = read_all(terminal)

    assert process.wait() == 1
    assert "Permanently delete all jobs of queue 'mail'? [y/N]:" in shown
    assert "Nothing was deleted." in shown


@pytest.mark.parametrize("how", [["--json"], []])
def test_closed_streams_do_no_harm(env: dict[str, str], how: list[str]) -> None:
    command = " ".join([*TENURE, "stats", *how])

    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} <&- >&-"], env=env, stderr=subprocess.PIPE, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
