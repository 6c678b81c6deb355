"""The file itself: its version and migrations, what it may not be, and what a fault leaves."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import tenure
from tenure.engines.sqlite.file import exists, upgrade, upgrade_sql
from tenure.engines.sqlite.sqlite_statements import SCHEMA
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.support.audit import audit

NEWEST = max(SCHEMA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def opened(path: Path) -> tenure.Queue:
    return tenure.connect(f"sqlite:///{path}")


def made(path: Path, jobs: int = 3) -> Path:
    """A file with some jobs in it, that nobody has open."""
    with opened(path) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail", id=f"job-{n}") for n in range(jobs)])
    return path


def ids(queue: tenure.Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs(limit=10_000).jobs)


def writer(queue: tenure.Queue) -> sqlite3.Connection:
    connection: sqlite3.Connection = store_of(queue).engine._writer  # type: ignore[attr-defined]
    return connection


def asked(path: Path, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, params).fetchall()


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file of a folder with what is in it."""
    return {
        str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in sorted(folder.rglob("*"))
    }


def version(path: Path) -> int:
    ((found,),) = asked(path, "SELECT value FROM tenure_counters WHERE name = 'schema_version'")
    return int(found)


# How it is opened -------------------------------------------------------------------------------


def test_the_writer_logs_ahead_and_waits_for_the_disk(path: Path) -> None:
    with opened(path) as queue:
        assert writer(queue).execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer(queue).execute("PRAGMA synchronous").fetchone() == (2,)
    assert path.read_bytes()[18:20] == b"\2\2"  # and so the file says, to every program


def test_closing_leaves_one_file(path: Path) -> None:
    made(path)
    assert [one.name for one in path.parent.iterdir()] == ["jobs.db"]


def test_a_file_that_did_not_log_ahead_does_so_from_now_on(path: Path) -> None:
    made(path)
    assert asked(path, "PRAGMA journal_mode = DELETE") == [("delete",)]
    with opened(path) as queue:
        assert ids(queue) == ["job-0", "job-1", "job-2"]
        assert writer(queue).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    made(path)
    assert audit(path) == []


def test_a_users_own_tables_are_untouched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """
            PRAGMA user_version = 77;
            PRAGMA application_id = 1234;
            CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
            CREATE INDEX jobs_name ON jobs (name);
            CREATE VIEW names AS SELECT name FROM jobs;
            CREATE TRIGGER no_delete BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END;
            INSERT INTO jobs VALUES (1, 'painter'), (2, 'baker');
            """
        )
    mine = "SELECT type, name, sql FROM sqlite_master WHERE tbl_name NOT LIKE 'tenure%' ORDER BY 2"
    before = asked(path, mine)
    with opened(path) as queue:
        queue.enqueue("mail", id="job")
        queue.ack(queue.claim("mail")[0])
        queue.delete("job")
        queue.maintain()
    assert asked(path, mine) == before
    assert asked(path, "SELECT * FROM jobs") == [(1, "painter"), (2, "baker")]
    assert asked(path, "PRAGMA user_version") == [(77,)]
    assert asked(path, "PRAGMA application_id") == [(1234,)]


def test_a_sqlite_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.31.1")
    with pytest.raises(tenure.WrongVersion, match=r"SQLite 3\.35\.0 or newer.*has 3\.31\.1"):
        opened(path)
    assert not path.exists()


# Versions ---------------------------------------------------------------------------------------

STEP = [
    "ALTER TABLE tenure_jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'",
    "CREATE TABLE tenure_colours (colour TEXT PRIMARY KEY)",
    "UPDATE tenure_jobs SET colour = 'green' WHERE id = 'job-1'",
]


