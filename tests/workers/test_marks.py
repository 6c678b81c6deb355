"""What a worker process leaves of its jobs when it dies."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.model.job import Lease
from tenure.settings import Settings
from tenure.worker import marks
from tenure.worker.marks import CLAIMED, RUNNING, Mark, Marks, dead_of, name_of_store, note_exit
from tests.support.sizes import let

SETTINGS = Settings(url="sqlite:///here.db")
STORE = name_of_store(SETTINGS)

DIES = """
import os, sys
from pathlib import Path
from tenure.settings import Settings
from tenure.worker import marks
marks.SHARED = Path(sys.argv[1])
own = marks.Marks.of(Settings(url="sqlite:///here.db"), 3)
from types import SimpleNamespace as Run
from tenure.model.job import Lease
runs = [Run(job=Lease(id, token)) for token, id in enumerate(("one", "two", "three"), 1)]
own.claim(runs)
own.start(runs[1].mark)
own.free(runs[2].mark)
{more}
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    let(monkeypatch, where_marks_are_shared=tmp_path)
    return tmp_path


@pytest.fixture
def folder(shared: Path) -> Path:
    folder = shared / f"tenure-{os.geteuid()}"
    folder.mkdir(0o700)
    return folder


def claim(marks: Marks, id: str, token: int) -> int:
    """The number of the mark of a job."""
    run: Any = SimpleNamespace(job=Lease(id, token), mark=0)
    marks.claim([run])
    number: int = run.mark
    return number


def a_process_dies(shared: Path, more: str = "") -> int:
    command = [sys.executable, "-c", DIES.format(more=more), str(shared)]
    process = subprocess.Popen(command)
    assert process.wait() == -9
    return process.pid


def left() -> list[Mark]:
    with dead_of(STORE) as found:
        return [mark for dead in found for mark in dead.marks]


def test_a_process_that_is_killed_leaves_what_it_had_claimed_and_what_it_was_running(
    shared: Path,
) -> None:
    a_process_dies(shared)
    assert sorted(left()) == [Mark("one", 1, CLAIMED), Mark("two", 2, RUNNING)]


def test_the_marks_of_a_process_that_lives_are_not_read(shared: Path) -> None:
    own = Marks.of(SETTINGS, 3)
    claim(own, "one", 1)
    assert left() == []
    own.close()
    assert list(shared.glob("*/*")) == []


def test_a_fork_does_not_keep_a_dead_process_alive(shared: Path) -> None:
    more = (
        "heard, says = os.pipe()\n"
        "if not os.fork(): os.write(says, b'x'); os.read(0, 1); os._exit(0)\n"
        "os.read(heard, 1)"
    )
    command = [sys.executable, "-c", DIES.format(more=more), str(shared)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        process.wait()
        assert len(left()) == 2


def test_a_process_that_closes_all_its_files_still_counts_as_alive(shared: Path) -> None:
    more = "os.closerange(3, 100); print(flush=True); os.read(0, 1)"
    command = [sys.executable, "-c", DIES.format(more=more), str(shared)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert left() == []
    assert len(left()) == 2


def test_only_one_process_settles_what_another_one_left(shared: Path) -> None:
    a_process_dies(shared)
    with dead_of(STORE) as first, dead_of(STORE) as second:
        assert (len(first), len(second)) == (1, 0)


def test_marks_are_read_only_for_the_same_store_token_and_folder(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        STORE,
        name_of_store(Settings(url="sqlite:///there.db")),
        name_of_store(Settings(url="sqlite:///here.db", token="other")),
    }
    monkeypatch.chdir(tmp_path)
    others.add(name_of_store(SETTINGS))
    assert len(others) == 4


def test_the_exit_code_is_told_if_a_supervisor_noted_it(shared: Path) -> None:
    pid = a_process_dies(shared)
    assert note_exit(pid, -11)
    with dead_of(STORE) as (dead,):
        assert (dead.pid, dead.died) == (str(pid), "died (SIGSEGV)")
        dead.path.unlink()
    assert not note_exit(pid, -11)


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", b"\xff" * 5_000, b"tenure marks 1".ljust(24, b"\0") + b"x" * 999]
)
def test_garbage_is_ignored_with_a_warning(
    folder: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / f"{STORE}-7-x").write_bytes(garbage)
    assert left() == []
    assert "are ignored" in caplog.text
    assert list(folder.iterdir()) == []


def test_a_mark_that_makes_no_sense_spoils_the_whole_file(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_process_dies(shared)
    (path,) = shared.glob("*/*")
    raw = bytearray(path.read_bytes())
    raw[128 + 1] = 9
    path.write_bytes(raw)
    assert left() == []
    assert "9 is not a state" in caplog.text


def test_marks_from_before_the_machine_started_are_ignored(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_process_dies(shared)
    boot = tmp_path / "boot"
    boot.write_text("another one, which is just as long: 36")
    monkeypatch.setattr(marks, "BOOT", boot)
    assert left() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_what_another_user_made_is_ignored_with_a_warning(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_process_dies(shared)
    (path,) = shared.glob("*/*")
    os.chown(path, 12_345, -1)
    assert left() == []
    assert "another user made them" in caplog.text


def test_a_link_is_not_followed(folder: Path, shared: Path) -> None:
    (shared / "secret").write_text("kept")
    (folder / f"{STORE}-7-x").symlink_to(shared / "secret")
    assert left() == []
    assert (shared / "secret").read_text() == "kept"


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o755)


def _a_link(folder: Path) -> None:
    folder.rmdir()
    folder.symlink_to(folder.parent)


@pytest.mark.parametrize("spoil", [_open_to_all, _a_link])
def test_a_folder_that_others_may_have_made_is_not_used(
    folder: Path, spoil: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(spoil)
    spoil(folder)
    own = Marks.of(SETTINGS, 3)
    own.start(claim(own, "one", 1))  # it works without marks
    own.close()
    assert "only this user can write" in caplog.text


def test_without_shared_memory_a_worker_has_no_marks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    let(monkeypatch, where_marks_are_shared=Path("/nowhere"))
    caplog.set_level(logging.INFO)
    own = Marks.of(SETTINGS, 3)
    assert claim(own, "one", 1) == 0
    assert caplog.text == ""


def test_a_file_can_be_read_by_its_user_only_and_has_no_url(shared: Path) -> None:
    own = Marks.of(Settings(url="postgresql://me:secret@here/db"), 3)
    (path,) = shared.glob("*/*")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert b"secret" not in path.read_bytes()
    own.close()


def test_jobs_with_long_ids_and_those_beyond_its_size_get_no_mark(shared: Path) -> None:
    own = Marks.of(SETTINGS, 2)
    assert claim(own, "x" * 121, 1) == 0
    numbers = [claim(own, f"job {n}", n) for n in range(3)]
    assert numbers == [1, 2, 0]
    own.free(0)
    own.free(2)
    assert claim(own, "another", 9) == 2
    own.close()


def test_what_dead_processes_left_of_other_stores_is_deleted_after_a_day(shared: Path) -> None:
    a_process_dies(shared)
    (path,) = shared.glob("*/*")
    with dead_of("other"):
        assert path.exists()
    os.utime(path, (0, 0))
    with dead_of("other"):
        assert not path.exists()
