"""A newer Tenure migrates a schema while programs of the previous version keep working on it.

The older code comes from the history of this repository. If that is not available, the signatures
of the functions that it calls are compared.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import psycopg
import pytest

import tenure
from tests.support import audit_postgres, postgres

ROOT = Path(__file__).parents[3]
VERSION, COMMIT = 8, "1ed16ac"  # the last with the schema version before
PATIENCE = 60.0

# The functions that programs of version 8 call, in PostgreSQL's notation.
CALLED = """
ack(uuid,bigint,text[],bigint[],bigint[],text[],smallint,smallint)
ack_alone(uuid,bigint,text[],bigint[],bigint[],text[],smallint,smallint)
ack_and_claim(uuid,bigint,text[],bigint[],bigint[],text[],smallint,smallint,text,integer[],text[],\
bigint[],integer)
candidates(text,text,text[],integer,integer,integer)
candidates_beside(text,integer)
claim_alone(uuid,bigint,text,integer[],text[],bigint[],smallint,integer)
drop_empty(integer,integer)
drop_slot(bigint,text,text,text)
end_slots(bigint,integer)
enqueue(bigint,text[],text[],text[],integer[],text[],text[],text[],integer[],integer[],text[],\
text[],bigint[],bigint[],bigint[],boolean[])
expired(integer,bigint,integer)
fold(integer,bigint)
forget_queues(integer[],bigint,bigint)
group_totals(integer,text,text,integer)
held(text[])
hold(bigint,text[],bigint[],smallint)
hold_ring(boolean)
is_idle(integer)
lanes_of(text[],text[],text[])
lease(bigint,bigint[],integer[],text[],bigint[],smallint,integer,integer[],integer[],integer[],\
bigint[],bigint[])
load(text[],bigint[])
look_at_queues(bigint,text,integer,bigint,bigint,bigint)
moment(bigint)
next_due(bigint,text[])
open_books(text[],bigint,boolean)
overdue(integer,smallint,bigint,integer)
parents(text[])
promote(integer,bigint,integer)
rebound(integer,text)
recount(integer,text,text)
recount_slots(bigint,text,text)
save(bigint[],smallint[],bigint[],integer[],bigint[],bigint[],text[],text[],bigint[])
take_keys(bigint,text[])
take_slot(bigint,text,text,text,bigint,integer)
tell(integer[],integer[],integer[],integer[],integer[],integer[],integer[],integer[],integer[],\
integer[],bigint[],integer[])
tokens_from(bigint)
unfolded(xid8,text)
"""

# A worker and a producer of the older version. It runs one round for each line of its input.
OLD = """
import sys, tenure
queue = tenure.connect(sys.argv[1])
for n, _ in enumerate(sys.stdin):
    queue.limits.set("bound", concurrency=10)
    if n == 0:
        queue.enqueue("left", tenant="t", group="g")
    for name in ("plain", "bound"):
        parent = queue.enqueue(name, n, tenant="t" if name == "bound" else "")
        queue.enqueue(name, after=[parent.id], unique_key=f"{n}")
        (job,) = queue.claim(name)
        queue.extend(job, 60)
        queue.progress(job, 50)
        queue.ack(job, n)
        (child,) = queue.claim(name)
        queue.fail(child, "x", retry_in=0)
        queue.ack(queue.claim(name)[0])
    queue.slots.take("s", "k", "h", ttl=60)
    queue.next_due("plain")
    queue.maintain()
    queue.reconcile("bound")
    print(queue.stats().done, flush=True)
"""


@pytest.fixture
def old_code(tmp_path: Path) -> Path:
    """The package of the previous version."""
    archive = ["git", "-C", str(ROOT), "archive", COMMIT, "src/tenure"]
    try:
        done = subprocess.run(archive, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the history of the repository is not at hand")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as files:
        files.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old" / "src"


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[str]:
    name = postgres.schema_of(tmp_path)
    postgres.drop_schema(name)
    yield name
    assert audit_postgres.audit(postgres.shared_url(), name) == []
    postgres.drop(tmp_path)


def version(schema: str) -> int:
    with psycopg.connect(postgres.shared_url()) as connection:
        ((found,),) = connection.execute(f"SELECT version FROM {schema}.about".encode()).fetchall()
    return int(found)


def test_a_program_of_the_version_before_goes_on_while_the_schema_is_migrated(
    old_code: Path, schema: str, tmp_path: Path
) -> None:
    url = postgres.url_of(tmp_path)
    old = subprocess.Popen(
        [sys.executable, "-c", OLD, url],
        env={"PYTHONPATH": str(old_code)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert old.stdin is not None
    assert old.stdout is not None

    def a_round() -> int:
        assert old.stdin is not None
        assert old.stdout is not None
        old.stdin.write("on\n")
        old.stdin.flush()
        return int(old.stdout.readline())

    try:
        assert a_round() == 4
        assert version(schema) == VERSION
        with tenure.connect(url) as queue:
            assert version(schema) > VERSION
            for n in range(2, 5):
                job = queue.enqueue("plain", "new")
                (held,) = queue.claim("plain")
                assert held.id == job.id
                queue.extend(held, 60)
                queue.ack(held)
                assert a_round() == 5 * n - 1
    finally:
        old.stdin.close()
        assert old.wait(PATIENCE) == 0
        old.stdout.close()


def test_what_the_version_before_calls_is_still_there(schema: str, tmp_path: Path) -> None:
    tenure.connect(postgres.url_of(tmp_path)).close()
    query = """
        SELECT p.proname || '(' || replace(oidvectortypes(p.proargtypes), ', ', ',') || ')'
        FROM pg_proc p WHERE p.pronamespace = %s::regnamespace
    """
    with psycopg.connect(postgres.shared_url()) as connection:
        found = {row[0] for row in connection.execute(query, (schema,)).fetchall()}
    assert set(CALLED.split()) - found == set()