def schema(path: Path) -> list[tuple[Any, ...]]:
    return asked(path, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")


def test_a_file_knows_the_version_of_its_schema(path: Path) -> None:
    assert version(made(path)) == NEWEST


def test_an_older_file_is_migrated_and_its_jobs_survive(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    before = asked(path, "SELECT * FROM tenure_jobs ORDER BY seq")
    monkeypatch.setitem(SCHEMA, NEWEST + 1, STEP)
    with opened(path) as queue:
        assert ids(queue) == ["job-0", "job-1", "job-2"]
        assert [job.id for job in queue.claim("mail")] == ["job-0"]
        queue.release(queue.claim("mail")[0])
        queue.enqueue("mail", id="new")
    assert version(path) == NEWEST + 1
    assert asked(path, "SELECT id, colour FROM tenure_jobs ORDER BY seq") == [
        ("job-0", "grey"),
        ("job-1", "green"),
        ("job-2", "grey"),
        ("new", "grey"),
    ]
    assert [row[:2] for row in asked(path, "SELECT * FROM tenure_jobs ORDER BY seq")][:3] == [
        row[:2] for row in before
    ]
    assert audit(path) == []


def test_a_fresh_file_equals_a_migrated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated, fresh = made(tmp_path / "migrated.db", jobs=0), tmp_path / "fresh.db"
    monkeypatch.setitem(SCHEMA, NEWEST + 1, STEP)
    monkeypatch.setitem(SCHEMA, NEWEST + 2, ["CREATE INDEX tenure_x ON tenure_jobs (colour)"])
    opened(migrated).close()
    opened(fresh).close()
    assert schema(migrated) == schema(fresh)
    counters = "SELECT * FROM tenure_counters ORDER BY name"
    assert asked(migrated, counters) == asked(fresh, counters)
    assert version(fresh) == NEWEST + 2


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setitem(SCHEMA, NEWEST + 1, STEP)
        patch.setitem(SCHEMA, NEWEST + 2, ["CREATE TABLE tenure_x (y)", "DROP TABLE nonsense"])
        with pytest.raises(tenure.StoreError, match="no such table: nonsense") as refused:
            opened(path)
        assert str(path) in str(refused.value)
    assert path.read_bytes() == before
    assert version(path) == NEWEST
    with opened(path) as queue:
        assert ids(queue) == ["job-0", "job-1", "job-2"]


def test_a_file_is_migrated_once_when_many_open_it_at_the_same_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    monkeypatch.setitem(SCHEMA, NEWEST + 1, STEP)
    barrier, failed = threading.Barrier(8), []

    def open_it() -> None:
        barrier.wait()
        try:
            opened(path).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert version(path) == NEWEST + 1


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    made(path)
    change(path, f"UPDATE tenure_counters SET value = {NEWEST + 1} WHERE name = 'schema_version'")
    change(path, "ALTER TABLE tenure_jobs ADD COLUMN future TEXT")
    before = contents(path.parent)
    with pytest.raises(tenure.WrongVersion) as refused:
        opened(path)
    for part in (str(path), f"version {NEWEST + 1}", f"up to {NEWEST}", "upgrade"):
        assert part in str(refused.value)
    assert contents(path.parent) == before


@pytest.mark.parametrize("version", [1, 7])
def test_a_file_of_the_time_before_the_first_release_is_left_alone(
    path: Path, version: int
) -> None:
    made(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "UPDATE tenure_counters SET name = 'version', value = ? WHERE name = 'schema_version'",
            (version,),
        )
    before = contents(path.parent)
    url = f"sqlite:///{path}"
    for call in (
        lambda: opened(path),
        lambda: upgrade(url, 1.0, ManualClock()),
        lambda: upgrade_sql(url, 1.0),
        lambda: exists(url, 1.0),
    ):
        with pytest.raises(tenure.WrongVersion) as refused:
            call()
        for part in (str(path), "before its first release", "use another file"):
            assert part in str(refused.value)
    assert contents(path.parent) == before


# What is no store -------------------------------------------------------------------------------


def _half(path: Path) -> bytes:
    data = made(path).read_bytes()
    return data[: len(data) // 2]


NO_STORES = {
    "text": lambda _: b"Dear diary,\n" * 500,
    "a short text": lambda _: b"hello",
    "a page of zeros": lambda _: bytes(4096),
    "random bytes": lambda _: random.Random(1).randbytes(20_000),
    "the beginning of a header": lambda _: b"SQLite format 3\0",
    "a header and no more": lambda path: made(path).read_bytes()[:100],
    "half a store": _half,
}


@pytest.mark.parametrize("kind", NO_STORES)
def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, kind: str) -> None:
    data = NO_STORES[kind](tmp_path / "other.db")
    (tmp_path / "other.db").unlink(missing_ok=True)
    path = tmp_path / "jobs.db"
    path.write_bytes(data)
    with pytest.raises(tenure.NotAStore) as refused:
        opened(path)
    assert str(path) in str(refused.value)
    assert contents(tmp_path) == {"jobs.db": data}


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(tenure.StoreError, match=r"jobs\.db\b.*\bfolder\b") as refused:
        opened(tmp_path / "jobs.db")
    assert str(tmp_path / "jobs.db") in str(refused.value)
    assert contents(tmp_path) == {"jobs.db": None}


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "jobs.db"
    with pytest.raises(tenure.StoreError, match="folder does not exist") as refused:
        opened(path)
    assert str(path) in str(refused.value)
    assert contents(tmp_path) == {}


def test_a_file_in_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(tenure.StoreError, match=r"jobs\.db\b.*\bfolder\b"):
        opened(tmp_path / "file" / "jobs.db")
    assert contents(tmp_path) == {"file": b"mine"}


# Rights -----------------------------------------------------------------------------------------

NOBODY = 65534


def try_to_use(path: str) -> None:
    """As somebody without rights, say what happens."""
    tenure.connect("memory://").close()
    with tempfile.TemporaryDirectory() as folder:
        made(Path(folder) / "jobs.db")  # whatever is imported late is imported now
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        with opened(Path(path)) as queue:
            queue.enqueue("mail", id="new")
    except tenure.TenureError as error:
        sys.stdout.write(f"{error.code}: {error}")


def attempt(path: Path) -> str:
    """What an attempt to use the file in a process without rights says."""
    code = f"from {__name__} import try_to_use as go; go({str(path)!r})"
    command = [sys.executable, "-W", "error", "-c", code]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can see into; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555), (0o000, 0o777)]
)
def test_a_file_or_folder_without_rights_is_named_and_left_alone(
    shared: Path, file_mode: int, folder_mode: int
) -> None:
    before = made(shared / "jobs.db").read_bytes()
    path = shared / "jobs.db"
    path.chmod(file_mode)
    shared.chmod(folder_mode)
    said = attempt(path)
    path.chmod(0o644)
    shared.chmod(0o755)
    assert said.startswith(("store_read_only: ", "store_error: "))
    assert str(path) in said
    assert "permissions" in said
    assert path.read_bytes() == before
    with opened(path) as queue:
        assert ids(queue) == ["job-0", "job-1", "job-2"]


def test_a_folder_in_which_no_file_can_be_made_is_named(shared: Path) -> None:
    shared.chmod(0o555)
    said = attempt(shared / "jobs.db")
    assert said.startswith("store_error: ")
    assert str(shared / "jobs.db") in said
    assert "permissions" in said
    assert contents(shared) == {}


# A full disk ------------------------------------------------------------------------------------


def fill(queue: tenure.Queue) -> list[str]:
    """Enqueue until there is no more space; answers with what was answered."""
    answered: list[str] = []

    def go_on() -> None:
        while True:
            id = f"full-{len(answered)}"
            answered.append(queue.enqueue("mail", "x" * 3000, id=id).id)

    with pytest.raises(tenure.StoreFull, match="disk is full"):
        go_on()
    assert answered
    return answered


def test_a_full_store_says_so_and_works_again_when_there_is_space(path: Path) -> None:
    with opened(path) as queue:
        queue.enqueue("mail", id="first")
        (job,) = queue.claim("mail")
        ((pages,),) = writer(queue).execute("PRAGMA page_count").fetchall()
        writer(queue).execute(f"PRAGMA max_page_count = {pages + 20}")
        answered = fill(queue)
        assert ids(queue) == sorted([*answered, "first"])
        assert queue.stats("mail").ready == len(answered)
        with pytest.raises(tenure.StoreFull):
            queue.enqueue_many([tenure.NewJob(queue="mail", payload="x" * 9000) for _ in range(9)])
        queue.ack(job)  # what needs no space goes on
        writer(queue).execute(f"PRAGMA max_page_count = {pages + 10_000}")
        queue.enqueue("mail", "x" * 3000, id="last")
        assert ids(queue) == sorted([*answered, "first", "last"])
        assert queue.get("first").state == "done"
    assert audit(path) == []


def test_the_neighbours_of_a_large_job_hear_of_the_full_store_too(path: Path) -> None:
    with opened(path) as queue:
        queue.enqueue("mail", id="first")
        ((pages,),) = writer(queue).execute("PRAGMA page_count").fetchall()
        writer(queue).execute(f"PRAGMA max_page_count = {pages + 20}")
        new = [tenure.NewJob(queue="mail", id=f"{n}", payload="x" * 30_000) for n in range(10)]
        with pytest.raises(tenure.StoreFull):
            queue.enqueue_many(new)
        assert ids(queue) == ["first"]  # all or none
        queue.enqueue("mail", id="small")
        assert ids(queue) == ["first", "small"]
    assert audit(path) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tenure-test", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_survived(tiny_disk: Path) -> None:
    path = tiny_disk / "jobs.db"
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    with opened(path) as queue:
        answered = fill(queue)
        assert ids(queue) == sorted(answered)
        ballast.unlink()
        queue.enqueue("mail", "x" * 3000, id="last")
        assert ids(queue) == sorted([*answered, "last"])
        assert len(queue.claim("mail", limit=1000)) == len(answered) + 1
    with opened(path) as queue:
        assert ids(queue) == sorted([*answered, "last"])
    assert audit(path) == []


def test_a_store_can_be_opened_again_after_the_disk_was_full(tiny_disk: Path) -> None:
    path = tiny_disk / "jobs.db"
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    with opened(path) as queue:
        answered = fill(queue)
    ballast.unlink()
    with opened(path) as queue:
        assert ids(queue) == sorted(answered)
        queue.enqueue("mail", id="last")
    assert audit(path) == []


@pytest.mark.parametrize("left", [0, 4096, 40_000, 100_000])
def test_a_store_that_cannot_be_made_for_lack_of_space_says_so(tiny_disk: Path, left: int) -> None:
    path = tiny_disk / "jobs.db"
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(2**20 - left))
    with pytest.raises(tenure.StoreFull, match="disk is full") as refused:
        made(path)
    assert str(path) in str(refused.value)
    ballast.unlink()
    with opened(made(path)) as queue:
        assert ids(queue) == ["job-0", "job-1", "job-2"]
    assert audit(path) == []


# URLs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///./jobs.db", "jobs.db"),
        ("sqlite:///sub/../jobs.db", "jobs.db"),
        ("sqlite:///my%20jobs.db", "my jobs.db"),
        ("sqlite:///my jobs.db", "my jobs.db"),
        ("sqlite:///caf%C3%A9.db", "café.db"),
        ("sqlite:///仕事.db", "仕事.db"),
        ("sqlite:///what%3F.db", "what?.db"),
        ("sqlite:///50%25.db", "50%.db"),
        ("sqlite:///a#b.db", "a#b.db"),
        ("sqlite:///a&b=c;d.db", "a&b=c;d.db"),
    ],
)
def test_a_relative_url_names_a_file_of_this_folder(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with tenure.connect(url) as queue:
        queue.enqueue("mail", id="job")
        monkeypatch.chdir("/")
        assert ids(queue) == ["job"]  # a reader opened later is of the same file
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, "sub"])


@pytest.mark.parametrize("name", ["jobs.db", "my jobs.db", "café 仕事.db", "100%.db", "a?b.db"])
def test_an_absolute_url_names_a_file_anywhere(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with tenure.connect(f"sqlite:///{quote(str(path))}") as queue:
        queue.enqueue("mail")
    assert path.is_file()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "jobs.db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:/jobs.db",
        "sqlite://jobs.db",
        "sqlite://host/jobs.db",
        "sqlite:///:memory:",
        "sqlite:///jobs.db?mode=ro",
        "sqlite:///jobs%00.db",
        "mysql:///jobs.db",
        "SQLITE///jobs.db",
    ],
)
def test_a_url_that_names_no_file_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tenure.InvalidInput, match="url"):
        tenure.connect(url)
    assert contents(tmp_path) == {}


def test_books_that_were_tampered_with_stop_a_claim_and_can_be_put_right(tmp_path: Path) -> None:
    """A lane whose head is wrong must not make a claim lose the jobs before it."""
    with opened(tmp_path / "jobs.db") as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail", id=f"job-{n}") for n in range(3)])
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
            db.execute("UPDATE tenure_lanes SET head_seq = 2")
        with pytest.raises(RuntimeError, match="tenure reconcile"):
            queue.claim("mail", limit=2)
        assert queue.stats("mail").ready == 3
        queue.reconcile("mail")
        assert [job.id for job in queue.claim("mail", limit=5)] == ["job-0", "job-1", "job-2"]


@pytest.mark.parametrize("version", [0, NEWEST])
def test_the_printed_upgrade_of_any_version_makes_the_newest(
    path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version:
        opened(path).close()
    monkeypatch.setitem(SCHEMA, NEWEST + 1, STEP)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(upgrade_sql(f"sqlite:///{path}", 1.0))
    query = "SELECT value FROM tenure_counters WHERE name = 'schema_version'"
    assert asked(path, query) == [(NEWEST + 1,)]
    with opened(path) as queue:
        queue.enqueue("mail", id="a")
        assert ids(queue) == ["a"]
